// Attention on the workers, the feed-forward network on a server, in C++ and without any variables
// of the environment. For simplicity the nodes are threads; in processes of their own they would be
// told the same, with the port that the scheduler serves on.
//
//   c++ -std=c++20 attention_ffn.cc -ltensorbus -pthread && ./a.out
#include <tensorbus/push_pull.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

namespace {

using namespace tensorbus;
using namespace tensorbus::push_pull;

constexpr std::int64_t tokens = 8;
constexpr std::int64_t width = 64;
constexpr int steps = 20;
constexpr int workers = 2;

// Rows of floats, dense.
struct Matrix {
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
  std::vector<float> values;

  Matrix(std::int64_t rows, std::int64_t columns)
      : shape{rows, columns},
        strides{columns, 1},
        values(static_cast<std::size_t>(rows * columns)) {}

  TensorView view() {
    return {reinterpret_cast<std::byte*>(values.data()), Dtype::float32, shape, strides};
  }
};

Matrix random(std::int64_t rows, std::int64_t columns, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0F, 1.0F / std::sqrt(static_cast<float>(rows)));
  Matrix matrix(rows, columns);
  for (float& value : matrix.values) value = normal(generator);
  return matrix;
}

void multiply(const float* left, std::int64_t rows, const Matrix& right, Matrix& product) {
  const std::int64_t inner = right.shape[0];
  const std::int64_t columns = right.shape[1];
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      float sum = 0;
      for (std::int64_t k = 0; k < inner; ++k) {
        sum += left[row * inner + k] * right.values[static_cast<std::size_t>(k * columns + column)];
      }
      product.values[static_cast<std::size_t>(row * columns + column)] = sum;
    }
  }
}

// The layer that the server has.
void feed_forward(const float* states, std::int64_t rows, Matrix& answer) {
  static const Matrix up = random(width, 4 * width, 1);
  static const Matrix down = random(4 * width, width, 2);
  Matrix hidden(rows, 4 * width);
  multiply(states, rows, up, hidden);
  for (float& value : hidden.values) value = std::max(value, 0.0F);
  multiply(hidden.values.data(), rows, down, answer);
}

void serve(const NodeOptions& options) {
  Server server(options);
  std::vector<Request> batch;
  for (int step = 0; step < steps; ++step) {
    server.get_batch(batch, {}, Deadline::after(std::chrono::seconds(60)));
    for (const Request& request : batch) {
      const TensorView& states = request.tensors[0].tensor;
      Matrix answer(states.shape[0], width);
      feed_forward(reinterpret_cast<const float*>(states.data), states.shape[0], answer);
      const TensorView view = answer.view();
      server.respond(request.handler, {&view, 1});
    }
  }
  server.stop(Deadline::after(std::chrono::seconds(60)));
}

void work(NodeOptions options, int rank) {
  options.rank = rank;
  Worker worker(options);
  Matrix states = random(tokens, width, static_cast<unsigned>(100 + rank));
  Matrix answer(tokens, width);
  Matrix expected(tokens, width);
  const Item push{0, states.view()};
  const Item pull{1, answer.view()};
  Handler handler{};
  for (int step = 0; step < steps; ++step) {
    handler = worker.push_pull({&push, 1}, {&pull, 1}, Deadline::after(std::chrono::seconds(60)));
    feed_forward(states.values.data(), tokens, expected);
    worker.wait(handler, Deadline::after(std::chrono::seconds(60)));
    if (answer.values != expected.values) {
      std::fprintf(stderr, "worker %d: step %d is wrong\n", rank, step);
      std::exit(1);
    }
    for (std::size_t i = 0; i < states.values.size(); ++i) {
      states.values[i] = std::tanh(states.values[i] + answer.values[i]);
    }
  }
  const Trace trace = worker.trace(handler);
  std::printf("worker %d: %d steps are right; the last took %.0f us\n", rank, steps,
              static_cast<double>(trace[7] - trace[0]) / 1000);
  worker.stop(Deadline::after(std::chrono::seconds(60)));
}

}  // namespace

int main() {
  NodeOptions options;
  options.job.workers = workers;
  Scheduler scheduler(options);
  options.job.port = scheduler.port();  // it picked one
  std::vector<std::jthread> nodes;
  nodes.emplace_back([&] { serve(options); });
  for (int rank = 0; rank < workers; ++rank) nodes.emplace_back([&, rank] { work(options, rank); });
  scheduler.wait_for_all(Deadline::after(std::chrono::seconds(60)));
  scheduler.stop(Deadline::after(std::chrono::seconds(60)));
}
