#include "wire/message.h"

#include <gtest/gtest.h>

#include "wire/testing/random.h"

namespace tensorbus::wire {
namespace {

enum class Colour : std::uint8_t { red, green, blue };
constexpr Colour last_of(Colour) { return Colour::blue; }
std::string_view to_string(Colour colour) {
  return colour == Colour::red ? "red" : colour == Colour::green ? "green" : "blue";
}

struct Point {
  std::int64_t x = 0;
  std::int16_t y = 0;
  friend bool operator==(const Point&, const Point&) = default;
};
template <typename Archive>
void fields(Archive& a, Point& point) {
  a.number("x", point.x, -5, 5);
  a("y", point.y);
}

struct Nothing {
  friend bool operator==(const Nothing&, const Nothing&) = default;
};
template <typename Archive>
void fields(Archive&, Nothing&) {}

using Shape = std::variant<Nothing, Point>;
constexpr std::array<std::string_view, 2> kinds_of(const Shape*) { return {"nothing", "point"}; }

struct Everything {
  bool flag = false;
  std::uint64_t number = 0;
  Colour colour = Colour::red;
  std::string text;
  std::string bytes;
  std::string why;
  std::array<char, 4> id{};
  std::optional<Point> point;
  std::vector<std::int64_t> numbers;
  std::vector<Point> points;
  std::map<std::string, std::vector<Colour>> colours;
  Shape shape;
  Status status;
  friend bool operator==(const Everything&, const Everything&) = default;
};
constexpr Title title_of(const Everything*) { return {"thing", 7}; }
template <typename Archive>
void fields(Archive& a, Everything& thing) {
  a("flag", thing.flag);
  a("number", thing.number);
  a("colour", thing.colour);
  a.text("text", thing.text, 400);
  a.bytes("bytes", thing.bytes);
  a.message("why", thing.why, 300);
  a("id", thing.id);
  a("point", thing.point);
  a.list("numbers", thing.numbers, 3);
  a("points", thing.points);
  a("colours", thing.colours);
  a("shape", thing.shape);
  a("status", thing.status);
}

template <typename T>
std::string refusal(const std::string& bytes) {
  try {
    read<T>(bytes);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::invalid_argument);
    return error.what();
  }
  return "none";
}

// Of the byte after those that the title takes.
std::string with_byte(std::size_t at, char byte) {
  std::string bytes = write(Everything{});
  bytes[std::string_view("tensorbus thing.").size() + at] = byte;
  return bytes;
}

TEST(Message, OfAnythingComesBackAndWhatIsDamagedIsRefused) { expect_codec<Everything>(); }

TEST(Message, OfAnotherKindOrVersionSaysSo) {
  EXPECT_EQ(refusal<Everything>("nonsense"), "this is not a thing: it was made by something else");
  std::string bytes = write(Everything{});
  ++bytes[std::string_view("tensorbus thing").size()];
  EXPECT_EQ(refusal<Everything>(bytes),
            "malformed thing: its version is 8, ours is 7; use the same release of tensorbus "
            "everywhere");
}

TEST(Message, ValuesThatDoNotExistAreRefusedByTheNameOfTheirField) {
  EXPECT_EQ(refusal<Everything>(with_byte(0, 2)),
            "malformed thing: flag: there is no value or kind 2");
  EXPECT_EQ(refusal<Everything>(with_byte(9, 3)),
            "malformed thing: colour: there is no value or kind 3");
  const std::string kind = write(Everything{});
  std::string changed = kind;
  changed[kind.size() - 3] = 2;  // before a code and an empty message
  EXPECT_EQ(refusal<Everything>(changed), "malformed thing: shape: there is no value or kind 2");
  Everything far;
  far.point = Point{6, 0};
  EXPECT_EQ(refusal<Everything>(write(far)), "malformed thing: x: it cannot be 6");
}

TEST(Message, LimitsHoldAndReasonsAreCutToTheirs) {
  Everything thing;
  thing.text = std::string(400, 'x');
  thing.why = std::string(1000, 'y');
  thing.numbers = {1, 2, 3};
  const auto again = read<Everything>(write(thing));
  EXPECT_EQ(again.text, thing.text);
  EXPECT_EQ(again.why, thing.why.substr(0, 300));
  thing.numbers.push_back(4);
  EXPECT_EQ(refusal<Everything>(write(thing)),
            "malformed thing: numbers: 4 are too many; at most 3 are possible");
  thing.numbers.clear();
  thing.text += 'x';
  EXPECT_NE(refusal<Everything>(write(thing)).find("text: 401 are too many"), std::string::npos);
}

TEST(Message, AForgedCountTakesNoMemory) {
  // "text" is said to have 4 GiB, "points" to be a million.
  const std::string start = write(Everything{}).substr(0, 26);
  EXPECT_NE(refusal<Everything>(start + std::string(5, '\xff')), "none");
  Reader in(std::string_view("\xff\x40\x42\x0f\x00", 5));
  std::vector<Point> points;
  EXPECT_THROW(in.take(points), Error);
  EXPECT_EQ(points.capacity(), 0U);
}

TEST(Message, AKeyThatComesTwiceIsRefused) {
  std::map<std::int64_t, bool> map;
  const std::string twice = '\2' + std::string(8, '\1') + '\0' + std::string(8, '\1') + '\1';
  Reader in(twice);
  EXPECT_THROW(in.take(map), Error);
}

TEST(Message, IsPrintedForPeople) {
  Everything thing;
  thing.text = "a \"b\"\n";
  thing.bytes = std::string("\0\xff", 2);
  thing.why = "why";
  thing.point = Point{1, -2};
  thing.numbers = {1, 2};
  thing.points = {{3, 4}};
  thing.colours = {{"k", {Colour::green, Colour::blue}}};
  thing.shape = Point{5, 6};
  EXPECT_EQ(print(thing),
            "flag: no\n"
            "number: 0\n"
            "colour: red\n"
            "text: \"a \\\"b\\\"\\x0a\"\n"
            "bytes: 2 bytes 00ff\n"
            "why: \"why\"\n"
            "id: 00000000\n"
            "point:\n"
            "  x: 1\n"
            "  y: -2\n"
            "numbers: [1, 2]\n"
            "points:\n"
            "  0:\n"
            "    x: 3\n"
            "    y: 4\n"
            "colours:\n"
            "  \"k\": [green, blue]\n"
            "shape: point\n"
            "  x: 5\n"
            "  y: 6\n"
            "status:\n"
            "  code: ok\n"
            "  message: \"\"\n");
}

struct Letter {
  std::uint8_t number = 0;
  Sealed<Everything> inside;
  friend bool operator==(const Letter&, const Letter&) = default;
};
constexpr Title title_of(const Letter*) { return {"letter"}; }
template <typename Archive>
void fields(Archive& a, Letter& letter) {
  a("number", letter.number);
  a("inside", letter.inside);
}

TEST(Message, WhatIsSealedIsWrittenInPlaceAndOpenedLater) {
  Everything thing;
  thing.text = "x";
  const Letter letter{3, Sealed<Everything>(thing)};
  const auto came = read<Letter>(write(letter));
  EXPECT_EQ(came.number, 3);
  EXPECT_EQ(came.inside.bytes(), write(thing));
  EXPECT_EQ(came.inside.open(), thing);
  EXPECT_EQ(write(came), write(letter));
  EXPECT_THROW(read<Letter>(write(Letter{3, std::string("nonsense")})).inside.open(), Error);
}

}  // namespace
}  // namespace tensorbus::wire
