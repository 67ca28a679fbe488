// Mutations whose callers have been answered already, on their way to the MDS
// (docs/decisions/0022-metadata-write-behind.md). They go out in the order of Push: the first at once; while
// a batch is under way, and for four milliseconds after it, the next one gathers; for a tenth of one if
// somebody has waited (Drain) not long ago, so that the next one finds less to wait for. Gathering ends when
// somebody waits, or there is enough; then further batches go while the first is under way, and each says
// which one it follows (docs/decisions/0078-several-batches-under-way.md).
//
// Thread-safe. The outcome of each mutation is told to its `done`, in order, outside of all locks: the MDS's
// reply, or why there is none (EIO: the session of its epoch has ended). Must outlive what it has given to
// `background`.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "client/session.h"
#include "common/clock.h"
#include "common/status.h"
#include "common/task.h"
#include "proto/metadata.pb.h"

namespace nacre::client {

class MetadataQueue {
 public:
  using Done = absl::AnyInvocable<void(const StatusOr<proto::MetadataReply>&)>;

  // `background` runs a task; `allowed` hears what the MDS says about going on (BatchReply.names_behind).
  MetadataQueue(std::shared_ptr<Session> session, Clock& clock, std::function<void(Task<void>)> background,
                std::function<void(bool)> allowed);

  // Numbers the mutation in the session of this epoch and appends it.
  void Push(uint64_t epoch, proto::MetadataRequest mutation, Done done);

  // Non-OK: the task's chain was cancelled before.
  Task<Status> WaitForRoom();

  // Whether everything pushed has been answered.
  bool Idle();
  enum class Hurry { kNo, kYes };  // kNo: nobody waits for the caller
  // Waits until everything pushed before the call has been answered.
  Task<void> Drain(Hurry hurry = Hurry::kYes);

  uint64_t pushed();
  uint64_t answered();

 private:
  struct Item {
    uint64_t epoch = 0;
    proto::MetadataRequest mutation;
    size_t bytes = 0;
    Done done;
  };
  struct Waiter {
    uint64_t until = 0;  // answered by then
    bool hurries = true;
    OneShot<Unit> reached;
  };

  struct Batch {
    std::vector<Item> items;
    uint64_t after = 0;                   // proto::Batch
    std::optional<OneShot<Unit>> before;  // set when the batch before this one is over
    OneShot<Unit> over;
  };

  bool HasRoomLocked() const;             // mutex_ is held
  bool EnoughLocked(size_t times) const;  // likewise: whether so much waits that a batch of it is worth it
  bool HurriesLocked() const;             // likewise: whether the next batch goes at once
  bool MayGoLocked() const;               // likewise: whether there may be one more under way
  Task<void> Send();
  Task<void> AwaitTurn();
  Task<void> Gather();
  void HurryIfNeeded();
  std::optional<Batch> TakeBatch();
  Task<void> SendBatch(Batch batch);
  void Answer(std::vector<Item>& items, StatusOr<proto::MetadataReply> reply);
  void Count(size_t answered);

  const std::shared_ptr<Session> session_;
  Clock& clock_;
  const std::function<void(Task<void>)> background_;
  const std::function<void(bool)> allowed_;

  std::mutex mutex_;
  std::deque<Item> waiting_;
  size_t waiting_bytes_ = 0;
  bool sending_ = false;
  std::optional<OneShot<Unit>> next_;  // the next batch waits until it may go
  size_t under_way_ = 0;               // batches; of the newest of them:
  OneShot<Unit> newest_over_;
  uint64_t newest_epoch_ = 0;
  uint64_t newest_last_ = 0;                // sequence
  std::optional<OneShot<Unit>> gathering_;  // ends it
  uint64_t pushed_ = 0;
  uint64_t taken_ = 0;  // by batches
  uint64_t answered_ = 0;
  std::vector<Waiter> drains_;
  Duration hurry_until_{0};  // since somebody has waited
  std::vector<OneShot<Unit>> room_waiters_;
};

}  // namespace nacre::client
