// tensorbus plan: what moving tensors between two layouts costs, without moving any.
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <sstream>

#include "os/io/fd.h"
#include "plan/report/model.h"
#include "plan/report/summary.h"
#include "plan/report/svg.h"
#include "program/commands.h"
#include "program/terminal_bar.h"
#include "tensorbus/status.h"

namespace tensorbus::program {
namespace {

struct PlanOptions {
  std::string source;
  std::string target;
  std::string shape;
  std::string dtype = "float32";
  std::string target_dtype;
  std::string model;
  std::string svg;
  double link = 0;
  bool json = false;
};

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  if (!(content << file.rdbuf())) os::throw_errno("cannot read " + path);
  return content.str();
}

void write_file(const std::string& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary);
  if (!(file << content) || !file.flush()) os::throw_errno("cannot write " + path);
}

plan::Model model_of(const PlanOptions& options) {
  const auto layout = [](const std::string& text) {
    return text.empty() ? std::optional<Layout>() : parse_layout(text);
  };
  const plan::ModelDefaults defaults{layout(options.source), layout(options.target),
                                     parse_dtype(options.dtype)};
  if (!options.model.empty()) return plan::parse_model(read_file(options.model), defaults);

  if (!defaults.source || !defaults.target || options.shape.empty()) {
    throw Error(Code::invalid_argument,
                "give --source, --target and --shape, or --model (see tensorbus plan --help)");
  }
  const Dtype target =
      options.target_dtype.empty() ? defaults.dtype : parse_dtype(options.target_dtype);
  return {{"tensor", plan::make(*defaults.source, *defaults.target, parse_shape(options.shape),
                                {defaults.dtype, target})}};
}

int run_plan(const PlanOptions& options) {
  const plan::Model model = model_of(options);
  plan::Summary summary;
  {
    TerminalBar bar("plan");
    summary = plan::summarise(model, std::ref(bar));
  }
  if (!options.svg.empty()) write_file(options.svg, plan::to_svg(model, summary));
  const double link = options.link * 1e9;
  std::cout << (options.json ? plan::to_json(model, summary, link) + "\n"
                             : plan::to_table(model, summary, link));
  return exit_ok;
}

constexpr const char* footer = R"(Layouts are SHAPE:P,...[@ranks], one P per dimension of the mesh:
  R            replicated
  S<d>         sharded over tensor dimension d (negative: from the end)
  SS<d>/<k>    strided shard with split factor k
  P[.op]       partial values; op is sum (default), avg, max, min, product. Source only.
Ranks are 0, 1, ... or a list like @8-11,4.

Examples:
  tensorbus plan --source 4x2:S0,S1 --target 8:S1 --shape 8192x8192 --dtype bf16
  tensorbus plan --source 2x4:R,S0 --target 2:S1@8,9 --shape 4096x4096 --svg plan.svg
  tensorbus plan --model model.json --source 64:S0 --target 8:S1 --link 25 --json

A model is a JSON list of {"name": "w", "shape": [8192, 512], "dtype": "bfloat16",
"target_dtype": "float32", "source": "4x2:S0,S1", "target": "8:S1"}; what a tensor leaves out comes
from the options.)";

}  // namespace

void add_plan(CLI::App& app, Run& run) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command =
      app.add_subcommand("plan", "Show who would read what from whom, and what it costs");
  command->add_option("--source", options->source, "Layout of the source, e.g. 4x2:S0,S1");
  command->add_option("--target", options->target, "Layout of the target, e.g. 8:S1");
  command->add_option("--shape", options->shape, "Global shape, e.g. 8192x8192");
  command->add_option("--dtype", options->dtype, "Type of the source tensor")
      ->capture_default_str();
  command->add_option("--target-dtype", options->target_dtype, "Type of the target, if another");
  command->add_option("--model", options->model, "JSON list of tensors, instead of --shape")
      ->type_name("FILE");
  command->add_option("--link", options->link, "Speed of each rank's link; gives a time")
      ->type_name("GB/s")
      ->check(positive_number());
  command->add_option("--svg", options->svg, "Draw who sends what to whom")->type_name("FILE");
  command->add_flag("--json", options->json, "Print JSON instead of a table");
  command->footer(footer);
  command->callback([options, &run] { run = [options] { return run_plan(*options); }; });
}

}  // namespace tensorbus::program
