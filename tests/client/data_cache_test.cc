#include "client/data_cache.h"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <cstring>

namespace nacre::client {
namespace {

class PlainRegion : public MemoryRegion {
 public:
  PlainRegion(std::byte* data, size_t size) : MemoryRegion(data, size) {}
};

// Registers memory; there is nobody to call.
class NoTransport : public Transport {
 public:
  StatusOr<std::shared_ptr<MemoryRegion>> Register(std::byte* data, size_t size) override {
    return std::make_shared<PlainRegion>(data, size);
  }
  StatusOr<std::shared_ptr<Peer>> Connect(const std::string&) override {
    return absl::UnimplementedError("no peers");
  }
  StatusOr<std::unique_ptr<Listener>> Listen(const std::string&, CallHandler) override {
    return absl::UnimplementedError("no listeners");
  }
};

class Cache : public testing::Test {
 protected:
  static constexpr size_t kChunks = 128;  // the least there is

  Cache() : cache_(*DataCache::Make(transport_, kChunks * kChunkSize, kChunks * kChunkSize / 2)) {}
  ~Cache() override { cache_->Drop(file_, 0, UINT64_MAX, nullptr); }

  ChunkPins Take(size_t count) {
    auto pins = cache_->TryAllocate(count);
    EXPECT_TRUE(pins.has_value());
    return pins ? *std::move(pins) : ChunkPins(cache_);
  }

  void Write(uint64_t offset, const std::string& data, bool clean = false) {
    ChunkPins spare = Take((offset + data.size() + kChunkSize - 1) / kChunkSize - offset / kChunkSize);
    DataCache::Write plan = cache_->PrepareWrite(file_, offset, offset + data.size(), &spare);
    ASSERT_FALSE(plan.pieces.empty());
    for (const ChunkPiece& piece : plan.pieces) {
      std::memcpy(piece.chunk->data + piece.interval.begin, data.data() + (piece.file_offset() - offset),
                  piece.interval.end - piece.interval.begin);
    }
    cache_->FinishWrite(file_, plan, clean, [this](uint64_t, uint64_t blocks) { dirty_blocks_ += blocks; });
  }

  std::optional<std::string> Read(uint64_t offset, uint64_t size) {
    std::vector<std::span<const std::byte>> pieces;
    ChunkPins pins(cache_);
    if (!cache_->TryRead(file_, offset, size, &pieces, &pins)) return std::nullopt;
    std::string out;
    for (auto piece : pieces) out.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    return out;
  }

  DataCache::Flight TakeAll(bool only_full = false) {
    return cache_->TakeDirty(file_, 0, UINT64_MAX, UINT64_MAX, only_full, UINT64_MAX);
  }

