// tensorbus doctor: what this machine offers to tensorbus, and what is in its way.
#include "program/doctor.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/config.h"
#include "program/commands.h"
#include "tensorbus/status.h"

namespace tensorbus::program {
namespace {

struct DoctorOptions {
  std::string bind;
  std::string ports;
  std::string peer;
  bool json = false;
  bool gpu = false;
};

const char* name_of(Finding::State state) {
  switch (state) {
    case Finding::State::fine:
      return "ok";
    case Finding::State::note:
      return "note";
    case Finding::State::problem:
      break;
  }
  return "problem";
}

std::string from_hex(std::string_view text) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    const auto digit = [&](char c) {
      const std::size_t value = std::string_view("0123456789abcdef").find(c);
      if (value == std::string_view::npos) {
        throw Error(Code::invalid_argument, "--peer is neither a file nor hexadecimal digits");
      }
      return static_cast<int>(value);
    };
    bytes += static_cast<char>(digit(text[i]) * 16 + digit(text[i + 1]));
  }
  return bytes;
}

// The bytes of an address or descriptor: in a file, or as hexadecimal digits.
std::string peer_bytes(const std::string& given) {
  std::ifstream file(given, std::ios::binary);
  if (!file) return from_hex(given);
  return {std::istreambuf_iterator<char>(file), {}};
}

int examine(const DoctorOptions& options) {
  const std::string bind =
      options.bind.empty() ? config::variable("TENSORBUS_BIND").value_or("") : options.bind;
  Findings findings;
  look_at_machine(findings);
  look_at_limits(findings);
  look_at_shared_memory(findings);
  look_at_network(findings, bind, fabric::parse_port_range(options.ports));
  if (!options.peer.empty()) look_at_peer(findings, peer_bytes(options.peer), bind);
  look_at_settings(findings);
  if (options.gpu) look_at_devices(findings);
  std::cout << (options.json ? to_json(findings) + "\n" : to_text(findings));
  const bool ill = std::ranges::any_of(
      findings, [](const Finding& finding) { return finding.state == Finding::State::problem; });
  return ill ? exit_failed : exit_ok;
}

}  // namespace

void look_at_settings(Findings& findings) {
  for (const config::Setting& setting : config::settings()) {
    const std::string name(setting.name);
    const auto value = config::variable(name.c_str());
    const std::string shown = value && setting.secret ? "(set, not shown)" : value.value_or("");
    const std::string fallback =
        setting.fallback.empty() ? "not set" : fmt::format("{} (default)", setting.fallback);
    findings.push_back({"settings", name, value ? shown : fallback});
  }
  for (const std::string& name : config::unknown_variables()) {
    findings.push_back({"settings", name, "set, but unknown", Finding::State::problem,
                        "no setting has this name; see the table in docs/index.md"});
  }
}

std::string to_text(const Findings& findings) {
  std::string text;
  std::string section;
  for (const Finding& finding : findings) {
    if (finding.section != section) {
      text += fmt::format("{}{}\n", section.empty() ? "" : "\n", finding.section);
      section = finding.section;
    }
    text += fmt::format("  {:<8}{:<26}{}\n", name_of(finding.state), finding.name, finding.value);
    if (!finding.advice.empty()) text += fmt::format("  {:<8}  -> {}\n", "", finding.advice);
  }
  const auto problems = std::ranges::count(findings, Finding::State::problem, &Finding::state);
  text += problems == 0 ? "\nNo problems.\n"
                        : fmt::format("\n{} problem{}: see the lines marked so.\n", problems,
                                      problems == 1 ? "" : "s");
  return text;
}

std::string to_json(const Findings& findings) {
  nlohmann::json list = nlohmann::json::array();
  for (const Finding& finding : findings) {
    list.push_back({{"section", finding.section},
                    {"name", finding.name},
                    {"value", finding.value},
                    {"state", name_of(finding.state)},
                    {"advice", finding.advice}});
  }
  // Names of others may hold any bytes.
  return list.dump(1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void add_doctor(CLI::App& app, Run& run) {
  auto options = std::make_shared<DoctorOptions>();
  CLI::App* command =
      app.add_subcommand("doctor", "Look at this machine: limits, UCX, who can be reached and how");
  command->add_option("--bind", options->bind,
                      "Address to listen on for other hosts (default: $TENSORBUS_BIND)");
  command->add_option("--ports", options->ports,
                      "Ports A-B to listen on there (default: $TENSORBUS_PORTS)");
  command
      ->add_option("--peer", options->peer,
                   "Address or descriptor of a peer, as a file or in hexadecimal digits: which "
                   "fabric would serve it, and why not the others")
      ->type_name("FILE|HEX");
  command->add_flag("--gpu", options->gpu,
                    "Load the CUDA driver, too, and check for some seconds what its devices do");
  command->add_flag("--json", options->json, "Print JSON instead of a table");
  command->footer("Exit codes: 0 no problems, 1 problems, 2 usage.");
  command->callback([options, &run] { run = [options] { return examine(*options); }; });
}

}  // namespace tensorbus::program
