#include "client/layout.h"

#include <algorithm>
#include <cerrno>

namespace nacre::client {
namespace {

constexpr uint64_t kStripeUnit = 64 << 10;

Status CheckComponent(const proto::Component& component, uint64_t start, bool last) {
  if (component.stripe_size() == 0 || component.stripe_size() % kStripeUnit != 0) {
    return ErrnoError(EINVAL, absl::StrFormat("layout: stripe size %d is not a multiple of 64 KiB",
                                              component.stripe_size()));
  }
  if (component.ost_group_size() == 0) return ErrnoError(EINVAL, "layout: a component without stripes");
  if (last != (component.end() == UINT64_MAX)) {
    return ErrnoError(EINVAL,
                      absl::StrFormat("layout: component ends at %d, and the last one must end at 2^64-1",
                                      component.end()));
  }
  if (component.end() <= start) {
    return ErrnoError(EINVAL, absl::StrFormat("layout: component [%d, %d) is empty", start, component.end()));
  }
  if (!last && (component.end() - start) % component.stripe_size() != 0) {
    return ErrnoError(
        EINVAL, absl::StrFormat("layout: component [%d, %d) is no multiple of its stripe size %d", start,
                                component.end(), component.stripe_size()));
  }
  return OkStatus();
}

}  // namespace

StatusOr<LayoutPtr> LayoutMap::Make(const proto::Layout& layout) {
  if (layout.components_size() == 0) return ErrnoError(EINVAL, "layout: no components");
  auto map = std::make_shared<LayoutMap>();
  map->generation_ = layout.generation();
  map->object_sequence_ = layout.object_sequence();
  uint64_t start = 0;
  for (int i = 0; i < layout.components_size(); ++i) {
    const proto::Component& component = layout.components(i);
    RETURN_IF_ERROR(CheckComponent(component, start, i + 1 == layout.components_size()));
    map->components_.push_back({start, component.end(), component.stripe_size(),
                                static_cast<uint32_t>(map->osts_.size()),
                                static_cast<uint32_t>(component.ost_group_size())});
    map->osts_.insert(map->osts_.end(), component.ost_group().begin(), component.ost_group().end());
    start = component.end();
  }
  return LayoutPtr(std::move(map));
}

const LayoutMap::Component& LayoutMap::ComponentAt(uint64_t offset) const {
  for (const Component& component : components_) {
    if (offset < component.end) return component;
  }
  return components_.back();
}

const LayoutMap::Component& LayoutMap::ComponentOf(uint32_t stripe) const {
  for (const Component& component : components_) {
    if (stripe < component.first_stripe + component.stripes) return component;
  }
  return components_.back();
}

StripePiece LayoutMap::At(uint64_t offset, uint64_t length) const {
  const Component& component = ComponentAt(offset);
  uint64_t relative = offset - component.start;
  uint64_t unit = relative / component.stripe_size;
  uint64_t within = relative % component.stripe_size;
  StripePiece piece;
  piece.file_offset = offset;
  piece.stripe = component.first_stripe + static_cast<uint32_t>(unit % component.stripes);
  piece.ost = osts_[piece.stripe];
  piece.object_offset = unit / component.stripes * component.stripe_size + within;
  uint64_t room = component.end - offset;
  if (component.stripes > 1) room = std::min(room, component.stripe_size - within);
  piece.length = std::min(length, room);
  return piece;
}

std::vector<StripePiece> LayoutMap::Map(uint64_t offset, uint64_t length) const {
  std::vector<StripePiece> pieces;
  while (length > 0) {
    StripePiece piece = At(offset, length);
    if (piece.length == 0) break;  // the very last byte of 2^64
    offset += piece.length;
    length -= piece.length;
    pieces.push_back(piece);
  }
  return pieces;
}

uint64_t LayoutMap::FileOffset(uint32_t stripe, uint64_t object_offset) const {
  const Component& component = ComponentOf(stripe);
  uint64_t row = object_offset / component.stripe_size;
  uint64_t column = stripe - component.first_stripe;
  unsigned __int128 offset = static_cast<unsigned __int128>(row) * component.stripes + column;
  offset = offset * component.stripe_size + object_offset % component.stripe_size + component.start;
  return offset >= component.end ? UINT64_MAX : static_cast<uint64_t>(offset);
}

uint64_t LayoutMap::ObjectEnd(uint32_t stripe, uint64_t file_offset) const {
  const Component& component = ComponentOf(stripe);
  if (file_offset <= component.start) return 0;
  uint64_t relative = std::min(file_offset, component.end) - component.start;
  uint64_t units = relative / component.stripe_size;  // whole ones
  uint64_t column = stripe - component.first_stripe;
  uint64_t whole = units / component.stripes + (units % component.stripes > column ? 1 : 0);
  uint64_t part = units % component.stripes == column ? relative % component.stripe_size : 0;
  return whole * component.stripe_size + part;
}

}  // namespace nacre::client
