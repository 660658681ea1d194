// For tests: a signal to a child of this process.
#pragma once

#include <signal.h>
#include <sys/wait.h>

namespace tensorbus::os {

inline void send_signal(pid_t child, int number) {
  ::kill(child, number);
  // SIGSTOP reaches the threads of a process one by one; its parent is told after the last of them.
  if (number == SIGSTOP) ::waitpid(child, nullptr, WUNTRACED);
}

}  // namespace tensorbus::os
