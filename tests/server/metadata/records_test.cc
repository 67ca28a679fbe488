// Records of the MDT: what is written reads back, and what no server ever wrote is refused.
#include "server/metadata/records.h"

#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

namespace nacre::mds {
namespace {

constexpr Fid kFid{1, 2, 3};

Inode File() {
  Inode inode;
  inode.fid = kFid;
  inode.mode = S_IFREG | 0644;
  inode.nlink = 1;
  inode.size = 5 << 20;
  inode.mtime = {-1, 999'999'999};
  inode.parent = kRootFid;
  inode.layout.generation = 7;
  inode.layout.object_sequence = 9;
  inode.layout.components = {{1 << 20, 1 << 16, {3}}, {kEndOfFile, 1 << 20, {0, 1, 2}}};
  return inode;
}

Status Refused(const Inode& inode) { return ParseInode(kFid, EncodeInode(inode)).status(); }

TEST(Records, AnInodeReadsBack) {
  const Inode file = File();
  EXPECT_EQ(*ParseInode(kFid, EncodeInode(file)), file);
  Inode small = file;
  small.inline_data = true;
  small.size = 64 << 10;
  EXPECT_EQ(*ParseInode(kFid, EncodeInode(small)), small);
  Inode directory = file;
  directory.mode = S_IFDIR | 01777;
  directory.layout = {};
  directory.default_layout = {{kEndOfFile, 1 << 20, -1}};
  EXPECT_EQ(*ParseInode(kFid, EncodeInode(directory)), directory);
  EXPECT_EQ(EncodeInode(directory)[0], 1);
  directory.default_layout = {{1 << 20, 1 << 20, 1}, {kEndOfFile, 1 << 20, -1, 3}};
  EXPECT_EQ(*ParseInode(kFid, EncodeInode(directory)), directory);
  EXPECT_EQ(EncodeInode(directory)[0], 2);
}

TEST(Records, EveryCutInodeIsRefused) {
  const std::string whole = EncodeInode(File());
  for (size_t size = 0; size < whole.size(); ++size)
    EXPECT_TRUE(absl::IsDataLoss(ParseInode(kFid, whole.substr(0, size)).status())) << size;
  EXPECT_TRUE(absl::IsDataLoss(ParseInode(kFid, whole + '\0').status()));
}

// The server would allocate, or divide by, what these say.
TEST(Records, InodesThatDoNotHoldTogetherAreRefused) {
  Inode inode = File();
  inode.inline_data = true;
  inode.size = (64 << 10) + 1;
  EXPECT_TRUE(absl::IsDataLoss(Refused(inode)));
  inode = File();
  inode.mode = S_IFIFO | 0644;
  inode.inline_data = true;
  inode.size = 0;
  EXPECT_TRUE(absl::IsDataLoss(Refused(inode)));
  inode = File();
  inode.layout.components[0].stripe_size = 0;
  EXPECT_TRUE(absl::IsDataLoss(Refused(inode)));
  inode = File();
  inode.layout.components[1].groups.clear();
  EXPECT_TRUE(absl::IsDataLoss(Refused(inode)));
  inode = File();
  inode.layout.components[1].end = 1 << 20;  // where it begins
  EXPECT_TRUE(absl::IsDataLoss(Refused(inode)));
}

TEST(Records, TheOthersReadBackAndAreRefusedWhenCut) {
  const Bucket bucket = {{0, DT_REG, kFid, "a"}, {7, DT_DIR, kRootFid, std::string(255, 'n')}};
  EXPECT_EQ(*ParseBucket(EncodeBucket(bucket)), bucket);
  EXPECT_FALSE(ParseBucket(EncodeBucket(bucket).substr(1)).ok());
  EXPECT_FALSE(ParseBucket("").ok());
  const Superblock superblock{kFormatVersion, "uuid", {1, 2}};
  EXPECT_EQ(*ParseSuperblock(EncodeSuperblock(superblock)), superblock);
  EXPECT_FALSE(ParseSuperblock("NACREOST").ok());
  const Superblock older{kOldestFormatVersion, "uuid", {1, 2}};
  EXPECT_EQ(*ParseSuperblock(EncodeSuperblock(older)), older);
  const Superblock newer{kFormatVersion + 1, "uuid", {1, 2}};
  EXPECT_TRUE(absl::IsFailedPrecondition(ParseSuperblock(EncodeSuperblock(newer)).status()));
  const SessionRecord session{"host:/mnt", 4711, true};
  EXPECT_EQ(*ParseSession(EncodeSession(session)), session);
  EXPECT_FALSE(ParseSession("short").ok());
  const ReplyRecord reply{4711, "encoded"};
  EXPECT_EQ(*ParseReply(EncodeReply(reply)), reply);
  EXPECT_FALSE(ParseReply("short").ok());
  EXPECT_FALSE(ParseReply(EncodeReply({0, "encoded"})).ok());
  const DestroyRecord destroy{{1, 2, 3}};
  EXPECT_EQ(*ParseDestroy(EncodeDestroy(destroy)), destroy);
  EXPECT_FALSE(ParseDestroy("abc").ok());
  const DestroyAtRecord destroy_at{{0, 7}};
  EXPECT_EQ(*ParseDestroyAt(EncodeDestroyAt(destroy_at)), destroy_at);
  EXPECT_FALSE(ParseDestroyAt("abc").ok());
  const TruncateRecord truncate{77, 3, 1234, 5, 6};
  EXPECT_EQ(*ParseTruncate(EncodeTruncate(truncate)), truncate);
  const TruncateRecord without_version{77, 0, 0, 0, 0};
  EXPECT_EQ(*ParseTruncate(EncodeNumber(77)), without_version);
  EXPECT_FALSE(ParseTruncate("").ok());
  EXPECT_FALSE(ParseTruncate(EncodeTruncate(truncate) + 'x').ok());
  EXPECT_FALSE(ParseTruncate('\2' + EncodeTruncate(truncate).substr(1)).ok());
  const NewObjectsRecord one{{7}}, several{{7, 3, 7}};
  EXPECT_EQ(*ParseNewObjects(EncodeNewObjects(one)), one);
  EXPECT_EQ(*ParseNewObjects(EncodeNewObjects(several)), several);
  EXPECT_FALSE(ParseNewObjects("").ok());
  EXPECT_FALSE(ParseNewObjects("12345").ok());
  const MovedRecord moved{{1, 2, 3}, {7, 3}};
  EXPECT_EQ(*ParseMoved(EncodeMoved(moved)), moved);
  EXPECT_FALSE(ParseMoved("123456789012345").ok());
  EXPECT_FALSE(ParseMoved(EncodeMoved(moved) + "x").ok());
  const RebalanceRecord rebalance{500, 76, 77};
  EXPECT_EQ(*ParseRebalance(EncodeRebalance(rebalance)), rebalance);
  EXPECT_FALSE(ParseRebalance("").ok());
  EXPECT_FALSE(ParseRebalance(EncodeRebalance(rebalance) + 'x').ok());
  EXPECT_FALSE(ParseRebalance('\2' + EncodeRebalance(rebalance).substr(1)).ok());
  EXPECT_FALSE(ParseRebalance(EncodeRebalance({0, 76, 77})).ok());
  EXPECT_FALSE(ParseRebalance(EncodeRebalance({10'001, 76, 77})).ok());
  EXPECT_EQ(*ParseNumber(EncodeNumber(~uint64_t{0})), ~uint64_t{0});
  EXPECT_FALSE(ParseNumber("123456789").ok());
}

}  // namespace
}  // namespace nacre::mds
