#include "fuse/nodes.h"

#include <gtest/gtest.h>

namespace nacre::fuse {
namespace {

TEST(NodeTable, TheRootIsNumberOne) {
  NodeTable nodes;
  EXPECT_EQ(nodes.Refer(kRootFid), 1u);
  EXPECT_EQ(nodes.Get(1), kRootFid);
}

TEST(NodeTable, ASmallFidIsItsOwnNumberAndTakesNoRoom) {
  NodeTable nodes;
  Fid fid{0x12345678, 0x9abcdef0, 0};
  uint64_t node = nodes.Refer(fid);
  EXPECT_EQ(node, 0x123456789abcdef0u);
  EXPECT_EQ(NodeTable::Ino(fid), node);
  EXPECT_EQ(nodes.table_size(), 0u);
  nodes.Forget(node, 1);
  EXPECT_EQ(nodes.Get(node), fid);
  EXPECT_EQ(nodes.Find(fid), node);
}

TEST(NodeTable, AnyOtherFidIsCountedUntilItIsForgotten) {
  NodeTable nodes;
  for (Fid fid : {Fid{1u << 31, 5, 0}, Fid{~0ull, 5, 0}, Fid{7, 5, 1}}) {
    uint64_t node = nodes.Refer(fid);
    EXPECT_EQ(nodes.Refer(fid), node);
    EXPECT_EQ(nodes.Get(node), fid);
    nodes.Forget(node, 1);
    EXPECT_EQ(nodes.Find(fid), node);
    nodes.Forget(node, 1);
    EXPECT_EQ(nodes.Find(fid), std::nullopt);
    EXPECT_EQ(nodes.Get(node), Fid{});
    EXPECT_EQ(nodes.table_size(), 0u);
  }
}

TEST(NodeTable, InodeNumbersDifferAndStay) {
  Fid a{~0ull, 5, 0}, b{~0ull, 5, 1}, c{~0ull, 6, 0};
  EXPECT_NE(NodeTable::Ino(a), NodeTable::Ino(b));
  EXPECT_NE(NodeTable::Ino(a), NodeTable::Ino(c));
  EXPECT_EQ(NodeTable::Ino(a), NodeTable::Ino(a));
}

}  // namespace
}  // namespace nacre::fuse
