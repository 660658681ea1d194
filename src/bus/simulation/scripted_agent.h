// An agent on a thread that does with each event what the test says.
#pragma once

#include <poll.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "bus/channel/channel.h"

namespace tensorbus::bus {

class ScriptedAgent {
 public:
  using Script = std::function<void(Channel&, const ChannelEvent&)>;

  ScriptedAgent(std::unique_ptr<Channel> channel, Script script)
      : channel_(std::move(channel)), script_(std::move(script)), thread_([this] { run(); }) {}
  ~ScriptedAgent() { stop(); }
  void stop() {
    stopped_ = true;
    if (thread_.joinable()) thread_.join();
    channel_.reset();
  }

 private:
  void run() {
    while (!stopped_) {
      for (const ChannelEvent& event : channel_->poll()) script_(*channel_, event);
      if (!channel_->arm()) continue;
      pollfd descriptor{channel_->fd(), POLLIN, 0};
      ::poll(&descriptor, 1, 10);
    }
  }

  std::unique_ptr<Channel> channel_;
  Script script_;
  std::atomic<bool> stopped_{false};
  std::thread thread_;
};

// A folder for an agent's files, gone with its owner.
class Folder {
 public:
  Folder() {
    std::string name = std::filesystem::temp_directory_path() / "tensorbus-bus-XXXXXX";
    path_ = ::mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string file(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace tensorbus::bus
