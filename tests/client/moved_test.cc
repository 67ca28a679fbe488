// Files that an administrator moves to other objects under clients that are late, or hold back what they
// write.
#include "client/inode.h"
#include "server/metadata/keys.h"
#include "tests/client/harness.h"

namespace nacre::client {
namespace {

using namespace std::chrono_literals;

class Moved : public testing::Test {
 protected:
  Moved() : mine_(harness_.Mount()), theirs_(harness_.Mount()) {
    admin_ = harness_.world.Start(harness_.cluster.visitor() + 1, "admin");
    HandlePtr file = theirs_->Create("f");
    theirs_->Write(file, 0, data_);
    EXPECT_TRUE(theirs_->Fsync(file).ok());
    EXPECT_TRUE(theirs_->Close(file).ok());
    mine_file_ = mine_->OpenName("f");
    fid_ = FromProto(mine_->Lookup("f")->attr.fid());
  }

  // Tries to move the file to one object that is somewhere else, and returns what the MDS says in the end.
  int TryMove() {
    proto::AdminRequest request;
    *request.mutable_migrate()->mutable_fid() = ToProto(fid_);
    auto channel = harness_.cluster.ChannelToMdses(admin_);
    for (int i = 0; i < 100; ++i) {
      auto answer = std::make_shared<std::optional<StatusOr<proto::AdminReply>>>();
      Spawn(admin_->executor(), channel->Administer(request),
            [answer](StatusOr<proto::AdminReply> reply) { *answer = std::move(reply); });
      EXPECT_TRUE(harness_.RunUntil([&] { return answer->has_value(); }));
      if (!answer->has_value() || !(*answer)->ok()) return -1;
      const proto::AdminReply& reply = ***answer;
      if (reply.status().error() != 0 || reply.migrate().done())
        return static_cast<int>(reply.status().error());
    }
    return -1;
  }
  void Move() { ASSERT_EQ(TryMove(), 0); }

  // Nothing gets from here to the OSTs, and what is sent meanwhile arrives later.
  void CutFromOsts(Mounted& client) {
    for (int i = 0; i < harness_.cluster.options().osses; ++i)
      harness_.network.Cut(client.process()->node(), harness_.cluster.oss(i));
  }

  // A file of theirs that is durable, but for `written_` at 5000, which they hold back.
  HandlePtr HeldBack() {
    const Fid directory = theirs_->Mkdir("d");
    HandlePtr file = theirs_->Create("held", O_RDWR, directory);
    theirs_->Write(file, 0, data_);
    EXPECT_TRUE(theirs_->Fsync(file).ok());
    theirs_->Write(file, 5000, written_);
    EXPECT_GT(theirs_->fs().Look().dirty_bytes, 0u);
    fid_ = file->inode->fid;
    return file;
  }
  std::string WithWritten(size_t offset) const {
    std::string now = data_;
    return now.replace(offset, written_.size(), written_);
  }

  template <typename T>
  std::shared_ptr<std::optional<T>> Begin(Task<T> task) {
    auto result = std::make_shared<std::optional<T>>();
    Spawn(mine_->process()->executor(), std::move(task), [result](T value) { *result = std::move(value); });
    harness_.world.RunFor(100ms);
    EXPECT_FALSE(result->has_value());
    return result;
  }

  size_t Objects() {
    size_t count = 0;
    for (int i = 0; i < harness_.cluster.osts(); ++i)
      count += harness_.cluster.ost(i).kv.Scan("O", "P", 100)->size();  // server/object/format.h
    return count;
  }
  size_t LeftObjects() {
    const std::string table = mds::TableKey(mds::Table::kMoved);
    return harness_.cluster.mdt().Scan(table, PrefixEnd(table), 100)->size();
  }

  static std::string Text(const ReadResult& read) {
    std::string text;
    for (std::span<const std::byte> piece : read.pieces)
      text.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    return text;
  }

  Harness harness_;
  std::unique_ptr<Mounted> mine_, theirs_;
  sim::Process* admin_ = nullptr;
  const std::string data_ = Pattern(1, 300'000), written_ = Pattern(2, 6'000);
  HandlePtr mine_file_;
  Fid fid_;
};

// The write makes the object anew in which the bytes were, and the read finds no hole there.
TEST_F(Moved, WhoIsLateFindsTheFileWhereItIs) {
  const std::span<const std::byte> piece = std::as_bytes(std::span(written_));
  const size_t before = Objects();
  CutFromOsts(*mine_);
  auto write = Begin(mine_->fs().Write(mine_file_, 841, std::span(&piece, 1)));
  auto read = Begin(mine_->fs().Read(mine_file_, 0, 5));
  Move();
  harness_.world.RunFor(20s);
  EXPECT_EQ(LeftObjects(), 0u);
  EXPECT_EQ(Objects(), before);
  harness_.network.Heal();
  ASSERT_TRUE(harness_.RunUntil([&] { return write->has_value() && read->has_value(); }));
  EXPECT_TRUE((*write)->ok()) << (*write)->status();
  ASSERT_TRUE((*read)->ok()) << (*read)->status();
  EXPECT_EQ(Text(***read), data_.substr(0, 5));
  EXPECT_EQ(theirs_->Read(theirs_->OpenName("f"), 0, data_.size()), WithWritten(841));
  harness_.world.RunFor(30s);
  EXPECT_EQ(LeftObjects(), 0u);
  EXPECT_EQ(Objects(), before);
}

TEST_F(Moved, WhatIsHeldBackIsSentBefore) {
  HandlePtr file = HeldBack();
  const size_t before = Objects();
  Move();
  EXPECT_EQ(theirs_->fs().Look().dirty_bytes, 0u);
  harness_.world.RunFor(20s);
  EXPECT_EQ(LeftObjects(), 0u);
  EXPECT_EQ(Objects(), before);
  EXPECT_EQ(theirs_->Read(file, 0, data_.size()), WithWritten(5000));
  theirs_->Write(file, 0, data_.substr(0, 100));
  EXPECT_EQ(mine_->Read(mine_->Open(fid_), 0, data_.size()), WithWritten(5000));
}

TEST_F(Moved, WhatCannotBeSentYetKeepsTheFileWhereItIs) {
  HandlePtr file = HeldBack();
  CutFromOsts(*theirs_);
  EXPECT_NE(TryMove(), 0);
  harness_.network.Heal();
  harness_.world.RunFor(20s);
  Move();
  harness_.world.RunFor(20s);
  EXPECT_EQ(theirs_->Read(file, 0, data_.size()), WithWritten(5000));
  EXPECT_EQ(mine_->Read(mine_->Open(fid_), 0, data_.size()), WithWritten(5000));
  EXPECT_TRUE(theirs_->Fsync(file).ok());
}

}  // namespace
}  // namespace nacre::client
