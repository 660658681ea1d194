// A ring whose other side writes anything anywhere, between any two steps of ours.
#include <cstring>
#include <vector>

#include "fabric/conformance/dice.h"
#include "fabric/shm/ring.h"
#include "tensorbus/status.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  using namespace tensorbus::fabric;
  constexpr std::size_t capacity = 1024;
  constexpr std::size_t total = ring_bytes(capacity);
  alignas(64) static std::byte memory[total];
  std::memset(memory, 0, total);
  RingProducer producer(memory, capacity);
  RingConsumer consumer(memory, capacity);
  RingMessage message;
  Dice dice({reinterpret_cast<const char*>(data), size});
  try {
    while (!dice.used_up()) {
      switch (dice.below(4)) {
        case 0: {
          const std::string body = dice.text(200);
          producer.push(dice.byte(), std::as_bytes(std::span(body)));
          break;
        }
        case 1:
          consumer.pop(message);
          break;
        case 2:
          if (consumer.sleep()) consumer.awake();
          producer.must_wake();
          consumer.must_wake();
          break;
        default: {
          const std::uint64_t value = dice.number();
          const std::size_t at = (dice.below(2) == 0 ? dice.below(sizeof(RingHeader))
                                                     : dice.number() * 256 + dice.byte()) %
                                 (total - sizeof value);
          std::memcpy(memory + at, &value, sizeof value);
        }
      }
    }
  } catch (const tensorbus::Error&) {
    // Broken for good.
  }
  return 0;
}
