// A client that is killed: closed files have their bytes, and a file that was being replaced has its old or
// its new ones, whenever it happens.
#include <linux/fs.h>

#include "client/inode.h"
#include "tests/client/harness.h"

namespace nacre::client {
namespace {

constexpr size_t kSmall = 300, kLarge = 200'000;  // in the MDT, in objects

struct ReplacedSizes {
  size_t old_size, new_size;
};

class Replace : public testing::TestWithParam<ReplacedSizes> {
 protected:
  std::string Old() const { return Pattern(1, GetParam().old_size); }
  std::string New() const { return Pattern(2, GetParam().new_size); }
};

INSTANTIATE_TEST_SUITE_P(, Replace,
                         testing::Values(ReplacedSizes{kSmall, kSmall}, ReplacedSizes{kSmall, kLarge},
                                         ReplacedSizes{kLarge, kSmall}, ReplacedSizes{kLarge, kLarge}),
                         [](const auto& info) {
                           return absl::StrFormat("%dBy%d", info.param.old_size, info.param.new_size);
                         });

Task<bool> WriteAll(FileSystem* fs, HandlePtr handle, std::string data) {
  std::span<const std::byte> piece = std::as_bytes(std::span(data.data(), data.size()));
  auto written = co_await fs->Write(handle, 0, std::span(&piece, 1));
  if (!written.ok()) co_return false;
  Status flushed = co_await fs->Flush(handle, 0);
  Status released = co_await fs->Release(handle);
  co_return flushed.ok() && released.ok();
}

Task<bool> ByRename(FileSystem* fs, Caller caller, Fid fid, std::string data) {
  auto made = co_await fs->Create(caller, kRootFid, "tmp", S_IFREG | 0644, O_RDWR | O_CREAT);
  if (!made.ok()) co_return false;
  const bool written = co_await WriteAll(fs, made->handle, std::move(data));
  (void)fid;
  Status renamed = co_await fs->Rename(caller, kRootFid, "tmp", kRootFid, "f", 0);
  co_return written&& renamed.ok();
}

Task<bool> ByRewriting(FileSystem* fs, Caller caller, Fid fid, std::string data) {
  auto opened = co_await fs->Open(caller, fid, O_WRONLY | O_TRUNC);
  if (!opened.ok()) co_return false;
  Status flushed = co_await fs->Flush(*opened, 0);  // a shell closes one descriptor of two
  const bool written = co_await WriteAll(fs, *opened, std::move(data));
  co_return flushed.ok() && written;
}

Task<bool> ByTruncating(FileSystem* fs, Caller caller, Fid fid, std::string data) {
  auto opened = co_await fs->Open(caller, fid, O_RDWR);
  if (!opened.ok()) co_return false;
  SetAttributes set;
  set.size = 0;
  auto cut = co_await fs->Setattr(caller, fid, set, *opened);
  const bool written = co_await WriteAll(fs, *opened, std::move(data));
  co_return cut.ok() && written;
}

using Way = Task<bool> (*)(FileSystem*, Caller, Fid, std::string);

enum class Beside { kNobody, kAnIdleMount };

// Returns the file's content after the client was killed `after` the beginning; *done: the last call had
// returned.
std::string ContentAfterKill(Way way, Beside beside, const std::string& old_data, const std::string& new_data,
                             Duration after, bool* done) {
  HarnessOptions options;
  options.seed = static_cast<uint64_t>(after.count()) + 1;
  Harness harness(options);
  std::unique_ptr<Mounted> idle = beside == Beside::kAnIdleMount ? harness.Mount() : nullptr;
  auto client = harness.Mount();
  HandlePtr file = client->Create("f");
  client->Write(file, 0, old_data);
  EXPECT_TRUE(client->Fsync(file).ok());
  EXPECT_TRUE(client->Close(file).ok());
  harness.world.RunFor(8s);
  auto ended = std::make_shared<std::optional<bool>>();
  Spawn(client->process()->executor(), way(&client->fs(), client->caller, file->inode->fid, new_data),
        [ended](bool ok) { *ended = ok; });
  harness.world.RunFor(after);
  *done = ended->has_value();
  EXPECT_TRUE(!*done || **ended);
  client->Kill();
  client = harness.Mount();
  HandlePtr found = client->OpenName("f", O_RDONLY);
  EXPECT_NE(found, nullptr);
  return found == nullptr ? "" : client->Read(found, 0, 1 << 20);
}

// `atomic`: the old or the new bytes also while the writer is at it.
void KillAtAnyMoment(Way way, const std::string& old_data, const std::string& new_data, bool atomic,
                     Beside beside = Beside::kNobody) {
  int with_new = 0;
  for (int i = 0; i < 120; ++i) {
    const Duration after = std::chrono::microseconds(i < 80 ? 25 * i : 200 * (i - 70));
    bool done = false;
    const std::string found = ContentAfterKill(way, beside, old_data, new_data, after, &done);
    if (found == new_data) ++with_new;
    if (!done && !atomic) continue;
    EXPECT_TRUE(found == old_data || found == new_data)
        << found.size() << " bytes after a kill at " << after / 1us << " us, done: " << done;
  }
  EXPECT_GT(with_new, 0);
}

TEST_P(Replace, ByRename) { KillAtAnyMoment(ByRename, Old(), New(), true); }

TEST_P(Replace, ByRewriting) { KillAtAnyMoment(ByRewriting, Old(), New(), GetParam().new_size == kSmall); }

TEST_P(Replace, ByTruncating) { KillAtAnyMoment(ByTruncating, Old(), New(), GetParam().new_size == kSmall); }

TEST_P(Replace, ByRewritingBesideAnIdleMount) {
  KillAtAnyMoment(ByRewriting, Old(), New(), GetParam().new_size == kSmall, Beside::kAnIdleMount);
}

// Old content must not be seen after a truncation that is held back, by any handle or client.
TEST_P(Replace, IsSeenAtOnce) {
  Harness harness;
  auto client = harness.Mount();
  HandlePtr file = client->Create("f");
  client->Write(file, 0, Old());
  ASSERT_TRUE(client->Fsync(file).ok());
  HandlePtr again = client->Open(file->inode->fid, O_RDWR | O_TRUNC);
  EXPECT_EQ(client->Stat(file->inode->fid).size(), 0u);
  EXPECT_EQ(client->Read(file, 0, 100), "");
  client->Write(again, 0, New());
  EXPECT_EQ(client->Read(file, 0, 1 << 20), New());
  EXPECT_EQ(client->Stat(file->inode->fid).size(), New().size());
  client->Truncate(again, New().size() / 2);
  auto second = harness.Mount();
  EXPECT_EQ(second->Read(second->OpenName("f"), 0, 1 << 20), New().substr(0, New().size() / 2));
}

// Its layout is for objects although it has no bytes: the new ones go back into the MDT.
TEST(KilledClient, HasRewrittenAnEmptyFileThatHadMovedOut) {
  Harness harness;
  auto client = harness.Mount();
  HandlePtr file = client->Create("f");
  const int punch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
  ASSERT_TRUE(client->Await(client->fs().Fallocate(file, punch, 0, 4096)).ok());
  ASSERT_FALSE(client->Stat(file->inode->fid).inline_data());
  ASSERT_TRUE(client->Close(file).ok());
  file = client->OpenName("f", O_RDWR | O_TRUNC);
  client->Write(file, 0, "new");
  ASSERT_TRUE(client->Close(file).ok());
  harness.world.RunFor(100ms);
  client->Kill();
  client = harness.Mount();
  EXPECT_EQ(client->Read(client->OpenName("f"), 0, 100), "new");
}

// Its times are told like those of others, and nothing of it stays behind here.
TEST(KilledClient, HasEmptiedAnEmptyFile) {
  Harness harness;
  auto client = harness.Mount();
  HandlePtr file = client->Create("f");
  ASSERT_TRUE(client->Close(file).ok());
  harness.world.RunFor(8s);
  const WallTime before = FromProto(client->Stat(file->inode->fid).mtime());
  file = client->OpenName("f", O_WRONLY | O_TRUNC);
  ASSERT_TRUE(client->Close(file).ok());
  harness.world.RunFor(100ms);
  {
    std::lock_guard lock(file->inode->mutex);
    EXPECT_FALSE(file->inode->pending.any());
    EXPECT_EQ(file->inode->held, 0u);
  }
  const Fid fid = file->inode->fid;
  file.reset();
  client->Kill();
  client = harness.Mount();
  EXPECT_GT(FromProto(client->Stat(fid).mtime()), before);
}

// 1,100 small files by a script, killed right after it.
TEST(KilledClient, LeavesTheBytesOfClosedFiles) {
  Harness harness;
  auto client = harness.Mount();
  for (int i = 0; i < 1100; ++i) {
    HandlePtr file = client->Create("f" + std::to_string(i));
    client->Write(file, 0, Pattern(static_cast<uint64_t>(i), 1000));
    ASSERT_TRUE(client->Close(file).ok());
  }
  HandlePtr large = client->Create("large");
  client->Write(large, 0, Pattern(7, 300'000));
  ASSERT_TRUE(client->Close(large).ok());
  harness.world.RunFor(100ms);
  client->Kill();
  client = harness.Mount();
  for (int i = 0; i < 1100; ++i) {
    EXPECT_EQ(client->Read(client->OpenName("f" + std::to_string(i)), 0, 2000),
              Pattern(static_cast<uint64_t>(i), 1000));
  }
  EXPECT_EQ(client->Read(client->OpenName("large"), 0, 1 << 20), Pattern(7, 300'000));
}

}  // namespace
}  // namespace nacre::client
