#include "server/metadata/placement.h"

#include <algorithm>

namespace nacre::mds {

bool IsPlaceable(const Mds& mds, const Layout& layout) {
  return std::ranges::all_of(layout.components, [&mds](const LayoutComponent& component) {
    return std::ranges::all_of(component.groups, [&mds](OstIndex ost) { return mds.osts.TakesObjects(ost); });
  });
}

StatusOr<Layout> PlaceAnew(Mds& mds, const cluster::UsableOsts& osts, const Layout& like,
                           uint64_t object_sequence) {
  LayoutTemplate wanted;
  for (const LayoutComponent& component : like.components) {
    const uint32_t copies = component.groups.empty() ? 0 : mds.osts.CopiesOf(component.groups[0]);
    wanted.push_back(
        {component.end, component.stripe_size, static_cast<int32_t>(component.groups.size()), copies});
  }
  ASSIGN_OR_RETURN(Layout layout, Instantiate(wanted, osts, &mds.chooser, object_sequence));
  layout.generation = like.generation;
  return layout;
}

}  // namespace nacre::mds
