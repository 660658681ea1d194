"""Mistakes in the protocol, as edits of the sources, and which invariants each of them breaks.

Of the round they are the eight simpler rules that went wrong in models of the protocol.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mistake:
    name: str
    edits: tuple[tuple[str, str, str], ...]  # file, what is there, what is put there
    broken: tuple[str, ...]  # invariants that must be seen to break


NO_GATE_AT_SWAPS = (
    "src/fabric/memory/fabric.cc",
    "if (exposed.withdrawn || !exposed.gate.still_open(swap.source.ticket)) {",
    "if (exposed.withdrawn) {",
)

# Of the round.
MISTAKES = (
    Mistake(
        "the round is not part of the compares",
        (
            NO_GATE_AT_SWAPS,
            (
                "src/fabric/memory/fabric.cc",
                "std::uint64_t seen = swap.expected;",
                """std::uint64_t seen = swap.expected;
  if (const auto at = word_of(*swap.source.peer, swap.word).load(); (at & 7) == (seen & 7)) {
    word_of(*swap.source.peer, swap.word).store(swap.desired);
    return finish(id, {}, seen);
  }""",
            ),
        ),
        ("I1", "I4", "I5"),
    ),
    Mistake(
        "the agent keeps the gate",
        (
            NO_GATE_AT_SWAPS,
            (
                "src/fabric/memory/fabric.cc",
                "if (exposed.withdrawn || !exposed.gate.open(source.ticket)) {",
                "if (exposed.withdrawn) {",
            ),
            (
                "src/fabric/memory/fabric.cc",
                "if (!as_memory(*source.region).exposed().gate.still_open(source.ticket)) {",
                "if (as_memory(*source.region).exposed().withdrawn) {",
            ),
        ),
        ("I1", "I21"),
    ),
    Mistake(
        "the lowest offered round is read",
        (
            (
                "src/bus/round/round.cc",
                "choice.round = std::max(choice.round, source.floor);",
                "choice.round = &source == sources.data() ? source.floor : "
                "std::min(choice.round, source.floor);",
            ),
            (
                "src/bus/round/round.cc",
                "if (source.offered) choice.skip.push_back(at);",
                "",
            ),
        ),
        ("I9",),
    ),
    Mistake(
        "sources are committed one by one",
        (
            (
                "src/bus/round/recv.cc",
                "    bytes_done_ += parts_[part].stream->payload_bytes;\n",
                """    bytes_done_ += parts_[part].stream->payload_bytes;
    for (const fabric::Source& source : parts_[part].sources) {
      for (const RecvCommit& commit : commits_) {
        if (commit.source.peer != source.peer || !source.peer->up()) continue;
        const auto id = context_.operations.add([](const fabric::Completion&) {});
        context_.fabric.swap({commit.source, commit.word, pack(RoundWord{Mark::offered, round_}),
                              pack(RoundWord{Mark::read, round_})},
                             id, Deadline::never());
      }
    }
""",
            ),
        ),
        ("I5", "I9"),
    ),
    Mistake(
        "attempts have no number",
        (
            # The end of a cancelled read is heard of late.
            (
                "src/fabric/memory/fabric.cc",
                "  bool cancelled = false;\n",
                "  bool cancelled = false;\n  int late = 0;\n",
            ),
            (
                "src/fabric/memory/fabric.cc",
                "  if (operation.cancelled) return finish(id,",
                "  if (operation.cancelled && operation.work.index() == 1 &&\n"
                "      ++operation.late < 40) return;\n"
                "  if (operation.cancelled) return finish(id,",
            ),
            (
                "src/bus/round/recv.cc",
                "constexpr const char* undefined",
                "std::map<const Context*, std::weak_ptr<Recv>> latest;\n"
                "constexpr const char* undefined",
            ),
            (
                "src/bus/round/recv.cc",
                "  parts_ = std::move(parts);\n",
                "  parts_ = std::move(parts);\n"
                "  if (!commits_.empty()) latest[&context_] = weak_from_this();\n",
            ),
            (
                "src/bus/round/recv.cc",
                "          self->on_read(at, done);\n",
                # In rounds only: a pull that misses bytes is the same mistake, and breaks I21.
                """          if (self->commits_.empty()) return self->on_read(at, done);
          const auto now = latest[&self->context_].lock();
          fabric::Completion told = done;
          if (now != self) told.status = {};
          if (now != nullptr && at < now->parts_.size() && now->state_ == RecvState::reading) {
            now->on_read(at, told);
          }
