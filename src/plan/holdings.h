// What planning knows about two sides of which at least one has boxes.
#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "plan/box_index.h"
#include "tensorbus/plan.h"

namespace tensorbus::plan {

inline constexpr int no_host = -1;

// A local tensor of one rank.
struct Local {
  Rank rank = 0;
  std::size_t box = 0;      // which of the rank's
  std::size_t cell = 0;     // what it holds
  std::size_t replica = 0;  // which of the cell's
  Shape shape{};
  int host = 0;
};

// A source of a cell: one local tensor, or those of the ranks that reduce to it.
struct Replica {
  Group group;
  std::size_t box = 0;
  int host = 0;  // of all its members, or no_host
};

// A part of the tensor that some local tensors hold alike.
struct Cell {
  Holding region;                     // within the tensor
  Bounds bounds;                      // round the region
  std::vector<Replica> replicas{};    // in the order of the ranks
  std::vector<std::size_t> locals{};  // ascending
  // The same by host.
  std::map<int, std::vector<std::size_t>> replicas_on{};
  std::map<int, std::vector<std::size_t>> locals_on{};

  bool is_on(int host) const { return host != no_host && replicas_on.contains(host); }
  // Whether a reader there has candidates of its own: some, but not all of the replicas.
  bool has_candidates(int host) const {
    return is_on(host) && replicas_on.at(host).size() < replicas.size();
  }
};

struct HoldingSide {
  std::vector<Local> locals;  // by rank or place in the mesh, then by box
  std::map<Rank, std::vector<std::size_t>> of_rank;
  std::vector<Cell> cells;
  BoxIndex index;         // of the cells
  std::size_t most = 1;   // local tensors of one rank
  bool disjoint = false;  // no two cells overlap: a layout
  std::vector<Fold> folds{};
};

struct Holdings::Data {
  Shape shape;
  HoldingSide source;
  HoldingSide target;

  std::vector<Piece> reads(Rank target) const;
  std::vector<Piece> serves(Rank source) const;
  std::vector<Box> missing(Rank target) const;

 private:
  void add_pieces(const Local& reader, std::size_t number, std::size_t cell,
                  std::vector<Piece>& pieces) const;
  // What of a cell this reader takes from it and from no other one that holds it, too.
  std::vector<Bounds> share(const Local& reader, std::size_t number, std::size_t cell) const;
  std::size_t choose(const Local& reader, std::size_t number, const Cell& cell) const;
  // The readers of a cell before this one that choose among the same replicas.
  std::size_t ordinal(const Local& reader, std::size_t number, const Cell& cell) const;
};

}  // namespace tensorbus::plan
