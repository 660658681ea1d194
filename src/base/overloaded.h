// std::visit with one function for each kind: a kind that nobody handles does not compile.
#pragma once

#include <concepts>

namespace tensorbus {

template <typename... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <typename... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;  // clang 14 cannot tell by itself

// For a function that treats several kinds alike: [](const OneOf<Join, Leave> auto&) {}.
template <typename Kind, typename... Kinds>
concept OneOf = (std::same_as<Kind, Kinds> || ...);

}  // namespace tensorbus