""",
            ),
            (
                "src/bus/round/recv.cc",
                "if (state_ == RecvState::draining && left_ == 0) {",
                "if (state_ == RecvState::draining) {",
            ),
        ),
        ("I1", "I14"),
    ),
    Mistake(
        "JOIN does not hold, START is repeated",
        (
            ("src/bus/round/source.cc", "  subscription.joined = true;\n", ""),
            (
                "src/bus/round/source.cc",
                "  if (!subscription.joined || subscription.started) return;\n",
                """  if (subscription.started) return;
  if (start.round <= highest_opened_) {
    context_.connections.send(*subscription.connection, generation_, serial,
                              Joined{highest_opened_ + 1});
    return;
  }
  subscription.joined = true;
""",
            ),
            (
                "src/bus/round/reader.cc",
                "  if (phase_ != Phase::joining || source.next != 0) return;\n",
                """  if (phase_ == Phase::started) {
    return context_.connections.send(*source.connection, plan_.generation, serial_,
                                     Start{joined.next});
  }
  if (phase_ != Phase::joining || source.next != 0) return;
""",
            ),
        ),
        ("I10",),
    ),
    Mistake(
        "the other's word is marked first when both send",
        (
            (
                "src/bus/batch/sending.cc",
                "      if (!source_->conflict(rank)) continue;\n"
                "      reader->conflict(rank, round);\n",
                "      reader->conflict(rank, round);\n"
                "      if (!source_->conflict(rank)) continue;\n",
            ),
        ),
        ("I11",),
    ),
    Mistake(
        "a send takes its number when it begins",
        (
            (
                "src/bus/batch/exchange.cc",
                "  if (sends) queued.round = self_.next_round();\n",
                "",
            ),
            (
                "src/bus/batch/sending.cc",
                "    preparing_ = !source_->prepare(send.round);\n",
                "    if (!preparing_) send.round = self_.next_round();\n"
                "    preparing_ = !source_->prepare(send.round);\n",
            ),
        ),
        ("I7", "I9"),
    ),
)

# What kills of real processes and ordinary programs found first.
FOUND_ELSEWHERE = (
    Mistake(
        "a sender that closes is taken for lost",
        (
            (
                "src/bus/registration/membership.cc",
                "  if (leaves) now.leaves_after = *closed.answered;\n",
                "  if (leaves) now.leaves_after = *closed.answered * 0;\n",
            ),
        ),
        ("I20",),
    ),
    Mistake(
        "readers leave as soon as a sender does",
        (
            (
                "src/bus/round/reader.cc",
                "  if (!started()) return true;\n",
                "  if (started() || !started()) return false;\n",
            ),
        ),
        ("I20",),
    ),
    Mistake(
        "who has new tensors does not wait for the others to have them",
        (
            (
                "src/bus/registration/matching.cc",
                "    if (!registering || (!sends && !waits_for_others_to_change())) throw;\n",
                "    if (!registering || !sends || waits_for_others_to_change()) throw;\n",
            ),
        ),
        ("I9",),
    ),
    Mistake(
        "a sender minds its own readers only",
        (
            (
                "src/bus/batch/sending.cc",
                "  return !herald_->ending(send.round);\n",
                "  return false;\n",
            ),
        ),
        ("I26",),
    ),
    Mistake(
        "a registration that is tried again keeps its number",
        (
            (
                "src/bus/client/client.cc",
                "command.registration = number;",
                "static_cast<void>(command), static_cast<void>(number);",
            ),
        ),
        ("I17",),
    ),
)

# Of the shelf.
OF_THE_SHELF = (
    Mistake(
        "the gate is looked at before the last byte is read",
        (
            # What happens between two polls happens between the last look and the last chunk.
            (
                "src/fabric/memory/fabric.cc",
                "if (exposed.withdrawn || !exposed.gate.open(source.ticket)) {",
                "const bool last = running.next > 0 && running.next + 1 == reading.chunk_count();\n"
                "    if (exposed.withdrawn || (!last && !exposed.gate.open(source.ticket))) {",
            ),
            (
                "src/fabric/memory/fabric.cc",
                "if (!as_memory(*source.region).exposed().gate.still_open(source.ticket)) {",
                "if (as_memory(*source.region).exposed().withdrawn) {",
            ),
        ),
        ("I21",),
    ),
    Mistake(
        "the gate is moved after the copy began",
        (
            (
                "src/bus/shelf/shelf.cc",
                "  regions_[*slot]->gate().move_to(slots_.take(*slot, version));\n",
                "  slots_.take(*slot, version);\n",
            ),
            (
                "src/bus/shelf/shelf.cc",
                "  context_.at(Step::published);\n",
                "  context_.at(Step::published);\n"
                "  regions_[*slot]->gate().move_to(slots_.all()[*slot].ticket);\n",
            ),
        ),
        ("I25",),
    ),
    Mistake(
        "the ticket is not compared",
        (
            (
                "src/bus/shelf/puller.cc",
                "part.sources.push_back({source.connection->peer(), slot.region, slot.ticket});",
                "part.sources.push_back({source.connection->peer(), slot.region, "
                "~std::uint64_t{0}});",
            ),
        ),
        ("I21",),
    ),
    Mistake(
        "a slot that is free is not taken after patience",
        (
            (
                "src/bus/shelf/publishing.cc",
                "  auto slot = shelf_->take(waiting_->version, false);\n",
                "  auto slot = patient ? shelf_->take(waiting_->version, false) : std::nullopt;\n",
            ),
        ),
        ("I22",),
    ),
    Mistake(
        "a pull that waits for a version does not look at its deadline",
        (
            (
                "src/bus/shelf/pulling.cc",
                "    if (queued.deadline.at() > self_.context.now || !queued.why.ok()) continue;\n",
                "    if (queued.deadline.at() > self_.context.now || !queued.why.ok()) continue;\n"
                "    if (at == 0 && started() && !reads()) continue;\n",
            ),
        ),
        ("I23",),
    ),
    Mistake(
        "a hold is taken for the truth",
        (
            (
                "src/bus/shelf/puller.cc",
                "  if (outcome.status.code != Code::withdrawn) return outcome;\n",
                "  if (outcome.status.code == Code::withdrawn) outcome.status = {};\n"
                "  if (outcome.status.code != Code::withdrawn) return outcome;\n",
            ),
        ),
        ("I21",),
    ),
    Mistake(
        "the newest is taken per source",
        (
            (
                "src/bus/shelf/puller.cc",
                "      const SlotEnd& slot = *source.find(version);\n",
                "      const SlotEnd& slot = *source.find(*source.view.versions.rbegin());\n",
            ),
        ),
        ("I21",),
    ),
    Mistake(
        "a version is complete before its copy is",
        (
            (
                "src/bus/shelf/publishing.cc",
                "    outcome.slot = static_cast<std::int64_t>(*slot);\n",
                "    outcome.slot = static_cast<std::int64_t>(*slot);\n"
                "    shelf_->complete(filling_, false);\n",
            ),
        ),
        ("I21",),
    ),
    Mistake(
        "a retained shelf is served after a new generation",
        (
            (
                "src/bus/shelf/shelf.cc",
                "if (!served() || std::exchange(shown_, true)) return;",
                "if (!served() || generation() > 1 || std::exchange(shown_, true)) return;",
            ),
        ),
        ("I9", "I24"),
    ),
    Mistake(
        "a slot is recycled whatever the other senders have",
        (
            (
                "src/bus/shelf/slots.cc",
                "return slot.version < common_ ||",
                "return slot.version < newest() ||",
            ),
        ),
        ("I9", "I24"),
    ),
    Mistake(
        "a number is used up by success only",
        (
            (
                "src/bus/shelf/publishing.cc",
                "  outcome.version = waiting_->version;\n",
                "  outcome.version = waiting_->version;\n  first_ = last_--;\n",
            ),
        ),
        ("I21", "I9", "I24"),
    ),
)

# Of deltas. Canaries would find some of them, too.
NO_CANARIES = (
    "src/bus/patching/version_read.cc",
    "  if (!are_untouched()) return read_dense(delta::Why::overwritten), false;\n",
    "",
)
NO_BASES_COMPARED = (
    "src/bus/patching/version_read.cc",
    "  if (!bases_fit) return read_dense(delta::Why::no_base), false;\n",
    "  static_cast<void>(bases_fit);\n",
)
OF_DELTAS = (
    Mistake(
        "changes count for the last base only",
        (
            (
                "src/delta/policy/bases.cc",
                "  for (auto& [base, since] : since_) merge(since, changes);\n",
                "  if (!since_.empty()) merge(since_.rbegin()->second, changes);\n",
            ),
        ),
        ("D1",),
    ),
    Mistake(
        "a base begins when a reader asks, with what has changed since then",
        (
            (
                "src/delta/policy/bases.cc",
                "  if (version != newest_ || since_.contains(version)) return;\n",
                "  if (since_.contains(version)) return;\n",
            ),
        ),
        ("D1",),
    ),
    Mistake(
        "a version that was not compared ends no base",
        (("src/delta/policy/bases.cc", "  since_.clear();\n", ""),),
        ("D1",),
    ),
    Mistake(
        "the base is not compared with what the reader holds",
        (
            (
                "src/bus/patching/patch_maker.cc",
                "  const auto since = bases_.since(ask.held);\n",
                "  const auto since = bases_.since(ask.version);\n",
            ),
            NO_BASES_COMPARED,
        ),
        ("D1", "D2"),
    ),
    Mistake(
        "the generation is not compared",
        (
            (
                "src/bus/patching/version_read.cc",
                "  return held && held->generation == origin_.generation && held->version <= "
                "origin_.version;\n",
                "  return held && held->version <= origin_.version;\n",
            ),
            NO_BASES_COMPARED,
        ),
        ("D4",),
    ),
    Mistake(
        "a patch has the values of the version that the reader holds",
        (
            (
                "src/bus/shelf/shelf.cc",
                "  const auto slot = slot_of(ask.version);\n  context_.connections.send(\n",
                "  auto slot = slot_of(ask.version);\n"
                "  if (slot && slot_of(ask.held)) slot = slot_of(ask.held);\n"
                "  context_.connections.send(\n",
            ),
        ),
        ("D1", "I21"),
    ),
    Mistake(
        "a patch is applied before all are there",
        (
            NO_CANARIES,
            (
                "src/bus/patching/version_read.cc",
                "  patches_[at].whole = true;\n",
                """  patches_[at].whole = true;
  bind_streams();
  const delta::Packed& packed = (*streams_)[patches_[at].stream]->packed();
  const delta::CheckedPatch early(patches_[at].bytes, packed.parts());
  std::vector<std::byte*> to;
  for (const TensorView& target : origin_.targets) to.push_back(target.data);
  delta::apply_blocks(early, packed, to, 0, early.blocks().size());
