#include "observe/text.h"

#include <gtest/gtest.h>

namespace tensorbus::observe {
namespace {

TEST(Text, WhatMovesTheCursorIsNotPrinted) {
  EXPECT_EQ(printable("policy"), "policy");
  EXPECT_EQ(printable("\x1b[2Jpolicy\r\n"), "?[2Jpolicy??");
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J"),
            "?2J");
  EXPECT_EQ(printable("Gewichte \xc3\xbc"), "Gewichte \xc3\xbc");
  EXPECT_EQ(printable("\xe2\x80\xae"
                      "txt"),
            "?txt");
  EXPECT_EQ(printable("\xff\xc0\xaf"), "???");
}

TEST(Text, JsonIsValidWhateverItIsOf) {
  EXPECT_EQ(to_json_string("a\"b\\c\n"), R"("a\"b\\c\u000a")");
  EXPECT_EQ(to_json_string("\xc3\xbc"), "\"\xc3\xbc\"");
  EXPECT_EQ(to_json_string("\xc3"), "\"\xef\xbf\xbd\"");
  EXPECT_EQ(to_json_string("\xed\xa0\x80"), "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");
}

TEST(Text, ACutIsBetweenCharacters) {
  EXPECT_EQ(cut_text("abc", 3), "abc");
  EXPECT_EQ(cut_text("a\xc3\xbc", 2), "a");
  EXPECT_EQ(cut_text("\xf0\x9f\x98\x80", 3), "");
  EXPECT_EQ(columns_of("a\xc3\xbc"), 2U);
}

}  // namespace
}  // namespace tensorbus::observe
