// An OST in memory, driven on one thread, for the tests of this directory.
#pragma once

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <cstring>
#include <functional>
#include <memory>
#include <string>

#include "common/crc32c.h"
#include "common/random.h"
#include "server/kv/mem_kv.h"
#include "server/object/mem_block_store.h"
#include "server/object/object_store.h"

namespace nacre::ost {

// The context outlives the last post of a store's own threads.
template <typename T>
T RunTask(Task<T> task) {
  static asio::io_context context;
  context.restart();
  std::optional<T> result;
  Spawn(context.get_executor(), [](Task<T> task, std::optional<T>* result) -> Task<void> {
    result->emplace(co_await std::move(task));
  }(std::move(task), &result));
  auto work = asio::make_work_guard(context);
  while (!result) context.run_one();
  return *std::move(result);
}

inline std::span<const std::byte> AsBytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

class StringSource : public DataSource {
 public:
  explicit StringSource(std::string data) : data_(std::move(data)) {}
  Task<Status> Fetch(uint64_t offset, std::span<const std::span<std::byte>> buffers) override {
    for (auto buffer : buffers) {
      std::memcpy(buffer.data(), data_.data() + offset, buffer.size());
      offset += buffer.size();
    }
    co_return OkStatus();
  }

 private:
  std::string data_;
};

class StringSink : public DataSink {
 public:
  explicit StringSink(size_t size) : data(size, '\0') {}
  Task<Status> Deliver(uint64_t offset, std::span<const std::span<const std::byte>> buffers,
                       std::shared_ptr<void>) override {
    for (auto buffer : buffers) {
      if (offset + buffer.size() > data.size()) co_return ErrnoError(EINVAL, "beyond the sink");
      std::memcpy(data.data() + offset, buffer.data(), buffer.size());
      offset += buffer.size();
    }
    ++deliveries;
    co_return OkStatus();
  }
  std::string data;
  int deliveries = 0;
};

inline std::vector<uint32_t> Checksums(uint64_t offset, std::string_view data) {
  std::vector<uint32_t> crc(CrcCount(offset, data.size()));
  Crc32cBlocks(offset, AsBytes(data), crc.data());
  return crc;
}

inline std::vector<uint32_t> ScatteredChecksums(const std::vector<ByteRange>& ranges, std::string_view data) {
  std::vector<uint32_t> crc;
  for (const ByteRange& range : ranges) {
    std::vector<uint32_t> own = Checksums(range.offset, data.substr(0, range.length));
    crc.insert(crc.end(), own.begin(), own.end());
    data.remove_prefix(range.length);
  }
  return crc;
}

inline std::string RandomBytes(Random* random, size_t size) {
  std::string data(size, '\0');
  for (size_t i = 0; i < size; i += 8) {
    uint64_t word = random->Next();
    std::memcpy(data.data() + i, &word, std::min<size_t>(8, size - i));
  }
  return data;
}

class StoreFixture {
 public:
  explicit StoreFixture(uint64_t blocks = 4096, StoreOptions options = {}, MemBlockStoreOptions disk = {})
      : disk(blocks, disk), options_(options) {
    Status status = Open();
    EXPECT_TRUE(status.ok()) << status;
  }

  Status Open() {
    if (pool == nullptr) pool = *BufferPool::Create(8 << 20, nullptr);
    OstDevices devices{3, &kv, &disk, "memory"};
    auto opened = Run(ObjectStore::Open(devices, pool, 0, &random, options_));
    if (!opened.ok()) return opened.status();
    store = *std::move(opened);
    return OkStatus();
  }

  // The cache of the old process must not hide what the disk has.
  Status Reopen() {
    if (store != nullptr) store->Close();
    store.reset();
    pool.reset();
    return Open();
  }

  template <typename T>
  T Run(Task<T> task) {
    std::optional<T> result;
    Spawn(context.get_executor(), [](Task<T> task, std::optional<T>* result) -> Task<void> {
      result->emplace(co_await std::move(task));
    }(std::move(task), &result));
    context.restart();
    while (!result && context.run_one() > 0) {
    }
    EXPECT_TRUE(result.has_value()) << "the task never finished";
    return *std::move(result);
  }

  // For one read or write of so many bytes.
  Allotment Admit(uint64_t bytes) { return Run(store->Admit(1, bytes / kBlockSize + 2)); }

  StatusOr<int64_t> Write(ObjectId id, uint64_t offset, std::string data, GrantUse* grant = nullptr) {
    Allotment memory = Admit(data.size());
    WriteArgs args{id, {{offset, data.size()}}, Fid{7, 1, 0}, Checksums(offset, data), grant};
    StringSource source(std::move(data));
    return Run(store->Write(std::move(args), &source, &memory));
  }

  // `data` goes to the ranges in their order.
  StatusOr<int64_t> WriteScattered(ObjectId id, std::vector<ByteRange> ranges, std::string data) {
    Allotment memory = Admit(data.size() + ranges.size() * kBlockSize);
    WriteArgs args{
        id, {ranges.begin(), ranges.end()}, Fid{7, 1, 0}, ScatteredChecksums(ranges, data), nullptr};
    StringSource source(std::move(data));
    return Run(store->Write(std::move(args), &source, &memory));
  }

  // Bytes as a client sees them: zeros in holes, checksums verified. Cut at the object's end.
  StatusOr<std::string> Read(ObjectId id, uint64_t offset, uint64_t length) {
    StringSink sink(length);
    Allotment memory = Admit(length);
    RangeRead read = Run(store->Read(id, offset, length, &sink, &memory));
    if (!read.status.ok()) return read.status;
    std::string data = sink.data.substr(0, read.length);
    std::vector<uint32_t> crc = Checksums(offset, data);
    for (const HoleRange& hole : read.holes) {
      for (uint64_t at = hole.offset; at < hole.offset + hole.length; ++at) {
        EXPECT_EQ(data[at], '\0') << "delivered into a hole";
      }
      uint64_t first = (offset + hole.offset) / kBlockSize,
               last = (offset + hole.offset + hole.length - 1) / kBlockSize;
      for (uint64_t block = first; block <= last; ++block) crc[block - offset / kBlockSize] = 0;
    }
    EXPECT_EQ(read.crc, crc) << "at " << offset << " of " << id.ToString();
    return data;
  }

  asio::io_context context;
  SeededRandom random{1};
  MemKv kv;
  MemBlockStore disk;
  std::shared_ptr<BufferPool> pool;
  std::unique_ptr<ObjectStore> store;

 private:
  StoreOptions options_;
};

}  // namespace nacre::ost