""",
            ),
        ),
        ("D3", "D4"),
    ),
    Mistake(
        "patches are applied when the first source has offered one",
        (
            (
                "src/bus/patching/version_read.cc",
                "  if (std::ranges::all_of(answered_, [](const auto& each) "
                "{ return each.second; })) fetch();\n",
                "  fetch();\n",
            ),
        ),
        ("D2",),
    ),
    Mistake(
        "a rank that pulls with others does not wait for them before it applies",
        (
            (
                "src/bus/patching/version_read.cc",
                "  origin_.manner.together ? wait() : begin_apply();\n",
                "  begin_apply();\n",
            ),
        ),
        ("D3",),
    ),
    Mistake(
        "what is held stays so while all is read",
        (
            NO_CANARIES,
            (
                "src/bus/patching/version_read.cc",
                "  if (scratch_ == nullptr) touch();\n",
                "  held_->touched = held_->touched || scratch_ == nullptr;\n",
            ),
        ),
        ("D4",),
    ),
    Mistake(
        "nobody loses patience with a source that does not answer",
        (
            (
                "src/bus/patching/version_read.cc",
                "  return waits ? patient_until_ : TimePoint::max();\n",
                "  return waits ? TimePoint::max() : TimePoint::max();\n",
            ),
        ),
        ("D6",),
    ),
    Mistake(
        "patches are made whether or not there is room",
        (
            (
                "src/bus/patching/patch_maker.cc",
                "  return used <= most_bytes_ && more <= most_bytes_ - used;\n",
                "  return used <= most_bytes_ + more;\n",
            ),
        ),
        ("D7",),
    ),
    Mistake(
        "a reader that leaves keeps its patches",
        (
            (
                "src/bus/patching/patch_maker.cc",
                "  for (Patch& patch : patches_) patch.users.erase(serial);\n",
                "  static_cast<void>(serial);\n",
            ),
        ),
        ("D7",),
    ),
    Mistake(
        "each reader gets a patch of its own",
        (
            (
                "src/bus/patching/patch_maker.cc",
                "  return found == patches_.end() ? nullptr : &*found;\n",
                "  return found == patches_.end() || true ? nullptr : &*found;\n",
            ),
        ),
        ("D10",),
    ),
    Mistake(
        "a patch is used for another stream of the same size",
        (
            (
                "src/bus/patching/patch_maker.cc",
                "    return patch.id == id && patch.stream->carries_the_same(stream.stream());\n",
                "    return patch.id.base == id.base && patch.id.version == id.version &&\n"
                "           patch.stream->elements() == stream.elements();\n",
            ),
            (
                "src/bus/patching/version_read.cc",
                "if (id.version != origin_.version || id.stream != stream.fingerprint()) {",
                "if (id.version != origin_.version) {",
            ),
        ),
        ("I21", "D1"),
    ),
)

# Of pulls that the ranks of a side make together.
OF_PULLS_TOGETHER = (
    Mistake(
        "a rank returns after its vote",
        (
            (
                "src/bus/shelf/joint_pull.cc",
                "    self_.context.at(Step::voted);\n",
                "    self_.context.at(Step::voted);\n    over_ = read_;\n",
            ),
        ),
        ("I27",),
    ),
    Mistake(
        "the lowest rank decides although a vote is missing",
        (
            (
                "src/bus/shelf/agreement.cc",
                "const bool all = std::ranges::includes(read_, members_);",
                "const bool all = read_.size() + 1 >= members_.size();",
            ),
        ),
        ("I9", "I24"),
    ),
    Mistake(
        "who has voted and lost the lowest rank proposes again",
        (
            (
                "src/bus/shelf/joint_pull.cc",
                "  if (has_voted()) {\n    over_ = Outcome{};\n",
                "  if (has_voted() && count_ == 0) {\n    over_ = Outcome{};\n",
            ),
        ),
        ("I27",),
    ),
    Mistake(
        "a proposal of an earlier pull is taken for one of now",
        (
            (
                "src/bus/shelf/chair.cc",
                "  if (proposal.count <= last) return;\n",
                "  if (proposal.count < last - 1'000'000) return;\n",
            ),
        ),
        ("I9", "I24"),
    ),
)

# Of what agents remember of the records: lists of tensors, and who was there.
OF_RECORDS = (
    Mistake(
        "who has written a list does not write it again",
        (
            (
                "src/bus/agent/list_keeper.cc",
                "if (!written_.contains(tensors.id.hash) && is_due(use)) write(tensors);",
                "if (!leased_.contains(tensors.id.hash) && is_due(use)) write(tensors);",
            ),
        ),
        ("I9", "I24"),
    ),
    Mistake(
        "senders are not sought again when a registration changes",
        (
            (
                "src/bus/registration/roll_call.cc",
                "return catalog.revision(batch, each.first) == each.second; });",
                "return catalog.revision(batch, each.first) >= each.second; });",
            ),
        ),
        ("I9",),
    ),
)
