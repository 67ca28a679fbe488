// Calculates how evenly OSTs are filled, and which stripes of a file would better lie on other OSTs. OSTs of
// different numbers of copies have nothing to do with each other: a file keeps its copies. Belongs to one
// coroutine.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <map>
#include <optional>
#include <vector>

#include "server/metadata/records.h"

namespace nacre::mds {

// Returns how many bytes each object of the file takes, in the order of the stripes' numbers: its blocks,
// shared out by the objects' sizes.
std::vector<uint64_t> StripeBytes(const Inode& inode);

class Balance {
 public:
  struct Ost {
    OstIndex index = 0;
    uint32_t copies = 1;
    uint64_t total = 0;  // bytes; not 0
    uint64_t used = 0;
  };
  // Describes the OSTs of a number of copies. Usages are parts of 1.
  struct Class {
    uint32_t copies = 1;
    uint32_t osts = 0;
    double mean = 0;  // of all their space
    double fullest = 0;
    double emptiest = 0;
    uint64_t excess_bytes = 0;  // above the mean: so much has to be moved
    double spread() const { return fullest - emptiest; }
  };
  // Says where the stripes of a file are to lie, by their numbers, and how many of its bytes leave their OST.
  struct Plan {
    std::vector<OstIndex> osts;
    uint64_t bytes = 0;
  };

  // OSTs are settled if none of their class is farther from the mean than `margin`. One that is above the
  // mean is over-full unless they are.
  Balance(const std::vector<Ost>& osts, double margin);

  std::vector<Class> Classes() const;
  double Spread() const;  // of the class whose OSTs are farthest apart
  bool IsSettled() const;

  // Finds better places for the file's stripes. None: it has nothing on an OST that is over-full, or there is
  // no OST that its bytes would better lie on, or it has stripes on OSTs that take no part.
  //
  // A stripe goes from an OST that is over-full to one below the mean, of as many copies, on which its
  // component has no stripe yet, and of which a twentieth stays free. Neither crosses the mean; or, if they
  // may, the two are half as far apart afterwards, or less: large files may leave no other way.
  std::optional<Plan> Better(const Inode& inode, bool may_cross) const;

  // Counts stripes at `to` from here on.
  void Move(const std::vector<OstIndex>& from, const std::vector<OstIndex>& to,
            const std::vector<uint64_t>& bytes);

 private:
  struct Level {
    uint32_t copies = 1;
    double total = 0, used = 0;
    double usage() const { return used / total; }
  };
  using Changes = absl::flat_hash_map<OstIndex, double>;  // of `used`

  Level At(OstIndex ost, const Changes& changes) const;
  bool IsOverfull(const Level& level) const;
  bool TakesPart(const Layout& layout) const;
  bool Touches(const Layout& layout) const;
  std::optional<OstIndex> Target(const Level& from, double bytes, bool may_cross, const Changes& changes,
                                 const std::vector<OstIndex>& taken) const;

  struct Aim {
    double mean = 0;
    bool settled = false;
  };
  void Settle();

  const double margin_;
  std::map<uint32_t, Aim> aims_;  // by the number of copies
  absl::flat_hash_map<OstIndex, Level> levels_;
};

}  // namespace nacre::mds
