// Layout templates: checking what a user asks for, and turning one into a file's layout. Pure functions apart
// from the choice of OSTs.
#pragma once

#include "proto/types.pb.h"
#include "server/cluster/ost_choice.h"
#include "server/cluster/ost_registry.h"
#include "server/metadata/records.h"

namespace nacre::mds {

inline constexpr uint32_t kStripeAlignment = 64 << 10;
inline constexpr uint32_t kDefaultStripeSize = 1 << 20;
inline constexpr uint32_t kMaxStripeSize = 1u << 30;
inline constexpr int kMaxStripeCount = 2000;
inline constexpr size_t kMaxTemplateComponents = 16;

// One stripe of 1 MiB.
LayoutTemplate DefaultTemplate();

// EINVAL with the offending value unless sizes are aligned and components follow each other up to the end of
// the file. Zero stripe sizes become the default, a zero count becomes 1, zero copies stay.
StatusOr<LayoutTemplate> CheckTemplate(const proto::LayoutTemplate& wanted);

// ENODEV when the cluster has no OST yet, or none with so many copies.
StatusOr<Layout> Instantiate(const LayoutTemplate& wanted, const cluster::UsableOsts& osts,
                             cluster::OstChooser* chooser, uint64_t object_sequence);

// Where the object of stripe n of this layout ends if the file ends at `size`: the object's size at the most.
uint64_t ObjectSizeFor(const Layout& layout, uint32_t stripe, uint64_t size);

// The other way round: the end of the file if the object of stripe n ends at `object_size` (0 for an empty
// object).
uint64_t FileSizeFor(const Layout& layout, uint32_t stripe, uint64_t object_size);

// Bytes of a file that follow each other in one object.
struct LayoutPiece {
  OstIndex ost = 0;
  uint32_t stripe = 0;
  uint64_t object_offset = 0;
  uint64_t file_offset = 0;
  uint64_t length = 0;
  bool operator==(const LayoutPiece&) const = default;
};
// Those at the offset, no more than `length` > 0. The layout reaches to the end of the file, as all do.
LayoutPiece PieceAt(const Layout& layout, uint64_t file_offset, uint64_t length);
// The same, from the offset in an object of the layout on.
LayoutPiece PieceOf(const Layout& layout, uint32_t stripe, uint64_t object_offset, uint64_t length);

}  // namespace nacre::mds
