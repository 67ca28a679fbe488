#include "server/metadata/layout.h"

#include <absl/strings/str_join.h>

#include <algorithm>
#include <cerrno>

namespace nacre::mds {
namespace {

Status CheckComponent(const TemplateComponent& component, uint64_t start) {
  if (component.stripe_size % kStripeAlignment != 0 || component.stripe_size > kMaxStripeSize) {
    return ErrnoError(EINVAL, absl::StrFormat("stripe size %d is not a multiple of %d up to %d",
                                              component.stripe_size, kStripeAlignment, kMaxStripeSize));
  }
  if (component.stripe_count < -1 || component.stripe_count > kMaxStripeCount) {
    return ErrnoError(EINVAL, absl::StrFormat("stripe count %d is none of -1 (all OSTs), 1..%d",
                                              component.stripe_count, kMaxStripeCount));
  }
  if (component.copies > cluster::kMaxCopies) {
    return ErrnoError(EINVAL, absl::StrFormat("%d copies are none of 0 (as few as there are), 1..%d",
                                              component.copies, cluster::kMaxCopies));
  }
  if (component.end <= start) {
    return ErrnoError(EINVAL,
                      absl::StrFormat("a layout component ends at %d, where the one before ends at %d",
                                      component.end, start));
  }
  if (component.end != kEndOfFile && component.end % component.stripe_size != 0) {
    return ErrnoError(
        EINVAL, absl::StrFormat("a layout component ends at %d, which is no multiple of its stripe size %d",
                                component.end, component.stripe_size));
  }
  return OkStatus();
}

struct Place {
  const LayoutComponent* component = nullptr;
  uint64_t start = 0;     // of the component in the file
  uint32_t position = 0;  // of the stripe in the component
};

Place Find(const Layout& layout, uint32_t stripe) {
  uint64_t start = 0;
  for (const LayoutComponent& component : layout.components) {
    if (stripe < component.groups.size()) return {&component, start, stripe};
    stripe -= static_cast<uint32_t>(component.groups.size());
    start = component.end;
  }
  return {};
}

}  // namespace

LayoutTemplate DefaultTemplate() { return {{kEndOfFile, kDefaultStripeSize, 1}}; }

StatusOr<LayoutTemplate> CheckTemplate(const proto::LayoutTemplate& wanted) {
  if (static_cast<size_t>(wanted.components_size()) > kMaxTemplateComponents) {
    return ErrnoError(EINVAL, absl::StrFormat("a layout of %d components: at most %d are allowed",
                                              wanted.components_size(), kMaxTemplateComponents));
  }
  LayoutTemplate checked;
  uint64_t start = 0;
  for (const proto::TemplateComponent& wish : wanted.components()) {
    TemplateComponent component{wish.end(), wish.stripe_size(), wish.stripe_count(), wish.copies()};
    if (component.stripe_size == 0) component.stripe_size = kDefaultStripeSize;
    if (component.stripe_count == 0) component.stripe_count = 1;
    RETURN_IF_ERROR(CheckComponent(component, start));
    start = component.end;
    checked.push_back(component);
  }
  if (!checked.empty() && start != kEndOfFile) {
    return ErrnoError(
        EINVAL, absl::StrFormat(
                    "the layout's last component ends at %d: let it end at -1, the end of the file", start));
  }
  return checked;
}

StatusOr<Layout> Instantiate(const LayoutTemplate& wanted, const cluster::UsableOsts& osts,
                             cluster::OstChooser* chooser, uint64_t object_sequence) {
  if (osts.empty())
    return ErrnoError(ENODEV,
                      "no OST takes new files: start an OSS, or let one that is drained take some again");
  Layout layout;
  layout.generation = 1;
  layout.object_sequence = object_sequence;
  for (const TemplateComponent& component : wanted) {
    const cluster::UsableOsts* fit = osts.WithCopies(component.copies);
    if (fit == nullptr) {
      return ErrnoError(ENODEV, absl::StrFormat("no OST has %d copies: there are OSTs with %s",
                                                component.copies, absl::StrJoin(osts.Copies(), ", ")));
    }
    size_t count = component.stripe_count < 0 ? fit->size() : static_cast<size_t>(component.stripe_count);
    layout.components.push_back({component.end, component.stripe_size, chooser->Choose(*fit, count)});
  }
  return layout;
}

uint64_t ObjectSizeFor(const Layout& layout, uint32_t stripe, uint64_t size) {
  Place place = Find(layout, stripe);
  if (place.component == nullptr || size <= place.start) return 0;
  uint64_t length = std::min(size, place.component->end) - place.start;
  uint64_t stripe_size = place.component->stripe_size;
  uint64_t row = stripe_size * place.component->groups.size();
  uint64_t rest = length % row;
  uint64_t before = stripe_size * place.position;
  uint64_t partial = rest <= before ? 0 : std::min(rest - before, stripe_size);
  return length / row * stripe_size + partial;
}

uint64_t FileSizeFor(const Layout& layout, uint32_t stripe, uint64_t object_size) {
  Place place = Find(layout, stripe);
  if (place.component == nullptr || object_size == 0) return 0;
  uint64_t stripe_size = place.component->stripe_size;
  uint64_t last = object_size - 1;
  uint64_t row = last / stripe_size;
  uint64_t offset =
      (row * place.component->groups.size() + place.position) * stripe_size + last % stripe_size;
  return place.start + offset + 1;
}

LayoutPiece PieceAt(const Layout& layout, uint64_t file_offset, uint64_t length) {
  uint64_t start = 0;
  uint32_t first = 0;
  for (const LayoutComponent& component : layout.components) {
    if (file_offset >= component.end) {
      start = component.end;
      first += static_cast<uint32_t>(component.groups.size());
      continue;
    }
    const uint64_t within = file_offset - start, size = component.stripe_size,
                   stripes = component.groups.size();
    const uint32_t position = static_cast<uint32_t>(within / size % stripes);
    LayoutPiece piece;
    piece.ost = component.groups[position];
    piece.stripe = first + position;
    piece.object_offset = within / size / stripes * size + within % size;
    piece.file_offset = file_offset;
    piece.length = std::min({length, size - within % size, component.end - file_offset});
    return piece;
  }
  return {};
}

LayoutPiece PieceOf(const Layout& layout, uint32_t stripe, uint64_t object_offset, uint64_t length) {
  return PieceAt(layout, FileSizeFor(layout, stripe, object_offset + 1) - 1, length);
}

}  // namespace nacre::mds
