// Reading past the cache into registered memory: what Read sees, and nothing beside the spans is touched.
#include <cstring>

#include "client/inode.h"
#include "tests/client/harness.h"
#include "transport/memory.h"

namespace nacre::client {
namespace {

constexpr char kCanary = '\xA5';

class ReadInto : public testing::Test {
 protected:
  // Memory full of canaries.
  struct Target {
    explicit Target(size_t size) : bytes(size, kCanary) {
      region = RegisterHostMemory(reinterpret_cast<std::byte*>(bytes.data()), size).value();
    }
    MemorySpan Span(uint64_t offset, uint64_t length) { return {region, offset, length}; }

    std::string bytes;
    std::shared_ptr<MemoryRegion> region;
  };

  HandlePtr Striped(Mounted& client, const std::string& name, const std::string& data,
                    const std::string& layout = "-c 4 -S 64K") {
    HandlePtr file = client.Create(name);
    const Fid fid = file->inode->fid;
    EXPECT_TRUE(client.Await(client.fs().SetXattr(client.caller, fid, "nacre.layout", layout, 0)).ok());
    client.Write(file, 0, data);
    return file;
  }

  StatusOr<PiecesRead> Do(Mounted& client, const HandlePtr& file, std::vector<ReadPiece> pieces,
                          CancellationPtr cancellation = nullptr) {
    return client.Await(client.fs().ReadInto(file, std::move(pieces), std::move(cancellation)));
  }

  // One piece; "" after an error.
  std::string Read(Mounted& client, const HandlePtr& file, uint64_t offset, uint64_t length) {
    Target target(length);
    std::vector<ReadPiece> pieces = {{offset, target.Span(0, length)}};
    auto read = Do(client, file, std::move(pieces));
    EXPECT_TRUE(read.ok()) << read.status();
    if (!read.ok()) return "";
    EXPECT_EQ(target.bytes.substr(read->sizes[0]), std::string(length - read->sizes[0], kCanary));
    return target.bytes.substr(0, read->sizes[0]);
  }

