// An agent's sight of what all agents have published.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bus/directory/directory.h"
#include "bus/directory/records.h"

namespace tensorbus::bus {

// Records are shared, so that a plan made from a record stays true to that record after the store
// has another one.
class Catalog {
 public:
  using PairMembers = std::map<Rank, std::shared_ptr<const PairMember>>;
  using BatchMembers = std::map<Rank, std::shared_ptr<const BatchMember>>;

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
  // RegistrationIds of a batch that failed.
  RegistrationIds failed(const std::string& batch) const;
  // Those of them that failed on their own.
  RegistrationIds refused(const std::string& batch) const;
  // Those of them that say nothing of this registration: earlier ones of the rank itself, and of
  // others that did not fit an earlier one of it. The store may tell of them late.
  RegistrationIds outlived(const std::string& batch, Rank rank, std::uint64_t registration) const;
  std::shared_ptr<const Generation> generation(const GenerationKey& key) const;
  // What the ranks of a batch with versions have last sent or read; 0: nothing yet.
  Versions versions(const std::string& batch) const;
  // What the shelves of a batch are of, the last generation first. The registrations of those who
  // fill them, or did: as a catalog of their own.
  std::vector<std::int64_t> shelved_generations(const std::string& batch) const;
  Catalog shelved(const std::string& batch, std::int64_t generation) const;
  // The whole tensors that a side publishes, by name: of the last generation whose shelves are all
  // there; empty: there is none.
  std::vector<Content> contents(const std::string& batch) const;
  // As it lies in the store, to compare with.
  std::optional<std::string> raw_generation(const GenerationKey& key) const;

 private:
  // Null: the record is gone.
  void put(const PairKey& key, std::shared_ptr<const PairMember> record);
  void put(const BatchKey& key, std::shared_ptr<const BatchMember> record);
  template <typename Wanted>
  RegistrationIds registrations(const std::string& batch, Wanted wanted) const;

  struct Shelved {
    std::int64_t generation = 0;
    std::shared_ptr<const PairMember> place;
    std::shared_ptr<const BatchMember> member;
  };
  struct Raw {
    std::shared_ptr<const Generation> generation;
    std::string bytes;
  };
  std::map<End, PairMembers> pairs_;
  std::map<std::string, std::map<std::pair<Rank, std::string>, std::shared_ptr<const BatchMember>>>
      batches_;
  std::map<GenerationKey, Raw> generations_;
  std::map<BatchKey, VersionRecord> versions_;
  std::map<BatchKey, Shelved> shelves_;
};

}  // namespace tensorbus::bus
