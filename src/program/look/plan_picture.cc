#include "program/look/plan_picture.h"

#include <fmt/format.h>

#include <set>

#include "base/refuse.h"
#include "bus/match/match.h"
#include "plan/report/svg.h"

namespace tensorbus::program {
namespace {

std::shared_ptr<const bus::BatchMember> reader_of(const bus::Catalog& catalog,
                                                  const std::string& batch,
                                                  const std::string& side) {
  for (const auto& [end, members] : catalog.pairs()) {
    if (end.side != side) continue;
    const auto& registered = catalog.registered(batch, end);
    if (!registered.empty()) return registered.begin()->second;
  }
  refuse(fmt::format("side \"{}\" has not registered \"{}\"", side, batch));
}

bus::GroupPtr whole(const bus::GroupFinding& found) {
  if (!found.group) refuse(found.missing);
  return found.group;
}

// Of a shelf: those who fill it, or did.
bus::GroupPtr sources_of(const bus::Catalog& catalog, const std::string& batch,
                         const bus::BatchMember& reader) {
  const std::vector<bus::End> ends = bus::remote_ends(reader);
  for (const std::int64_t generation : catalog.shelved_generations(batch)) {
    const auto found = bus::find_group(catalog.shelved(batch, generation), batch, ends);
    if (found.group) return found.group;
  }
  return whole(bus::find_group(catalog, batch, ends));
}

std::vector<std::string> names_of(const bus::Group& sources) {
  std::vector<std::string> names;
  for (const auto& [end, side] : sources.sides) {
    for (const bus::SideTensor& tensor : sources.tensors(side).of(side.ranks.front())) {
      names.push_back(tensor.name.empty() ? tensor.label : tensor.name);
    }
  }
  return names;
}

// With layouts one rank's plans are those of all; without, each rank has its own.
std::set<Rank> readers_of(const bus::Group& sources, const bus::Group& targets) {
  std::set<Rank> readers;
  for (const auto& [end, side] : targets.sides) {
    const auto facing = sources.sides.find({end.pair, side.remote});
    const bool alike = facing == sources.sides.end() || facing->second.layout ||
                       sources.tensors(facing->second).one_to_one.empty();
    readers.insert(side.ranks.begin(), alike ? side.ranks.begin() + 1 : side.ranks.end());
  }
  return readers;
}

}  // namespace

std::string plan_picture(const bus::Catalog& catalog, const std::string& batch,
                         const std::string& reading_side, const os::Interruption& stop) {
  const auto reader = reader_of(catalog, batch, reading_side);
  const bus::GroupPtr targets = whole(bus::find_group(catalog, batch, reader->ends));
  const bus::GroupPtr sources = sources_of(catalog, batch, *reader);
  const std::vector<std::string> names = names_of(*sources);
  plan::Model model;
  for (const Rank rank : readers_of(*sources, *targets)) {
    if (stop.asked()) throw Error(Code::cancelled, stop.why());
    bus::Passage passage = bus::make_passage(*sources, *targets, rank);
    for (std::size_t at = 0; at < passage.plans.size(); ++at) {
      model.push_back({at < names.size() ? names[at] : "", std::move(passage.plans[at])});
    }
  }
  if (model.empty()) refuse(fmt::format("\"{}\" has no tensors", batch));
  return plan::to_svg(model, plan::summarise(model));
}

}  // namespace tensorbus::program
