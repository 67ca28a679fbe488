// One client and real servers, with leases and without: what a file does.
#include <linux/falloc.h>
#include <unistd.h>

#include "client/inode.h"
#include "tests/client/harness.h"

namespace nacre::client {
namespace {

class Files : public testing::TestWithParam<bool> {
 protected:
  Files() : harness_(MakeOptions()), client_(harness_.Mount()) {}

  static HarnessOptions MakeOptions() {
    HarnessOptions options;
    options.client.caching = GetParam();
    return options;
  }
  Mounted& c() { return *client_; }
  // Everything is dropped: what is read afterwards comes from the servers.
  void Remount() {
    EXPECT_TRUE(client_->Unmount().ok());
    client_ = harness_.Mount();
  }

  Harness harness_;
  std::unique_ptr<Mounted> client_;
};

INSTANTIATE_TEST_SUITE_P(, Files, testing::Bool(),
                         [](const auto& info) { return info.param ? "WithLease" : "WithoutLease"; });

TEST_P(Files, SmallFile) {
  HandlePtr file = c().Create("small");
  c().Write(file, 0, "hello");
  EXPECT_EQ(c().Read(file, 0, 100), "hello");
  EXPECT_EQ(c().Read(file, 1, 3), "ell");
  EXPECT_EQ(c().Read(file, 5, 3), "");
  c().Write(file, 7, "x");
  EXPECT_EQ(c().Read(file, 0, 100), std::string("hello\0\0x", 8));
  EXPECT_EQ(c().Stat(file->inode->fid).size(), 8u);
  EXPECT_TRUE(c().Close(file).ok());
  Remount();
  file = c().OpenName("small");
  EXPECT_EQ(c().Read(file, 0, 100), std::string("hello\0\0x", 8));
  EXPECT_TRUE(c().Close(file).ok());
}

TEST_P(Files, LargeFileOverAllStripes) {
  const std::string data = Pattern(1, 9 * kMiB + 12345);
  HandlePtr file = c().Create("large");
  ASSERT_TRUE(
      c().Await(c().fs().SetXattr(c().caller, file->inode->fid, "nacre.layout", "-c 4 -S 256K", 0)).ok());
  for (size_t at = 0; at < data.size(); at += kMiB)
    c().Write(file, at, std::string_view(data).substr(at, kMiB));
  EXPECT_EQ(c().Read(file, 0, data.size() + 1), data);
  EXPECT_TRUE(c().Fsync(file).ok());
  EXPECT_TRUE(c().Close(file).ok());
  Remount();
  file = c().OpenName("large");
  EXPECT_EQ(c().Read(file, 0, data.size() + 1), data);
  EXPECT_EQ(c().Read(file, kMiB - 7, 20), data.substr(kMiB - 7, 20));
  EXPECT_GE(c().Stat(file->inode->fid).blocks() * 512, data.size());
}

TEST_P(Files, GrowsOutOfTheMdt) {
  std::string all;
  HandlePtr file = c().Create("growing");
  for (int i = 0; i < 40; ++i) {
    std::string piece = Pattern(100 + i, 1000);
    c().Write(file, all.size(), piece);
    all += piece;
    ASSERT_EQ(c().Read(file, 0, 100'000), all) << i;
  }
  Remount();
  EXPECT_EQ(c().Read(c().OpenName("growing"), 0, 100'000), all);
}

TEST_P(Files, SparseFileReadsZeros) {
  HandlePtr file = c().Create("sparse");
  c().Write(file, 5 * kMiB + 3, "end");
  EXPECT_EQ(c().Read(file, 5 * kMiB, 100), std::string(3, '\0') + "end");
  EXPECT_EQ(c().Read(file, kMiB, 10), std::string(10, '\0'));
  EXPECT_EQ(c().Stat(file->inode->fid).size(), 5 * kMiB + 6);
  Remount();
  file = c().OpenName("sparse");
  EXPECT_EQ(c().Read(file, 5 * kMiB - 2, 100), std::string(5, '\0') + "end");
  EXPECT_LT(c().Stat(file->inode->fid).blocks() * 512, kMiB);
}

TEST_P(Files, TruncateCutsAndGrows) {
  for (uint64_t size : {uint64_t{3000}, 3 * kMiB}) {
    HandlePtr file = c().Create("cut" + std::to_string(size));
    const std::string data = Pattern(2, size);
    c().Write(file, 0, data);
    c().Truncate(file, size / 2 + 1);
    EXPECT_EQ(c().Read(file, 0, 2 * size), data.substr(0, size / 2 + 1));
    c().Truncate(file, size);
    EXPECT_EQ(c().Read(file, 0, 2 * size),
              data.substr(0, size / 2 + 1) + std::string(size - size / 2 - 1, '\0'));
    c().Truncate(file, 0);
    EXPECT_EQ(c().Read(file, 0, 10), "");
    c().Write(file, 2, "ab");
    EXPECT_EQ(c().Read(file, 0, 10), std::string("\0\0ab", 4));
    EXPECT_TRUE(c().Close(file).ok());
    Remount();
    EXPECT_EQ(c().Read(c().OpenName("cut" + std::to_string(size)), 0, 10), std::string("\0\0ab", 4));
  }
}

TEST_P(Files, OpeningWithTruncEmpties) {
  for (uint64_t size : {uint64_t{3000}, 3 * kMiB}) {
    std::string name = "f" + std::to_string(size);
    HandlePtr file = c().Create(name);
    c().Write(file, 0, Pattern(2, size));
    HandlePtr again = c().Open(file->inode->fid, O_RDWR | O_TRUNC);
    EXPECT_EQ(c().Read(file, 0, size), "");
    EXPECT_EQ(c().Stat(file->inode->fid).size(), 0u);
    c().Write(again, 10, "x");
    EXPECT_EQ(c().Read(file, 0, size), std::string(10, '\0') + "x");
    harness_.world.RunFor(10s);
    EXPECT_EQ(c().Read(file, 0, size), std::string(10, '\0') + "x");
    EXPECT_TRUE(c().Close(again).ok());
    Remount();
    EXPECT_EQ(c().Read(c().OpenName(name), 0, size), std::string(10, '\0') + "x");
  }
}

TEST_P(Files, InlineFileTruncatedBeyondTheLimit) {
  HandlePtr file = c().Create("f");
  c().Write(file, 0, "abc");
  c().Truncate(file, kMiB);
  EXPECT_EQ(c().Read(file, 0, 5), std::string("abc\0\0", 5));
  EXPECT_EQ(c().Read(file, kMiB - 2, 5), std::string("\0\0", 2));
  Remount();
  EXPECT_EQ(c().Read(c().OpenName("f"), 0, 5), std::string("abc\0\0", 5));
}

TEST_P(Files, AppendsOfSeveralHandlesFollowEachOther) {
  std::string all;
  HandlePtr one = c().Create("log", O_RDWR | O_APPEND);
  HandlePtr two = c().Open(one->inode->fid, O_WRONLY | O_APPEND);
  for (int i = 0; i < 30; ++i) {
    std::string piece = Pattern(200 + i, 1500);
    c().Write(i % 2 == 0 ? one : two, 0, piece);
    all += piece;
    ASSERT_EQ(c().Stat(one->inode->fid).size(), all.size());
  }
  EXPECT_EQ(c().Read(one, 0, all.size() + 1), all);
  Remount();
  EXPECT_EQ(c().Read(c().OpenName("log"), 0, all.size() + 1), all);
}

TEST_P(Files, DirectAndCachedHandlesSeeEachOther) {
  HandlePtr cached = c().Create("f");
  HandlePtr direct = c().Open(cached->inode->fid, O_RDWR | O_DIRECT);
  std::string data = Pattern(3, 2 * kMiB);
  c().Write(cached, 0, data);
  EXPECT_EQ(c().Read(direct, 4096, kMiB), data.substr(4096, kMiB));
  std::string other = Pattern(4, kMiB);
  c().Write(direct, 8192, other);
  data.replace(8192, kMiB, other);
  EXPECT_EQ(c().Read(cached, 0, 2 * kMiB), data);
  c().Write(cached, 10'000, "xyz");
  data.replace(10'000, 3, "xyz");
  EXPECT_EQ(c().Read(direct, 0, 2 * kMiB), data);
}

TEST_P(Files, UnlinkedFileLivesUntilTheLastClose) {
  HandlePtr file = c().Create("f");
  c().Write(file, 0, Pattern(5, kMiB));
  ASSERT_TRUE(c().Await(c().fs().Unlink(c().caller, kRootFid, "f")).ok());
  EXPECT_THAT(c().Lookup("f").status(), HasErrno(ENOENT));
  EXPECT_EQ(c().Read(file, 0, 2 * kMiB), Pattern(5, kMiB));
  c().Write(file, kMiB, "more");
  EXPECT_TRUE(c().Fsync(file).ok());
  EXPECT_EQ(c().Read(file, kMiB, 10), "more");
  EXPECT_EQ(c().Stat(file->inode->fid).nlink(), 0u);
  Fid fid = file->inode->fid;
  EXPECT_TRUE(c().Close(file).ok());
  harness_.world.RunFor(5s);
  EXPECT_FALSE(c().Await(c().fs().Open(c().caller, fid, O_RDONLY)).ok());
}

TEST_P(Files, TimesSetByHandAreNotUndoneByWriteBehind) {
  HandlePtr file = c().Create("f");
  c().Write(file, 0, Pattern(6, 100'000));
  SetAttributes set;
  set.mtime = WallTime{12345, 678};
  ASSERT_TRUE(c().Await(c().fs().Setattr(c().caller, file->inode->fid, set, nullptr)).ok());
  EXPECT_TRUE(c().Close(file).ok());
  harness_.world.RunFor(20s);
  EXPECT_EQ(FromProto(c().Stat(file->inode->fid).mtime()), (WallTime{12345, 678}));
  Remount();
  EXPECT_EQ(FromProto(c().Lookup("f")->attr.mtime()), (WallTime{12345, 678}));
}

TEST_P(Files, AChangeAfterAWriteHasTheLaterTime) {
  HandlePtr file = c().Create("f");
  c().Write(file, 0, "hi");
  harness_.world.RunFor(200ms);
  SetAttributes set;
  set.mode = 0600;
  ASSERT_TRUE(c().Await(c().fs().Setattr(c().caller, file->inode->fid, set, file)).ok());
  const proto::Attr attr = c().Stat(file->inode->fid);
  EXPECT_GE(FromProto(attr.ctime()).nanos, FromProto(attr.mtime()).nanos + 100'000'000);
}

TEST_P(Files, ALayoutIsNotSetOnAFileWithData) {
  for (const std::string& data : {Pattern(1, 100), Pattern(2, 5 * kMiB)}) {
    HandlePtr file = c().Create("f" + std::to_string(data.size()));
    c().Write(file, 0, data);
    EXPECT_THAT(c().Await(c().fs().SetXattr(c().caller, file->inode->fid, "nacre.layout", "-c 2", 0)),
                HasErrno(EBUSY));
    EXPECT_TRUE(c().Fsync(file).ok());
    EXPECT_EQ(c().Read(file, 0, data.size()), data);
  }
}

TEST_P(Files, PunchedAndZeroedRangesReadZeros) {
  std::string data = Pattern(7, 3 * kMiB);
  HandlePtr file = c().Create("f");
  c().Write(file, 0, data);
  auto allocate = [&](int mode, uint64_t offset, uint64_t length) {
    Status status = c().Await(c().fs().Fallocate(file, mode, offset, length));
    EXPECT_TRUE(status.ok()) << status;
  };
  allocate(FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 100'000, 200'001);
  data.replace(100'000, 200'001, std::string(200'001, '\0'));
  EXPECT_EQ(c().Read(file, 0, 4 * kMiB), data);
  allocate(FALLOC_FL_ZERO_RANGE, 3 * kMiB - 10, 100);
  data.resize(3 * kMiB - 10);
  data.resize(3 * kMiB + 90);
  EXPECT_EQ(c().Read(file, 0, 4 * kMiB), data);
  allocate(0, 0, 4 * kMiB);
  data.resize(4 * kMiB);
  EXPECT_EQ(c().Read(file, 0, 5 * kMiB), data);
  EXPECT_THAT(c().Await(c().fs().Fallocate(file, FALLOC_FL_COLLAPSE_RANGE, 0, 4096)), HasErrno(EOPNOTSUPP));
  Remount();
  EXPECT_EQ(c().Read(c().OpenName("f"), 0, 5 * kMiB), data);
}

TEST_P(Files, SeeksDataAndHoles) {
  HandlePtr file = c().Create("f");
  c().Write(file, 2 * kMiB, std::string(8192, 'x'));
  c().Truncate(file, 4 * kMiB);
  auto seek = [&](uint64_t offset, int whence) { return c().Await(c().fs().Seek(file, offset, whence)); };
  EXPECT_EQ(*seek(0, SEEK_HOLE), 0u);
  EXPECT_EQ(*seek(0, SEEK_DATA), 2 * kMiB);
  EXPECT_EQ(*seek(2 * kMiB + 1, SEEK_DATA), 2 * kMiB + 1);
  EXPECT_EQ(*seek(2 * kMiB, SEEK_HOLE), 2 * kMiB + 8192);
  EXPECT_THAT(seek(3 * kMiB, SEEK_DATA).status(), HasErrno(ENXIO));
  EXPECT_THAT(seek(4 * kMiB, SEEK_HOLE).status(), HasErrno(ENXIO));
}

TEST_P(Files, CopiesRanges) {
  HandlePtr from = c().Create("from");
  HandlePtr to = c().Create("to");
  std::string data = Pattern(8, 2 * kMiB + 5);
  c().Write(from, 0, data);
  EXPECT_EQ(*c().Await(c().fs().CopyRange(from, 5, to, 100, 10 * kMiB)), data.size() - 5);
  EXPECT_EQ(c().Read(to, 100, 10 * kMiB), data.substr(5));
}

TEST_P(Files, SynchronousHandle) {
  HandlePtr file = c().Create("f", O_RDWR | O_SYNC);
  c().Write(file, 0, "abc");
  c().Write(file, 100'000, "def");
  c().Kill();
  client_ = harness_.Mount();
  file = c().OpenName("f");
  EXPECT_EQ(c().Read(file, 0, 3), "abc");
  EXPECT_EQ(c().Read(file, 100'000, 10), "def");
}

TEST_P(Files, FsyncedDataSurvivesTheClient) {
  std::string data = Pattern(9, 2 * kMiB);
  HandlePtr file = c().Create("f");
  c().Write(file, 0, data);
  ASSERT_TRUE(c().Fsync(file).ok());
  c().Kill();
  client_ = harness_.Mount();
  EXPECT_EQ(c().Read(c().OpenName("f"), 0, 3 * kMiB), data);
}

TEST_P(Files, WriteBehindSendsAfterAWhile) {
  std::string data = Pattern(10, 300'000);
  HandlePtr file = c().Create("f");
  HandlePtr small = c().Create("small");
  c().Write(file, 0, data);
  c().Write(small, 0, "abc");
  harness_.world.RunFor(6s);
  c().Kill();
  client_ = harness_.Mount();
  EXPECT_EQ(c().Read(c().OpenName("f"), 0, kMiB), data);
  EXPECT_EQ(c().Read(c().OpenName("small"), 0, kMiB), "abc");
}

TEST_P(Files, ExtendedAttributes) {
  HandlePtr file = c().Create("f");
  Fid fid = file->inode->fid;
  auto get = [&](const std::string& name) { return c().Await(c().fs().GetXattr(c().caller, fid, name)); };
  EXPECT_THAT(get("user.a").status(), HasErrno(ENODATA));
  EXPECT_TRUE(c().Await(c().fs().SetXattr(c().caller, fid, "user.a", "1", 0)).ok());
  EXPECT_EQ(*get("user.a"), "1");
  EXPECT_THAT(*c().Await(c().fs().ListXattr(c().caller, fid)), testing::ElementsAre("user.a"));
  EXPECT_TRUE(c().Await(c().fs().RemoveXattr(c().caller, fid, "user.a")).ok());
  EXPECT_THAT(get("user.a").status(), HasErrno(ENODATA));
  EXPECT_EQ(*get("nacre.fid"), fid.ToString());
  EXPECT_THAT(*get("nacre.layout"), testing::HasSubstr("-c "));
}

// Random operations through several handles, against a string.
TEST_P(Files, AgreeWithAModel) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SeededRandom random(seed);
    std::string name = "model" + std::to_string(seed);
    std::vector<HandlePtr> handles = {c().Create(name)};
    Fid fid = handles[0]->inode->fid;
    handles.push_back(c().Open(fid, O_RDWR | O_DIRECT));
    handles.push_back(c().Open(fid, O_RDWR | O_APPEND));
    std::string model;
    const uint64_t most = seed % 2 == 0 ? 2 * kMiB : 40'000;
    for (int step = 0; step < 150; ++step) {
      const HandlePtr& handle = handles[random.Below(handles.size())];
      uint64_t offset = random.Below(most);
      uint64_t size = 1 + random.Below(random.OneIn(4) ? most / 4 : 5000);
      switch (random.Below(8)) {
        case 0:
        case 1:
        case 2: {
          std::string data = Pattern(random.Next(), size);
          if ((handle->flags & O_APPEND) != 0) offset = model.size();
          if (model.size() < offset + size) model.resize(offset + size);
          model.replace(offset, size, data);
          c().Write(handle, offset, data);
          break;
        }
        case 3:
          model.resize(offset);
          c().Truncate(handle, offset);
          break;
        case 4:
          ASSERT_TRUE(c().Fsync(handle).ok());
          break;
        case 5: {
          uint64_t end = std::min<uint64_t>(offset + size, model.size());
          if (offset < end) model.replace(offset, end - offset, std::string(end - offset, '\0'));
          ASSERT_TRUE(
              c().Await(c().fs().Fallocate(handle, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, size))
                  .ok());
          break;
        }
        default: {
          std::string expected = offset < model.size() ? model.substr(offset, size) : "";
          ASSERT_EQ(c().Read(handle, offset, size), expected) << "seed " << seed << " step " << step;
        }
      }
      ASSERT_EQ(c().Stat(fid).size(), model.size()) << "seed " << seed << " step " << step;
    }
    for (const HandlePtr& handle : handles) EXPECT_TRUE(c().Close(handle).ok());
    Remount();
    ASSERT_EQ(c().Read(c().OpenName(name), 0, 8 * kMiB), model) << "seed " << seed;
  }
}

}  // namespace
}  // namespace nacre::client
