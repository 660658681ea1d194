#include "store/common/pattern.h"

#include <fnmatch.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

namespace tensorbus::store {
namespace {

// proves: K5
TEST(Pattern, MatchesAsFnmatchDoes) {
  EXPECT_TRUE(matches("*", ""));
  EXPECT_TRUE(matches("a*", "a/b/c"));
  EXPECT_TRUE(matches("rank/*/ready", "rank/7/ready"));
  EXPECT_TRUE(matches("rank/*/ready", "rank/7/8/ready"));
  EXPECT_TRUE(matches("rank?", "rank7"));
  EXPECT_TRUE(matches("r[a-c]k", "rbk"));
  EXPECT_FALSE(matches("r[!a-c]k", "rbk"));
  EXPECT_TRUE(matches("[]]", "]"));
  EXPECT_TRUE(matches("a[b", "a[b"));
  EXPECT_FALSE(matches("RANK", "rank"));
  EXPECT_FALSE(matches("", "a"));
  EXPECT_TRUE(matches("", ""));
}

TEST(Pattern, AgreesWithTheSystemOnRandomPatterns) {
  std::mt19937 random(7);
  const std::string pattern_alphabet = "ab/*?[]!-";
  const std::string key_alphabet = "ab/-";
  const auto word = [&](const std::string& alphabet, std::size_t longest) {
    std::string made(random() % (longest + 1), ' ');
    for (char& c : made) c = alphabet[random() % alphabet.size()];
    return made;
  };
  int matched = 0;
  for (int i = 0; i < 200'000; ++i) {
    const std::string pattern = word(pattern_alphabet, 7);
    // The system's rule for "[--" and "[a-" differs between C libraries; Python's is ours.
    if (pattern.find('[') != std::string::npos && pattern.find('-') != std::string::npos) continue;
    const std::string key = word(key_alphabet, 6);
    const bool expected = ::fnmatch(pattern.c_str(), key.c_str(), FNM_NOESCAPE) == 0;
    ASSERT_EQ(matches(pattern, key), expected) << pattern << " against " << key;
    ASSERT_EQ(Pattern(pattern).matches(key), expected) << pattern << " against " << key;
    matched += expected;
  }
  EXPECT_GT(matched, 1000);
}

TEST(Pattern, PartsOfCharactersAreNoCharacters) {
  std::mt19937 random(8);
  // An e with an accent is the two bytes in the middle.
  const std::string alphabet = "a*\xC3\xA9?";
  const auto word = [&](std::size_t letters) {
    std::string made(random() % 6, ' ');
    for (char& c : made) c = alphabet[random() % letters];
    return made;
  };
  int matched = 0;
  for (int i = 0; i < 100'000; ++i) {
    const std::string pattern = word(5);
    const std::string key = word(4);
    const bool expected = matches(pattern, key);
    ASSERT_EQ(Pattern(pattern).matches(key), expected) << pattern << " against " << key;
    matched += expected;
  }
  EXPECT_GT(matched, 1000);
  EXPECT_FALSE(Pattern("*\xA9").matches("\xC3\xA9"));
  EXPECT_FALSE(Pattern("\xC3*").matches("\xC3\xA9"));
}

TEST(Pattern, ManyStarsTakeNoExponentialTime) {
  const std::string key(5'000, 'a');
  EXPECT_FALSE(matches("*a*a*a*a*a*a*a*a*a*a*b", key));
}

TEST(Pattern, LiteralPrefixEndsBeforeTheFirstSpecialCharacter) {
  EXPECT_EQ(literal_prefix("rank/*/x"), "rank/");
  EXPECT_EQ(literal_prefix("rank"), "rank");
  EXPECT_EQ(literal_prefix("[a]"), "");
}

}  // namespace
}  // namespace tensorbus::store
