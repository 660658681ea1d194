// What every backend checks before anything is sent.
#pragma once

#include <span>
#include <string_view>

#include "tensorbus/store.h"

namespace tensorbus::store {

// Throw Error(invalid_argument) that says which limit was passed.
void check_key(std::string_view key);
void check_keys(std::span<const std::string> keys);
void check_entries(std::span<const Entry> entries, std::size_t largest_value);
void check_condition(const Condition& condition);
void check_barrier(std::string_view name, std::size_t count);
void check_time_to_live(Duration time_to_live);

}  // namespace tensorbus::store
