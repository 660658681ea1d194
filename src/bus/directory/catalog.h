// An agent's sight of what all agents have published.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bus/directory/directory.h"
#include "bus/directory/records.h"
#include "bus/directory/tensor_lists.h"

namespace tensorbus::bus {

// Records are shared, so that a plan made from a record stays true to that record after the store
// has another one. Registrations are given with their tensors as soon as those are known.
class Catalog {
 public:
  using PairMembers = std::map<Rank, std::shared_ptr<const PairMember>>;
  // By rank and side: a rank may have registered under two names.
  using BatchMembers = std::map<std::pair<Rank, std::string>, std::shared_ptr<BatchMember>>;

  // The key that the change was about; nothing for keys of others. A record that cannot be read is
  // as good as absent, and logged.
  std::optional<RecordKey> apply(const Changed& changed);

  const PairMembers& members(const End& end) const;
  const std::map<End, PairMembers>& pairs() const noexcept { return pairs_; }
  std::shared_ptr<const PairMember> member(const PairKey& key) const;
  // The registration of a batch that covers this end.
  std::shared_ptr<const BatchMember> registration(const std::string& batch, const End& end,
                                                  Rank rank) const;
  std::shared_ptr<const BatchMember> registration(const BatchKey& key) const;
  // All registrations that cover this end.
  const BatchMembers& registered(const std::string& batch, const End& end) const;
  // This very registration of a rank; null if it is not there or has failed.
  const BatchMember* find(const std::string& batch, Rank rank, const Sender& sender) const;
  // Whether a rank has this very registration, and it has not failed.
  bool has(const std::string& batch, Rank rank, const Sender& sender) const;
  bool has(const std::string& batch, Rank rank, std::uint64_t registration) const;
  bool has_failed(const std::string& batch) const;
  // Another one whenever the records of the end, its registrations or a list of tensors has
  // changed.
  using Revision = std::array<std::uint64_t, 3>;
  Revision revision(const std::string& batch, const End& end) const;
  // The same for the shelves of all batches.
  using ShelvesRevision = std::array<std::uint64_t, 2>;
  ShelvesRevision shelves_revision() const { return {lists_changed_, shelves_changed_}; }
  // Whether the list is in the store, whole; and whether a record refers to it.
  bool is_stored(const TensorListId& list) const { return lists_.is_stored(list); }
  bool refers_to(const ListHash& list) const { return references_.contains(list); }
  // The lowest rank that has a shelf of this generation with this list.
  std::optional<Rank> first_shelf_with(const std::string& batch, std::int64_t generation,
                                       const TensorListId& list) const;
  // RegistrationIds of a batch that failed.
  RegistrationIds failed(const std::string& batch) const;
  // Those failed registrations of a batch that failed on their own.
  RegistrationIds refused(const std::string& batch) const;
  // Those failed registrations of a batch that say nothing of this registration: earlier ones of
  // the rank itself, and those of other ranks that did not fit an earlier one of the rank. The
  // store may tell of such registrations late.
  RegistrationIds outlived(const std::string& batch, Rank rank, std::uint64_t registration) const;
  std::shared_ptr<const Generation> generation(const GenerationKey& key) const;
  // What the ranks of a batch with versions have last sent or read; 0: nothing yet.
  Versions versions(const std::string& batch) const;
  // The generations that the shelves of a batch are of, the last generation first; and the
  // registrations of the senders who fill those shelves, or did, as a catalog of their own.
  std::vector<std::int64_t> shelved_generations(const std::string& batch) const;
  Catalog shelved(const std::string& batch, std::int64_t generation) const;
  // The batches that somebody at this end has registered or has shelves of.
  std::set<std::string> batches_at(const End& end) const;
  // The batches that there are shelves of.
  std::set<std::string> published() const;
  // The whole tensors that a side publishes, by name: of the last generation whose shelves are all
  // there; empty: there is none.
  std::vector<Content> contents(const std::string& batch) const;
  // A generation's record as it lies in the store, to compare with.
  std::optional<std::string> raw_generation(const GenerationKey& key) const;

 private:
  // Null: the record is gone.
  void put(const PairKey& key, std::shared_ptr<const PairMember> record);
  void put(const BatchKey& key, std::shared_ptr<BatchMember> record);
  void put(const ShelfKey& key, const std::shared_ptr<ShelfRecord>& record);
  void remove(const BatchKey& key);
  void count_reference(const BatchMember* before, const BatchMember* after);
  // The member with its tensors, if the list of them is known by now.
  std::shared_ptr<BatchMember> complete(const std::shared_ptr<BatchMember>& member) const;
  template <typename Wanted>
  RegistrationIds registrations(const std::string& batch, Wanted wanted) const;
  // One of the rank that has not failed; null: there is none.
  template <typename Matches>
  const BatchMember* find_any(const std::string& batch, Rank rank, Matches matches) const;

  struct Shelved {
    std::int64_t generation = 0;
    std::shared_ptr<const PairMember> place;
    std::shared_ptr<BatchMember> member;
  };
  struct Batch {
    BatchMembers all;
    std::map<End, BatchMembers> by_end;
    std::map<End, std::uint64_t> changed;  // which revision
    std::size_t failed = 0;
  };
  struct Raw {
    std::shared_ptr<const Generation> generation;
    std::string bytes;
  };
  std::map<End, PairMembers> pairs_;
  std::map<End, std::uint64_t> pairs_changed_;  // which revision
  std::map<std::string, Batch> batches_;
  mutable TensorLists lists_;
  std::map<ListHash, std::size_t> references_;  // how many records of ranks refer to it
  std::uint64_t revision_ = 0;
  std::uint64_t lists_changed_ = 0;  // which revision
  std::uint64_t shelves_changed_ = 0;
  std::map<GenerationKey, Raw> generations_;
  std::map<BatchKey, VersionRecord> versions_;
  std::map<BatchKey, Shelved> shelves_;
};

}  // namespace tensorbus::bus
