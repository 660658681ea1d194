// A line at a terminal that shows how far long work has come; gone when the work is done. Nothing
// where the standard error is no terminal, nor while the work is short.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <iostream>
#include <string>
#include <utility>

#include "base/clock.h"

namespace tensorbus::program {

class TerminalBar {
 public:
  explicit TerminalBar(std::string what)
      : what_(std::move(what)), terminal_(::isatty(STDERR_FILENO) != 0) {}
  ~TerminalBar() {
    if (drawn_) std::cerr << "\r\x1b[2K" << std::flush;
  }
  TerminalBar(const TerminalBar&) = delete;
  TerminalBar& operator=(const TerminalBar&) = delete;

  void operator()(std::size_t done, std::size_t total) {
    if (!terminal_ || total == 0 || now() < next_) return;
    constexpr std::size_t width = 28;
    const std::size_t filled = width * done / total;
    std::cerr << fmt::format("\r{} [{:#<{}}{:.<{}}] {:3} %", what_, "", filled, "", width - filled,
                             100 * done / total)
              << std::flush;
    drawn_ = true;
    next_ = now() + std::chrono::milliseconds(100);
  }

 private:
  const std::string what_;
  const bool terminal_;
  bool drawn_ = false;
  TimePoint next_ = now() + std::chrono::milliseconds(300);  // what is shorter needs no bar
};

}  // namespace tensorbus::program
