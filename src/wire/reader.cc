#include "wire/reader.h"

#include "wire/message.h"

namespace tensorbus::wire {
namespace {

std::string with_article(std::string_view what) {
  const bool vowel = std::string_view("aeiou").find(what.front()) != std::string_view::npos;
  return (vowel ? "an " : "a ") + std::string(what);
}

}  // namespace

void Reader::begin(const Title& title) {
  if (title.version == 0) return;
  const std::string mark = "tensorbus " + std::string(title.what);
  if (in_.left() <= mark.size() || in_.raw(mark.size()) != mark) {
    throw NotThis("this is not " + with_article(title.what) + ": it was made by something else");
  }
  const auto version = in_.integer<std::uint8_t>();
  if (version != title.version) {
    throw Error(Code::invalid_argument, "its version is " + std::to_string(version) + ", ours is " +
                                            std::to_string(title.version) +
                                            "; use the same release of tensorbus everywhere");
  }
}

std::size_t Reader::count(std::size_t most, std::size_t bytes_each) {
  std::size_t count = in_.integer<std::uint8_t>();
  if (count == 255) count = in_.integer<std::uint32_t>();
  if (count > most) {
    refuse(std::to_string(count) + " are too many; at most " + std::to_string(most) +
           " are possible");
  }
  if (count > in_.left() / bytes_each) refuse("it is cut short");
  return count;
}

std::uint8_t Reader::taken_byte(std::size_t values) {
  const auto value = in_.integer<std::uint8_t>();
  if (value >= values) refuse("there is no value or kind " + std::to_string(value));
  return value;
}

void Reader::refuse(const std::string& why) const {
  throw Error(Code::invalid_argument, *field_ == '\0' ? why : std::string(field_) + ": " + why);
}

void throw_malformed(std::string_view what) {
  try {
    throw;
  } catch (const NotThis&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(Code::invalid_argument, "malformed " + std::string(what) + ": " + error.what());
  }
}

}  // namespace tensorbus::wire