  NoTransport transport_;
  std::shared_ptr<DataCache> cache_;
  FileCache file_;
  uint64_t dirty_blocks_ = 0;
};

TEST_F(Cache, ReadsWhatWasWrittenAndNothingElse) {
  std::string data(100'000, 'a');
  Write(kChunkSize - 10, data);
  EXPECT_EQ(Read(kChunkSize - 10, data.size()), data);
  EXPECT_EQ(Read(kChunkSize - 11, 5), std::nullopt);
  EXPECT_EQ(Read(kChunkSize - 10, data.size() + 1), std::nullopt);
}

TEST_F(Cache, CountsEachDirtyBlockOnce) {
  Write(0, std::string(100, 'a'));
  Write(50, std::string(100, 'b'));
  Write(200, std::string(4000, 'c'));
  EXPECT_EQ(dirty_blocks_, 2u);
  uint64_t dropped = 0;
  cache_->Drop(file_, 100, UINT64_MAX, [&](uint64_t, uint64_t blocks) { dropped += blocks; });
  EXPECT_EQ(dropped, 1u);
  EXPECT_EQ(Read(0, 100), std::string(50, 'a') + std::string(50, 'b'));
}

TEST_F(Cache, AFlightHasWhatWasDirtyAndWritersWaitForIt) {
  Write(0, std::string(1000, 'a'));
  DataCache::Flight flight = TakeAll();
  ASSERT_EQ(flight.pieces.size(), 1u);
  EXPECT_EQ(flight.bytes, 1000u);
  ChunkPins none(cache_);
  EXPECT_TRUE(cache_->PrepareWrite(file_, 500, 600, &none).wait.has_value());
  Write(1000, "beside");                    // other bytes of the chunk are free
  EXPECT_TRUE(TakeAll().wait.has_value());  // one flight of a chunk at a time
  cache_->FinishFlight(file_, flight, true);
  flight = TakeAll();
  ASSERT_EQ(flight.pieces.size(), 1u);
  EXPECT_EQ(flight.bytes, 6u);
  cache_->FinishFlight(file_, flight, true);
  EXPECT_FALSE(cache_->IsDirty(file_));
  EXPECT_EQ(Read(998, 4), "aabe");
}

// An fsync waits for bytes that were dirty when it came, also if a flight took them only after that; not for
// younger ones.
TEST_F(Cache, WhoWaitsForFlightsWaitsForAllThatWasDirtyBefore) {
  asio::io_context context;
  bool over = false;
  auto wait = [&](uint64_t until) {
    over = false;
    Spawn(context.get_executor(),
          [](DataCache* cache, FileCache* file, uint64_t until, bool* over) -> Task<void> {
            co_await cache->WaitFlights(*file, 0, UINT64_MAX, until);
            *over = true;
          }(cache_.get(), &file_, until, &over));
    context.restart();
    context.poll();
  };
  const uint64_t before = cache_->Tick();
  Write(0, "dirty");
  const uint64_t after = cache_->Tick();
  DataCache::Flight flight = TakeAll();
  wait(before);
  EXPECT_TRUE(over);
  wait(after);
  EXPECT_FALSE(over);
  cache_->FinishFlight(file_, flight, true);
  context.restart();
  context.poll();
  EXPECT_TRUE(over);
}

TEST_F(Cache, AFlightThatKeepsNothingLeavesNothing) {
  Write(0, std::string(kChunkSize, 'a'));
  Write(3 * kChunkSize, "b");
  DataCache::Flight flight = TakeAll();
  flight.keep = false;
  EXPECT_EQ(Read(0, 1), "a") << "there while it is under way";
  cache_->FinishFlight(file_, flight, true);
  EXPECT_FALSE(Read(0, 1).has_value());
  EXPECT_EQ(cache_->cached_bytes(), 0u);
}

TEST_F(Cache, AFailedFlightIsForgottenButNotWhatCameAfterIt) {
  Write(0, std::string(1000, 'a'));
  DataCache::Flight flight = TakeAll();
  Write(1000, "later");
  cache_->FinishFlight(file_, flight, false);
  EXPECT_EQ(Read(0, 1), std::nullopt);
  EXPECT_EQ(Read(1000, 5), "later");
  EXPECT_TRUE(cache_->IsDirty(file_));
}

TEST_F(Cache, OnlyFullChunksGoEarly) {
  Write(100, std::string(2 * kChunkSize, 'a'));
  DataCache::Flight flight = TakeAll(true);
  ASSERT_EQ(flight.pieces.size(), 1u);
  EXPECT_EQ(flight.pieces[0].file_offset(), kChunkSize);
  cache_->FinishFlight(file_, flight, true);
}

TEST_F(Cache, AFrozenFileStartsNoFlight) {
  Write(0, "abc");
  cache_->Freeze(file_);
  EXPECT_TRUE(TakeAll().pieces.empty());
  cache_->Thaw(file_);
  EXPECT_EQ(TakeAll().bytes, 3u);
}

TEST_F(Cache, TheOldestCleanChunkGoesFirst) {
  for (uint64_t i = 0; i < kChunks; ++i) Write(i * kChunkSize, "x", true);
  EXPECT_TRUE(Read(0, 1).has_value());  // now the youngest
  Write(kChunks * kChunkSize, "y", true);
  EXPECT_TRUE(Read(0, 1).has_value());
  EXPECT_EQ(Read(kChunkSize, 1), std::nullopt);
}

TEST_F(Cache, PinnedAndDirtyChunksStay) {
  Write(0, "dirty");
  std::vector<std::span<const std::byte>> pieces;
  ChunkPins pins(cache_);
  Write(kChunkSize, "pinned", true);
  ASSERT_TRUE(cache_->TryRead(file_, kChunkSize, 6, &pieces, &pins));
  ChunkPins rest = Take(kChunks - 2);
  EXPECT_FALSE(cache_->TryAllocate(1).has_value());
  EXPECT_EQ(Read(0, 5), "dirty");
  cache_->Drop(file_, kChunkSize, 2 * kChunkSize, nullptr);
  EXPECT_EQ(std::memcmp(pieces[0].data(), "pinned", 6), 0);  // dropped from the file, but in place
}

TEST_F(Cache, AllocateWaitsItsTurn) {
  asio::io_context context;
  ChunkPins all = Take(kChunks);
  std::vector<int> order;
  auto take = [](DataCache* cache, size_t count, int id, std::vector<int>* out) -> Task<void> {
    ChunkPins pins = co_await cache->Allocate(count);
    out->push_back(id);
  };
  Spawn(context.get_executor(), take(cache_.get(), 100, 1, &order));
  Spawn(context.get_executor(), take(cache_.get(), 1, 2, &order));
  context.poll();
  EXPECT_TRUE(order.empty());
  all = ChunkPins(cache_);
  context.restart();
  context.poll();
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
}

TEST_F(Cache, AFetchFillsTheGapsBetweenWhatIsThere) {
  Write(100, "abc");
  ChunkPins none(cache_);
  DataCache::Fetch fetch = cache_->PlanFetch(file_, 0, 4096, &none);
  ASSERT_EQ(fetch.pieces.size(), 2u);
  EXPECT_EQ(fetch.pieces[0].interval, (Interval{0, 100}));
  EXPECT_EQ(fetch.pieces[1].interval, (Interval{103, 4096}));
  EXPECT_TRUE(cache_->PlanFetch(file_, 0, 50, &none).wait.has_value());  // somebody is fetching it
  for (const ChunkPiece& piece : fetch.pieces) {
    std::memset(piece.chunk->data + piece.interval.begin, 'z', piece.interval.end - piece.interval.begin);
  }
  cache_->FinishFetch(file_, fetch, true);
  EXPECT_EQ(Read(98, 7), "zzabczz");
}

}  // namespace
}  // namespace nacre::client