  Harness harness_;
};

TEST_F(ReadInto, SeesWhatThisClientHoldsBack) {
  auto client = harness_.Mount();
  std::string data = Pattern(1, 3 * kMiB + 77);
  HandlePtr file = Striped(*client, "f", data);
  EXPECT_EQ(Read(*client, file, 0, 4 * kMiB), data);
  client->Write(file, 12345, "changed");
  ASSERT_GT(client->fs().Look().dirty_bytes, 0u);
  data.replace(12345, 7, "changed");
  EXPECT_EQ(Read(*client, file, 10000, 10000), data.substr(10000, 10000));
}

TEST_F(ReadInto, WithoutVerificationToo) {
  const std::string data = Pattern(1, kMiB + 77);
  {
    auto client = harness_.Mount();
    HandlePtr file = Striped(*client, "f", data);
    EXPECT_EQ(Read(*client, file, 0, data.size()), data);
    ASSERT_TRUE(client->Close(file).ok());
    ASSERT_TRUE(client->Unmount().ok());  // else it would go on, and count requests where nothing is any more
  }
  Options options = harness_.options.client;
  options.verify = false;
  auto client = harness_.Mount(std::move(options));
  HandlePtr file = client->OpenName("f");
  Target target(data.size());
  std::vector<ReadPiece> pieces = {{0, target.Span(0, data.size())}};
  auto read = Do(*client, file, std::move(pieces));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_FALSE(read->verified);
  EXPECT_EQ(target.bytes, data);
}

TEST_F(ReadInto, SeesWhatAnotherClientHasWritten) {
  auto mine = harness_.Mount();
  std::string data = Pattern(1, kMiB);
  HandlePtr file = Striped(*mine, "f", data);
  auto theirs = harness_.Mount();
  HandlePtr other = theirs->OpenName("f");
  EXPECT_EQ(Read(*theirs, other, 0, 2 * kMiB), data);
  mine->Write(file, 5, "now");
  mine->Write(file, data.size(), "longer");
  data.replace(5, 3, "now");
  data += "longer";
  EXPECT_EQ(Read(*theirs, other, 0, 2 * kMiB), data);
  theirs->Truncate(other, 100'001);
  EXPECT_EQ(Read(*mine, file, 0, 2 * kMiB), data.substr(0, 100'001));
}

TEST_F(ReadInto, InlineFilesComeFromTheMds) {
  auto client = harness_.Mount();
  HandlePtr file = client->Create("small");
  client->Write(file, 0, "a few bytes");
  Target target(64);
  std::vector<ReadPiece> pieces = {
      {2, target.Span(10, 3)}, {6, target.Span(20, 40)}, {50, target.Span(0, 5)}};
  auto read = Do(*client, file, std::move(pieces));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->sizes, (std::vector<uint64_t>{3, 5, 0}));
  EXPECT_EQ(read->path, "mds");
  EXPECT_FALSE(read->verified);
  std::string expected(64, kCanary);
  expected.replace(10, 3, "few").replace(20, 5, "bytes");
  EXPECT_EQ(target.bytes, expected);
}

TEST_F(ReadInto, HolesAreZeros) {
  auto client = harness_.Mount();
  HandlePtr file = Striped(*client, "f", Pattern(1, 10));
  client->Truncate(file, kMiB);
  EXPECT_EQ(Read(*client, file, 0, 2 * kMiB), Pattern(1, 10) + std::string(kMiB - 10, '\0'));
}

TEST_F(ReadInto, TheHandleHasToBeReadable) {
  auto client = harness_.Mount();
  Striped(*client, "f", "data");
  HandlePtr file = client->OpenName("f", O_WRONLY);
  Target target(4);
  std::vector<ReadPiece> pieces = {{0, target.Span(0, 4)}};
  EXPECT_THAT(Do(*client, file, std::move(pieces)).status(), HasErrno(EBADF));
  pieces = {{uint64_t{INT64_MAX}, target.Span(0, 4)}};
  EXPECT_THAT(Do(*client, client->OpenName("f"), std::move(pieces)).status(), HasErrno(EINVAL));
}

// Random extents of random files into random places, as many as there are; every fifth time so many that the
// first slice is a short one.
TEST_F(ReadInto, ScatteredPiecesAreWhatTheFileHolds) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SeededRandom random(seed);
    auto client = harness_.Mount();
    auto second = seed % 2 == 0 ? harness_.Mount() : nullptr;  // without the lease
    const uint64_t scale = seed % 5 == 0 ? 4 : 1;
    std::string data = Pattern(seed, 1 + random.Below(scale * 6 * kMiB));
    HandlePtr file = Striped(*client, absl::StrFormat("f%d", seed), data,
                             absl::StrFormat("-c %d -S %dK", 1 + random.Below(4), 64 << random.Below(4)));
    Target target(scale * 4 * kMiB);
    std::string expected = target.bytes;
    std::vector<ReadPiece> pieces;
    std::vector<uint64_t> sizes;
    for (uint64_t at = random.Below(5000); at < target.bytes.size();) {
      const uint64_t most = random.Below(2) == 0 ? 300 : 100'000 * scale * scale;
      const uint64_t length = std::min(random.Below(most), target.bytes.size() - at);
      // Now and then it goes on where the last one ended.
      uint64_t offset = random.Below(data.size() + data.size() / 10 + 1);
      if (!pieces.empty() && random.Below(4) == 0)
        offset = std::min<uint64_t>(pieces.back().offset + pieces.back().memory.length, data.size());
      pieces.push_back({offset, target.Span(at, length)});
      sizes.push_back(std::min(length, data.size() - std::min<uint64_t>(data.size(), offset)));
      if (sizes.back() > 0) expected.replace(at, sizes.back(), data, offset, sizes.back());
      at += length + random.Below(3) * random.Below(5000);
    }
    auto read = Do(*client, file, std::move(pieces));
    ASSERT_TRUE(read.ok()) << "seed " << seed << ": " << read.status();
    EXPECT_EQ(read->sizes, sizes) << "seed " << seed;
    EXPECT_TRUE(target.bytes == expected) << "seed " << seed;
    EXPECT_TRUE(read->verified);
    if (second != nullptr) {
      ASSERT_TRUE(second->Unmount().ok());
    }
    ASSERT_TRUE(client->Close(file).ok());
    ASSERT_TRUE(client->Unmount().ok());
  }
}

// A long read must not keep the lease from others for as long as it lasts.
TEST_F(ReadInto, GivesTheLeaseUpInTheMiddle) {
  auto client = harness_.Mount();
  std::string data = Pattern(1, 24 * kMiB);
  HandlePtr file = Striped(*client, "f", data);
  ASSERT_TRUE(client->Fsync(file).ok());
  Target target(data.size());
  std::vector<ReadPiece> pieces = {{0, target.Span(0, data.size())}};
  bool done = false;
  Spawn(client->process()->executor(), client->fs().ReadInto(file, std::move(pieces), nullptr),
        [&](StatusOr<PiecesRead> read) {
          EXPECT_TRUE(read.ok()) << read.status();
          done = true;
        });
  auto other = harness_.Mount();
  EXPECT_TRUE(other->Lookup("f").ok());
  ASSERT_TRUE(harness_.RunUntil([&] { return done; }));
  EXPECT_TRUE(target.bytes == data);
}

TEST_F(ReadInto, CancelledWhileTheMdsIsAwayItTouchesNothingAnyMore) {
  auto client = harness_.Mount();
  auto other = harness_.Mount();
  std::string data = Pattern(1, kMiB);
  HandlePtr of_other = Striped(*other, "f", data);
  HandlePtr file = client->OpenName("f");
  other->Write(of_other, 0, "x");  // nobody has a lease of the directory now
  harness_.cluster.Crash(harness_.cluster.mds(), sim::Loss::kProcess);
  bool idle = false;
  auto cancellation = std::make_shared<Cancellation>(Duration::max(), [&](const Status&) { idle = true; });
  Target target(kMiB);
  std::vector<ReadPiece> pieces = {{0, target.Span(0, kMiB)}};
  std::optional<Status> ended;
  Spawn(client->process()->executor(), client->fs().ReadInto(file, std::move(pieces), cancellation),
        [&](StatusOr<PiecesRead> read) { ended = read.status(); });
  harness_.world.RunFor(1s);
  EXPECT_FALSE(ended.has_value());
  cancellation->Cancel(ErrnoError(ECANCELED, "enough"));
  EXPECT_TRUE(idle) << "nobody had its memory";
  harness_.cluster.Boot(harness_.cluster.mds());
  ASSERT_TRUE(harness_.RunUntil([&] { return ended.has_value(); }));
  EXPECT_THAT(*ended, HasErrno(ECANCELED));
  EXPECT_EQ(target.bytes, std::string(kMiB, kCanary));
}

}  // namespace
}  // namespace nacre::client
