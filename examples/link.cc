// A trainer publishes its weights after every step; an engine pulls them when it likes, half of the
// rows, in bfloat16.
//
// Both ranks run here, on threads, to keep it short; in real life each is a process of its own.
//
//   cmake --preset dev && cmake --build build/dev --target link_example &&
//   build/dev/bin/link_example

#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "tensorbus/link.h"

namespace tb = tensorbus;

constexpr std::int64_t rows = 4;
constexpr std::int64_t columns = 2;
constexpr int steps = 3;

tb::Deadline soon() { return tb::Deadline::after(std::chrono::seconds(30)); }

// Its weights are all the number of the step. They may change as soon as publish() returns.
void train(tb::Link& link) {
  std::vector<float> weights(rows * columns);
  const tb::LinkTensor tensor{"w", weights.data(), tb::Dtype::float32, {rows, columns}};
  for (int step = 1; step <= steps; ++step) {
    weights.assign(weights.size(), static_cast<float>(step));
    link.publish("policy", {&tensor, 1}, soon());
  }
}

float widened(std::uint16_t bfloat16) {
  const std::uint32_t bits = static_cast<std::uint32_t>(bfloat16) << 16;
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Fills the lower half of the rows with every version that is there when it asks.
void serve() {
  tb::Bus bus("memory://example", {1});
  tb::Link link = bus.link("engine", "trainer");
  std::vector<std::uint16_t> half(rows / 2 * columns);
  tb::LinkTensor tensor{"w", half.data(), tb::Dtype::bfloat16, {rows / 2, columns}};
  tensor.whole = tb::Shape{rows, columns};
  tensor.start = tb::Shape{rows / 2, 0};
  tb::LinkPull next;
  try {
    while (true) {
      next.newer_than = link.pull("policy", {&tensor, 1}, soon(), next);
      std::printf("the engine has version %d:", static_cast<int>(*next.newer_than));
      for (const std::uint16_t each : half) std::printf(" %g", static_cast<double>(widened(each)));
      std::printf("\n");
    }
  } catch (const tb::EndOfStream& end) {
    std::printf("the stream has ended after version %d\n", static_cast<int>(end.version()));
  }
}

int main() {
  // The store lives as long as somebody is connected to it.
  tb::Bus bus("memory://example", {0});
  tb::Link trainer = bus.link("trainer");
  std::thread engine(serve);
  train(trainer);
  trainer.close(soon());
  // What was published can be pulled while the trainer's bus is there.
  engine.join();
}
