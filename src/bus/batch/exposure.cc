#include "bus/batch/exposure.h"

#include <algorithm>

#include "bus/round/fold.h"

namespace tensorbus::bus {
namespace {

// What the tensor of a part is narrowed to on its way, or its own type.
Dtype narrowed(const plan::Stream& stream, const plan::Part& part) {
  const bool floats = is_floating_point(part.types.source) && is_floating_point(part.wire);
  return floats && !stream.source.reduces() ? part.wire : part.types.source;
}

}  // namespace

void Exposure::set_staged(std::vector<bool> items) {
  staged_ = std::move(items);
  wanted_.reset();
}

bool Exposure::stages() const noexcept { return std::ranges::find(staged_, true) != staged_.end(); }

bool Exposure::is_bare(const Loan& loan) const {
  for (std::size_t item = 0; item < staged_.size(); ++item) {
    const bool has_elements = element_count(self_.record.tensors[item].shape) > 0;
    if (staged_[item] && has_elements && loan.tensors()[item].empty()) return true;
  }
  return false;
}

void Exposure::begin(const Group& group) {
  end();
  order_ = source_order(group, self_.record);
  now_ = expose(self_.loan);
}

void Exposure::end() noexcept {
  now_ = {};
  replaced_.clear();
  readings_.clear();
  wanted_.reset();
}

Exposure::Exposed Exposure::expose(const std::shared_ptr<Loan>& loan) const {
  return {loan, self_.context.fabric.expose(ordered(order_, loan->tensors()), loan->gate(),
                                            loan->lender())};
}

Source::Memory Exposure::add(std::uint64_t serial, Reading reading, const Source& source) {
  Source::Memory memory = serve(reading, source);
  if (stages()) {
    readings_[serial] = std::move(reading);
    wanted_.reset();
  }
  return memory;
}

Source::Memory Exposure::serve(const Reading& reading, const Source& source) {
  Source::Memory memory{now_.region->number()};
  if (is_bare(*self_.loan)) return memory;
  for (const auto& [number, stream] : reading.streams) {
    auto stored = stages() ? fabric::stream_from(now_.region->forms(), stream) : stream;
    if (!stored) return {now_.region->number(), false, {}};
    if (reading.verify != Verify::off) {
      memory.digests.push_back(digest_of(*stored, reading.verify, source));
    }
    now_.region->serve(number, *std::move(stored));
  }
  return memory;
}

std::shared_ptr<Digest> Exposure::digest_of(const plan::Stream& stream, Verify verify,
                                            const Source& source) const {
  const plan::Stream own = stream.source.reduces() ? member_stream(stream, self_.key.rank) : stream;
  if (auto known = source.find_digest(own, verify)) return known;
  return std::make_shared<Digest>(own, Digest::End::source, verify, self_.ordered(order_),
                                  self_.loan->lender(), &self_.context.copiers);
}

bool Exposure::suits(const Loan& loan, const Source& source) const {
  if (is_bare(loan)) return true;
  fabric::Forms forms;
  for (const TensorView& view : ordered(order_, loan.tensors())) {
    forms.push_back(fabric::form_of(view));
  }
  return std::ranges::all_of(readings_, [&](const auto& entry) {
    const auto& [serial, reading] = entry;
    if (!source.knows(serial) || !source.has_joined(serial)) return true;
    return std::ranges::all_of(reading.streams, [&](const auto& stream) {
      return fabric::stream_from(forms, stream.second).has_value();
    });
  });
}

void Exposure::replace(std::shared_ptr<Loan> loan, std::vector<bool> staged, Source* source) {
  if (source != nullptr) {
    Exposed next = expose(loan);
    replaced_.push_back(std::exchange(now_, std::move(next)));
  }
  self_.loan = std::move(loan);
  set_staged(std::move(staged));
  if (source == nullptr) return;
  source->forget_digests();
  std::erase_if(readings_, [&](const auto& each) { return !source->knows(each.first); });
  for (const auto& [serial, reading] : readings_) source->restage(serial, serve(reading, *source));
}

const std::vector<Dtype>& Exposure::wanted(const Source& source) {
  const std::size_t gone =
      std::erase_if(readings_, [&](const auto& each) { return !source.knows(each.first); });
  if (gone > 0 || !wanted_) wanted_ = with(common_types());
  return *wanted_;
}

std::vector<Dtype> Exposure::stored() const { return with({}); }

std::map<std::size_t, Dtype> Exposure::common_types() const {
  std::map<std::size_t, Dtype> found;
  for (const auto& [serial, reading] : readings_) {
    for (const auto& [number, stream] : reading.streams) {
      for (const plan::Part& part : stream.parts) {
        const auto& item = order_[part.source_tensor];
        if (!item || !staged_[*item]) continue;
        const Dtype type = narrowed(stream, part);
        const auto [known, first] = found.emplace(*item, type);
        if (known->second != type) known->second = part.types.source;
      }
    }
  }
  return found;
}

std::vector<Dtype> Exposure::with(const std::map<std::size_t, Dtype>& common) const {
  std::vector<Dtype> own;
  std::vector<Dtype> types;
  for (std::size_t item = 0; item < self_.record.tensors.size(); ++item) {
    own.push_back(self_.record.tensors[item].dtype);
    const TensorView& memory = self_.loan->tensors()[item];
    types.push_back(staged_[item] && !memory.empty() ? memory.dtype : own.back());
  }
  for (const auto& [item, type] : common) types[item] = type;
  return types == own ? std::vector<Dtype>() : types;
}

}  // namespace tensorbus::bus
