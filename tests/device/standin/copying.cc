#include "copying.h"

#include <array>
#include <cstring>

namespace tensorbus::device::cuda {
namespace {

constexpr int of_issued_targets = 0xDE;

// One end of a copy, as the stand-in sees it.
struct End {
  std::byte* bytes = nullptr;
  bool on_device = false;
  bool pinned = false;
};

struct Move {
  const std::byte* from;
  std::size_t from_pitch;
  std::byte* to;
  std::size_t to_pitch;
  std::size_t width;
  std::size_t height;

  void part(std::size_t first_row, std::size_t end_row, std::size_t begin, std::size_t end) const {
    for (std::size_t row = first_row; row < end_row; ++row) {
      std::memcpy(to + row * to_pitch + begin, from + row * from_pitch + begin, end - begin);
    }
  }
};

Result resolve(Pointer address, std::size_t bytes, End& end) {
  Driver& all = driver();
  const std::lock_guard lock(all.mutex);
  if (all.memory.has(address)) {
    end = {all.memory.shadow(address, bytes), true, true};
    return end.bytes == nullptr ? invalid_value : success;
  }
  const auto data = reinterpret_cast<std::byte*>(address);
  end = {data, false, all.pinned.has(data, bytes)};
  return data == nullptr ? invalid_value : success;
}

void spoil(const Move& move) {
  for (std::size_t row = 0; row < move.height; ++row) {
    std::memset(move.to + row * move.to_pitch, of_issued_targets, move.width);
  }
}

void move_in_halves(const Move& move, const Lane& lane, Dice& dice) {
  const bool by_rows = move.height > 1;
  const std::size_t half = (by_rows ? move.height : move.width) / 2;
  const auto do_half = [&](bool upper) {
    if (by_rows) {
      move.part(upper ? half : 0, upper ? move.height : half, 0, move.width);
    } else {
      move.part(0, 1, upper ? half : 0, upper ? move.width : half);
    }
  };
  const bool upper_first = dice() % 2 == 0;
  do_half(upper_first);
  lane.pause(dice);
  do_half(!upper_first);
}

std::shared_ptr<std::vector<std::byte>> staged(Move& move) {
  auto copy = std::make_shared<std::vector<std::byte>>(move.width * move.height);
  for (std::size_t row = 0; row < move.height; ++row) {
    std::memcpy(copy->data() + row * move.width, move.from + row * move.from_pitch, move.width);
  }
  move.from = copy->data();
  move.from_pitch = move.width;
  return copy;
}

}  // namespace

Result copy(ContextState& context, Stream handle, const Rows& rows) {
  StreamState* stream = stream_of(context, handle);
  if (stream == nullptr) return invalid_handle;
  if (rows.width == 0 || rows.height == 0) return success;
  End from;
  End to;
  const std::size_t steps = rows.height - 1;
  if (const Result refusal = resolve(rows.from, steps * rows.from_pitch + rows.width, from)) {
    return refusal;
  }
  if (const Result refusal = resolve(rows.to, steps * rows.to_pitch + rows.width, to)) {
    return refusal;
  }
  Move move{from.bytes, rows.from_pitch, to.bytes, rows.to_pitch, rows.width, rows.height};
  const bool from_pageable = !from.on_device && !from.pinned;
  const auto kept = from_pageable ? staged(move) : nullptr;
  if (!to.on_device && to.pinned) spoil(move);
  const auto end = enqueue(*stream, [move, kept, lane = stream->lane.get()](Dice& dice) {
    move_in_halves(move, *lane, dice);
  });
  if (!to.on_device && !to.pinned) end->wait();
  return success;
}

}  // namespace tensorbus::device::cuda
