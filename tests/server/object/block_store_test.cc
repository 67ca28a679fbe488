// The contract of BlockStore, for the disk's forms and the one in memory.
#include "server/object/block_store.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <boost/asio/io_context.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "common/runtime.h"
#include "server/object/mem_block_store.h"
#include "server/object/uring_block_store.h"
#include "tests/server/object/store_fixture.h"

namespace nacre {
namespace {

using ost::RunTask;

constexpr uint64_t kBytes = 128 << 20;

struct AlignedBlocks {
  explicit AlignedBlocks(size_t count)
      : size(count * kBlockSize), data(static_cast<std::byte*>(aligned_alloc(kBlockSize, size))) {
    std::memset(data, 0xee, size);
  }
  ~AlignedBlocks() { free(data); }
  std::span<std::byte> span(size_t first, size_t count) {
    return {data + first * kBlockSize, count * kBlockSize};
  }
  size_t size;
  std::byte* data;
};

enum class Form { kMemory, kUring, kUringOnExecutor, kThreads, kPageCache };

class BlockStoreTest : public testing::TestWithParam<Form> {
 protected:
  void SetUp() override {
    if (GetParam() == Form::kMemory) {
      store_ = std::make_unique<MemBlockStore>(kBytes / kBlockSize);
      return;
    }
    char name[] = "/var/tmp/nacre_blocks_test.XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    directory_ = name;
    options_.size_bytes = kBytes;
    options_.use_uring = GetParam() != Form::kThreads;
    options_.use_direct = GetParam() != Form::kPageCache;
    if (GetParam() == Form::kUringOnExecutor) options_.executor = runtime_.executor();
    Open();
  }
  void TearDown() override {
    store_.reset();
    if (!directory_.empty()) std::filesystem::remove_all(directory_);
  }
  void Open() {
    auto store = OpenUringBlockStore(directory_, options_);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }

  Runtime runtime_{2};
  UringBlockStoreOptions options_;
  std::string directory_;
  std::unique_ptr<BlockStore> store_;
};

std::string FormName(const testing::TestParamInfo<Form>& info) {
  constexpr const char* kNames[] = {"Memory", "Uring", "UringOnExecutor", "Threads", "PageCache"};
  return kNames[static_cast<int>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(Forms, BlockStoreTest,
                         testing::Values(Form::kMemory, Form::kUring, Form::kUringOnExecutor, Form::kThreads,
                                         Form::kPageCache),
                         FormName);

TEST_P(BlockStoreTest, ReadsWhatWasWritten) {
  EXPECT_EQ(store_->block_count(), kBytes / kBlockSize);
  SeededRandom random(3);
  AlignedBlocks out(8), in(8);
  for (size_t i = 0; i < out.size; ++i) out.data[i] = static_cast<std::byte>(random.Next());
  ASSERT_TRUE(RunTask(store_->Preallocate(0, 16384)).ok());
  std::vector<std::span<const std::byte>> write{out.span(5, 3), out.span(0, 2)};
  ASSERT_TRUE(RunTask(store_->Write(100, write)).ok());
  std::vector<std::span<std::byte>> read{in.span(1, 1), in.span(3, 5)};
  ASSERT_TRUE(RunTask(store_->Read(100, read)).ok());
  EXPECT_EQ(std::memcmp(in.span(1, 1).data(), out.span(5, 1).data(), kBlockSize), 0);
  EXPECT_EQ(std::memcmp(in.span(3, 2).data(), out.span(6, 2).data(), 2 * kBlockSize), 0);
  EXPECT_EQ(std::memcmp(in.span(5, 2).data(), out.span(0, 2).data(), 2 * kBlockSize), 0);
  EXPECT_EQ(in.span(7, 1)[17], std::byte{0}) << "what was never written is zeros";
  EXPECT_TRUE(RunTask(store_->Flush()).ok());
}

TEST_P(BlockStoreTest, ManyAtOnce) {
  ASSERT_TRUE(RunTask(store_->Preallocate(0, 16384)).ok());
  std::vector<std::unique_ptr<AlignedBlocks>> buffers;
  std::vector<Task<Status>> writes;
  for (uint64_t i = 0; i < 100; ++i) {
    buffers.push_back(std::make_unique<AlignedBlocks>(1));
    std::memset(buffers.back()->data, static_cast<int>(i), kBlockSize);
    writes.push_back([](BlockStore* store, uint64_t i, AlignedBlocks* buffer) -> Task<Status> {
      std::vector<std::span<const std::byte>> spans{buffer->span(0, 1)};
      co_return co_await store->Write(i * 3, spans);
    }(store_.get(), i, buffers.back().get()));
  }
  for (Status& status : RunTask(WhenAll(std::move(writes)))) EXPECT_TRUE(status.ok()) << status;
  AlignedBlocks in(1);
  for (uint64_t i = 0; i < 100; ++i) {
    std::vector<std::span<std::byte>> spans{in.span(0, 1)};
    ASSERT_TRUE(RunTask(store_->Read(i * 3, spans)).ok());
    EXPECT_EQ(in.data[77], static_cast<std::byte>(i));
  }
}

TEST_P(BlockStoreTest, RangesAreChecked) {
  AlignedBlocks buffer(2);
  std::vector<std::span<std::byte>> spans{buffer.span(0, 2)};
  EXPECT_EQ(ToErrno(RunTask(store_->Read(kBytes / kBlockSize - 1, spans))), EINVAL);
  std::vector<std::span<const std::byte>> out{buffer.span(0, 2)};
  EXPECT_EQ(ToErrno(RunTask(store_->Write(~uint64_t{0}, out))), EINVAL);
}

TEST_P(BlockStoreTest, DiscardGivesSpaceBack) {
  if (GetParam() == Form::kMemory) GTEST_SKIP() << "the one in memory has no disk below";
  auto used = [this] {
    struct stat info;
    EXPECT_EQ(stat((directory_ + "/blocks.0").c_str(), &info), 0);
    return static_cast<uint64_t>(info.st_blocks) * 512;
  };
  ASSERT_TRUE(RunTask(store_->Preallocate(0, 2048)).ok());
  EXPECT_GE(used(), 2048 * kBlockSize);
  ASSERT_TRUE(RunTask(store_->Discard(0, 2048)).ok());
  EXPECT_LT(used(), 64 * kBlockSize);
}

TEST_P(BlockStoreTest, SecondUserIsRefused) {
  if (GetParam() == Form::kMemory) GTEST_SKIP() << "the one in memory is its owner's";
  Status status = OpenUringBlockStore(directory_, options_).status();
  EXPECT_EQ(ToErrno(status), EBUSY);
  EXPECT_NE(status.message().find(AbslView(directory_)), absl::string_view::npos) << status;
}

TEST_P(BlockStoreTest, KeepsItsContentAcrossOpens) {
  if (GetParam() == Form::kMemory) GTEST_SKIP() << "the one in memory is gone with its process";
  AlignedBlocks out(1), in(1);
  std::vector<std::span<const std::byte>> write{out.span(0, 1)};
  ASSERT_TRUE(RunTask(store_->Write(9, write)).ok());
  store_.reset();
  Open();
  std::vector<std::span<std::byte>> read{in.span(0, 1)};
  std::memset(in.data, 0, kBlockSize);
  ASSERT_TRUE(RunTask(store_->Read(9, read)).ok());
  EXPECT_EQ(std::memcmp(in.data, out.data, kBlockSize), 0);
}

TEST(UringBlockStore, BadPathsAndSizes) {
  EXPECT_EQ(ToErrno(OpenUringBlockStore("/nonexistent/x", {}).status()), ENOENT);
  EXPECT_EQ(ToErrno(OpenUringBlockStore("/dev/null", {}).status()), EINVAL);
  char name[] = "/var/tmp/nacre_blocks_test.XXXXXX";
  ASSERT_NE(mkdtemp(name), nullptr);
  UringBlockStoreOptions options;
  options.size_bytes = 4096;
  EXPECT_EQ(ToErrno(OpenUringBlockStore(name, options).status()), EINVAL);
  options.size_bytes = kBytes;
  options.reserve_bytes = uint64_t{1} << 60;
  auto store = OpenUringBlockStore(name, options);
  ASSERT_TRUE(store.ok());
  EXPECT_EQ((*store)->available_blocks(), 0u);
  EXPECT_EQ(ToErrno(RunTask((*store)->Preallocate(0, 1))), ENOSPC);
  store->reset();
  std::filesystem::remove_all(name);
}

TEST(MemBlockStore, AnInterruptedWriteIsDoneInParts) {
  asio::io_context context;
  bool some = false, none = false;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SeededRandom random(seed);
    MemBlockStoreOptions options;
    options.clock = &RealClock();
    options.random = &random;
    options.min_delay = options.max_delay = 1h;
    MemBlockStore store(100, options);
    AlignedBlocks out(4);
    std::vector<std::span<const std::byte>> write{out.span(0, 4)};
    Spawn(context.get_executor(),
          [](MemBlockStore* store, std::vector<std::span<const std::byte>> write) -> Task<void> {
            (co_await store->Write(0, write)).IgnoreError();
          }(&store, write));
    context.restart();
    context.poll();
    store.CrashProcess(random);
    store.LosePower(random);
    MemBlockStore* raw = &store;
    AlignedBlocks in(4);
    std::vector<std::span<std::byte>> read{in.span(0, 4)};
    raw->SetNoDelay();
    ASSERT_TRUE(RunTask(raw->Read(0, read)).ok());
    for (int i = 0; i < 4; ++i) {
      (in.data[static_cast<size_t>(i) * kBlockSize] == std::byte{0xee} ? some : none) = true;
    }
  }
  EXPECT_TRUE(some && none);
}

TEST(MemBlockStore, PowerLossKeepsWhatWasFlushed) {
  SeededRandom random(1);
  MemBlockStore store(100);
  AlignedBlocks buffer(1);
  auto write = [&](uint64_t block, int fill) {
    std::memset(buffer.data, fill, kBlockSize);
    std::vector<std::span<const std::byte>> spans{buffer.span(0, 1)};
    ASSERT_TRUE(RunTask(store.Write(block, spans)).ok());
  };
  auto read = [&](uint64_t block) {
    std::vector<std::span<std::byte>> spans{buffer.span(0, 1)};
    EXPECT_TRUE(RunTask(store.Read(block, spans)).ok());
    return static_cast<int>(buffer.data[5]);
  };
  bool lost = false, kept = false;
  for (int i = 0; i < 30; ++i) {
    write(1, 10);
    ASSERT_TRUE(RunTask(store.Flush()).ok());
    write(1, 20);
    write(2, 30);
    store.LosePower(random);
    (read(1) == 10 ? lost : kept) = true;
    EXPECT_TRUE(read(1) == 10 || read(1) == 20);
  }
  EXPECT_TRUE(lost && kept);
}

}  // namespace
}  // namespace nacre
