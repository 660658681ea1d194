#include "push_pull/request/slots.h"

#include <gtest/gtest.h>

namespace tensorbus::push_pull {
namespace {

struct Slot {
  std::size_t bytes = 0;
  int name = 0;
};

// proves: P7
TEST(SlotsTest, ASlotHoldsWhatItWasMadeForAndWastesLittle) {
  for (std::size_t bytes = 0; bytes < 100'000; ++bytes) {
    const std::size_t size = slot_size(bytes);
    ASSERT_GE(size, bytes);
    ASSERT_EQ(slot_size(size), size) << "it is a size of its own";
    if (bytes > smallest_slot) {
      ASSERT_LE(size, bytes + bytes / 4 + 1) << bytes;
    }
  }
}

// proves: P7
TEST(SlotsTest, FreeSlotsAreTakenBySizeAndOnce) {
  FreeSlots<Slot> free;
  EXPECT_FALSE(free.take(1));
  std::vector<std::size_t> sizes;
  for (std::size_t bytes = 1; bytes < (std::size_t{1} << 40); bytes += bytes / 16 + 1) {
    if (sizes.empty() || sizes.back() != slot_size(bytes)) sizes.push_back(slot_size(bytes));
  }
  std::size_t idle = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    free.put({sizes[i], static_cast<int>(i)});
    idle += sizes[i];
  }
  EXPECT_EQ(free.idle_bytes(), idle);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const auto slot = free.take(sizes[i]);
    ASSERT_TRUE(slot);
    EXPECT_EQ(slot->name, static_cast<int>(i));
    EXPECT_FALSE(free.take(sizes[i]));
  }
  EXPECT_EQ(free.idle_bytes(), 0U);
}

}  // namespace
}  // namespace tensorbus::push_pull
