// Threads that carry out the pieces of a copy together with their caller.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

#include "os/process/fork.h"

namespace tensorbus::copy {

inline constexpr std::size_t most_threads = 8;

// Any thread may call. A piece moves at most a chunk of bytes between places that stay until run()
// returns; a piece waits for nothing and touches nothing that another piece of its run writes.
class Crew {
 public:
  // Counts whoever calls run(). With 1 a crew has no thread, and a run is a loop. Threads are
  // started by the first run that needs them.
  explicit Crew(std::size_t size = 1);
  // Joins the threads. Nobody may be in run().
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  std::size_t size() const noexcept { return size_.load(std::memory_order_relaxed); }
  // Holds from the next run on. Brought to what is allowed: 1 to most_threads.
  void resize(std::size_t size) noexcept;

  // Ends the threads, unless they are at work. A later run starts them anew.
  void dismiss() noexcept;

  // Calls piece(i) for every i below `count`, each once, in any order and on any of the threads;
  // returns when the last one is over. An exception is thrown on to the caller when all pieces that
  // had begun are over; after an exception no other piece begins. A caller who finds the crew at
  // work for another works alone: nobody waits for another's copy.
  template <typename Piece>
  void run(std::size_t count, const Piece& piece) {
    if (count < 2 || size() == 1 || os::fork_generation() != generation_) {
      for (std::size_t i = 0; i < count; ++i) piece(i);
      return;
    }
    share({[](const void* each, std::size_t i) { (*static_cast<const Piece*>(each))(i); }, &piece,
           count});
  }

 private:
  struct Pieces {
    void (*call)(const void* piece, std::size_t index);
    const void* piece;
    std::size_t count;
  };
  class Work;
  class Threads;

  void share(const Pieces& pieces);

  std::atomic<std::size_t> size_;
  std::atomic<bool> taken_ = false;  // by a caller of run(), who alone touches threads_
  // Lost in a forked child: what waits there waits for ever.
  std::unique_ptr<Threads> threads_;
  const unsigned generation_ = os::fork_generation();
};

}  // namespace tensorbus::copy
