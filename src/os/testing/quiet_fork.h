// How tests fork. The sanitizers' allocators do not hold their locks across a fork: a thread that
// has a lock at that moment takes the lock from the child for ever.
#pragma once

#include <dirent.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <concepts>
#include <cstdio>
#include <exception>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

namespace tensorbus::os {

// Whether every thread of this process but the calling one sleeps.
inline bool others_sleep() {
  const std::unique_ptr<DIR, int (*)(DIR*)> tasks(::opendir("/proc/self/task"), ::closedir);
  if (tasks == nullptr) return true;
  const std::string own = std::to_string(::gettid());
  while (const dirent* task = ::readdir(tasks.get())) {
    const std::string id = task->d_name;
    if (id == own || id.front() == '.') continue;
    std::ifstream file("/proc/self/task/" + id + "/stat");
    std::string line;
    std::getline(file, line);
    const std::size_t name_end = line.rfind(") ");
    if (name_end != std::string::npos && line[name_end + 2] != 'S') return false;
  }
  return true;
}

// fork(), as soon as the other threads sleep.
inline pid_t quiet_fork() {
  for (int looks = 0; looks < 5000 && !others_sleep(); ++looks) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return ::fork();
}

// A child that does `work` and ends: with 0, or with 1 after an exception, which the child prints.
// The child dies with the thread that forked it, so that a test that fails leaves nobody behind.
template <std::invocable Work>
pid_t fork_child(Work&& work) {
  const pid_t parent = ::getpid();
  const pid_t child = quiet_fork();
  if (child != 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The parent was gone before the child asked for the signal; 0: the parent lives, in another pid
  // namespace.
  if (const pid_t now = ::getppid(); now != parent && now != 0) ::_exit(1);
  try {
    work();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "in the child: %s\n", error.what());
    ::_exit(1);
  }
  ::_exit(0);
}

// Whether `check` holds in a child.
template <std::predicate Check>
bool holds_in_child(Check&& check) {
  const pid_t child = fork_child([&] {
    ::alarm(100);  // who becomes another user no longer dies with us
    ::_exit(check() ? 0 : 1);
  });
  int status = -1;
  ::waitpid(child, &status, 0);
  return status == 0;
}

}  // namespace tensorbus::os
