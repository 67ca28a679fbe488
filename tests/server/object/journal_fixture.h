// A Journal in memory, for the tests of commits and of the recovery.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "common/crc32c.h"
#include "server/kv/mem_kv.h"
#include "server/object/journal.h"
#include "server/object/mem_block_store.h"
#include "tests/common/await.h"

namespace nacre::ost {

// A request of a session with an answer to be recorded.
class TestRequest : public Originator {
 public:
  TestRequest(SessionId session, uint32_t slot, uint64_t sequence) {
    answering_.answer = {{session, slot}, {sequence, 1, 0}};
  }
  SessionId session() const override { return answering_.answer.slot.session; }
  Status BeginCommit() override {
    if (refusal.ok()) ++committing;
    return refusal;
  }
  void EndCommit() override { --committing; }
  Answering* answering() override { return &answering_; }
  bool stored() const { return answering_.stored; }

  Status refusal = OkStatus();
  int committing = 0;

 private:
  Answering answering_;
};

class JournalTest : public testing::Test {
 protected:
  static constexpr uint64_t kBlocks = 4096;

  JournalTest() { space_->allocator().FinishScan(); }

  // Writes `content` to a block of the device, and maps a block of the object to it. Of data that have not
  // arrived the device has something else.
  StatusOr<Journal::Committed> Put(ObjectState* object, uint64_t block, uint64_t physical, char content,
                                   TestRequest* by = nullptr, bool ends_request = false,
                                   bool arrives = true) {
    const std::string data(kBlockSize, content), other(kBlockSize, '?');
    const std::string& stored = arrives ? data : other;
    std::vector<std::span<const std::byte>> buffers(
        1, std::span(reinterpret_cast<const std::byte*>(stored.data()), stored.size()));
    EXPECT_TRUE(Await(disk_.Write(physical, buffers)).ok());
    const uint32_t crc = Crc32c({reinterpret_cast<const std::byte*>(data.data()), data.size()});
    ObjectChange change;
    change.by = by;
    change.ends_request = ends_request;
    change.edits.push_back({block, 1, &physical, &crc});
    change.grow_to = (block + 1) * kBlockSize;
    change.parent = Fid{7, 1, 0};
    return Await(journal_->Commit(object, change));
  }

  // The block of the device that a block of the object is mapped to; none: a hole.
  std::optional<uint64_t> Mapped(const ObjectId& id, uint32_t block) {
    Chunk chunk;
    EXPECT_TRUE(LoadChunk(&kv_, id, 0, &chunk).ok());
    if (!chunk.is_mapped(block)) return std::nullopt;
    return chunk.physical[block];
  }

  // That has a key of its own, its undo record being gone.
  std::optional<AnswerRecord> KeptAnswer(SessionId session, uint32_t slot) {
    StatusOr<std::string> stored = kv_.Get(AnswerKey(session, slot));
    if (!stored.ok()) return std::nullopt;
    return ParseAnswerRecord(*stored).value();
  }

  size_t Count(std::string_view prefix) { return kv_.Scan(prefix, PrefixEnd(prefix), 1000)->size(); }

  // The process ends, with the machine perhaps; another one recovers.
  StatusOr<Journal::Recovered> Recover() {
    journal_ = std::make_unique<Journal>(&kv_, &disk_, space_.get(), &chunks_);
    return Await(journal_->Recover(/*may_have_lost=*/true));
  }

  MemKv kv_;
  MemBlockStore disk_{kBlocks};
  std::unique_ptr<Space> space_ = std::make_unique<Space>(&disk_, "memory");
  ChunkCache chunks_{&kv_, ChunkCache::kLeast};
  std::unique_ptr<Journal> journal_ = std::make_unique<Journal>(&kv_, &disk_, space_.get(), &chunks_);
};

}  // namespace nacre::ost
