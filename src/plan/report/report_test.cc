#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/testing/refusal.h"
#include "plan/report/model.h"
#include "plan/report/summary.h"
#include "plan/report/svg.h"
#include "tensorbus/status.h"

namespace tensorbus::plan {
namespace {

using testing::HasSubstr;

Model one_tensor(const char* source, const char* target, Shape shape) {
  return {{"w", make(parse_layout(source), parse_layout(target), std::move(shape),
                     {Dtype::float32, Dtype::float32})}};
}

std::size_t count(const std::string& text, std::string_view word) {
  std::size_t found = 0;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    ++found;
  }
  return found;
}

TEST(Summary, CountsWhatEveryRankMoves) {
  const Summary summary = summarise(one_tensor("2:S0", "3:S0", {6}));
  EXPECT_EQ(summary.moved_bytes, 24);
  EXPECT_EQ(summary.tensor_bytes, 24);
  EXPECT_EQ(summary.pieces, 4U);
  EXPECT_EQ(summary.runs, 4U);
  EXPECT_EQ(summary.sources.at(0).peers, 2U);
  EXPECT_EQ(summary.targets.at(1).peers, 2U);
  EXPECT_EQ(summary.bytes_between.at({0, 1}), 4);
  EXPECT_DOUBLE_EQ(imbalance(summary.sources), 1.0);
  EXPECT_DOUBLE_EQ(seconds_over(summary, 12), 1.0);
}

TEST(Summary, AReductionMovesWhatEveryMemberSends) {
  const Summary summary = summarise(one_tensor("3:P", "1:R", {4}));
  EXPECT_EQ(summary.moved_bytes, 3 * 16);
  EXPECT_EQ(summary.pieces, 1U);
  EXPECT_EQ(summary.targets.at(0).peers, 3U);
}

TEST(Summary, RanksWithNothingToMoveAreListed) {
  const Summary summary = summarise(one_tensor("4:R", "1:R", {4}));
  EXPECT_EQ(summary.sources.size(), 4U);
  EXPECT_EQ(summary.sources.at(3).bytes, 0);
  EXPECT_DOUBLE_EQ(imbalance(summary.sources), 4.0);
  EXPECT_DOUBLE_EQ(imbalance(summarise(one_tensor("1:R", "1:R", {0})).sources), 0.0);
}

TEST(Model, TakesWhatTensorsLeaveOutFromTheDefaults) {
  const ModelDefaults defaults{parse_layout("2:S0"), parse_layout("2:R"), Dtype::bfloat16};
  const Model model = parse_model(R"([{"name": "a", "shape": [4, 2]},
      {"name": "b", "shape": "8", "dtype": "f32", "source": "4:S0", "target": "1:R"}])",
                                  defaults);
  ASSERT_EQ(model.size(), 2U);
  EXPECT_EQ(model[0].plan.shape(), (Shape{4, 2}));
  EXPECT_EQ(model[0].plan.types().source, Dtype::bfloat16);
  EXPECT_EQ(model[1].plan.types().target, Dtype::float32);
  EXPECT_EQ(model[1].plan.source(), parse_layout("4:S0"));
  EXPECT_EQ(summarise(model).tensors, 2U);
}

TEST(Model, ErrorsNameTheTensor) {
  const auto refused = [](const char* text) { return refusal([&] { parse_model(text, {}); }); };
  EXPECT_THAT(refused("[{"), HasSubstr("not JSON: parse error at line 1"));
  EXPECT_THAT(refused("{}"), HasSubstr("not a JSON list"));
  EXPECT_THAT(refused("[1]"), HasSubstr("tensor 0 of the model: it is no JSON object"));
  EXPECT_THAT(refused(R"([{"name": "a"}])"), HasSubstr("it has no \"shape\""));
  EXPECT_THAT(refused(R"([{"name": "a", "shape": [4], "tpye": 1}])"),
              HasSubstr("unknown field \"tpye\""));
  EXPECT_THAT(refused(R"([{"name": 1, "shape": [4], "source": "1:R", "target": "1:R"}])"),
              HasSubstr("type must be string"));
  EXPECT_THAT(refused(R"([{"name": "a", "shape": [4]}])"), HasSubstr("no source layout"));
  EXPECT_THAT(refused(R"([{"name": "a", "shape": [4], "source": "1:R", "target": "1:X"}])"),
              HasSubstr("tensor 0 of the model: layout"));
  EXPECT_THAT(refused(R"([{"name": "a", "shape": "q", "source": "1:R", "target": "1:R"}])"),
              HasSubstr("\"q\""));
}

TEST(Report, JsonHoldsThePiecesOfOneTensor) {
  const Model model = one_tensor("2x2:P,S0", "2:R", {8});
  const auto report = nlohmann::json::parse(to_json(model, summarise(model), 1e9));
  const auto& pieces = report.at("tensors").at(0).at("pieces");
  ASSERT_EQ(pieces.size(), 4U);
  EXPECT_EQ(pieces[0].at("sources"), (std::vector<Rank>{0, 2}));
  EXPECT_EQ(pieces[0].at("folds").at(0).at("op"), "sum");
  EXPECT_TRUE(report.contains("seconds"));
}

TEST(Report, APictureHasABandForEveryPairThatTalks) {
  const Model model = one_tensor("4x2:S0,S1", "8:S1", {64, 64});
  const Summary summary = summarise(model);
  EXPECT_EQ(count(to_svg(model, summary), "<path"), summary.bytes_between.size());
}

TEST(Report, ManyRanksAreDrawnAsGroups) {
  const Model model = one_tensor("1024:S0", "512:S0", {4096});
  const std::string picture = to_svg(model, summarise(model));
  EXPECT_LE(count(picture, "<path"), 64U);
  EXPECT_THAT(picture, HasSubstr("source 0..31"));
}

}  // namespace
}  // namespace tensorbus::plan
