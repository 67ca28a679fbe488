// The thread that gRPC's events come from. gRPC tells of the end of each operation (a message read, written,
// a call ended) through a completion queue; here one thread takes them from the queue and calls the reaction
// of each, one after the other. So a reaction must not wait for anything.
//
// gRPC's callback API, which needs no queue, has two threads at least, of which the one that waits in epoll
// wakes the other for each event to wait in its place: most of what a message cost (docs/decisions/0092).
//
// Included by rpc/grpc_*.cc, server/coordination/etcd_*.cc and its test only.
#pragma once

#include <grpc/support/time.h>
#include <grpcpp/completion_queue.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "common/clock.h"
#include "common/guests.h"
#include "common/turn.h"

namespace nacre {

// Reacts to the end of an operation of gRPC. It lives until then.
class Completion {
 public:
  // ok: gRPC's word for it. False: nothing was read, or written, and nothing will be.
  virtual void Done(bool ok) = 0;

 protected:
  ~Completion() = default;
};

// Calls a member of its owner, which it keeps alive while the operation is under way. One operation at a
// time. An owner has one for each kind of operation, and is made by std::make_shared.
template <typename Owner, void (Owner::*kReaction)(bool)>
class Reaction final : public Completion {
 public:
  explicit Reaction(Owner* owner) : owner_(*owner) {}

  // The tag for an operation that begins now.
  void* Begin() {
    kept_ = owner_.shared_from_this();
    return static_cast<Completion*>(this);
  }
  // For an operation that gRPC will not tell the end of.
  void Drop() { kept_.reset(); }

  void Done(bool ok) override {
    const auto kept = std::move(kept_);
    (owner_.*kReaction)(ok);
  }

 private:
  Owner& owner_;
  std::shared_ptr<Owner> kept_;
};

class GrpcTurn;

gpr_timespec DeadlineIn(Duration duration);

// A queue whose tags are Completions, and its thread. Thread-safe.
class Completions {
 public:
  explicit Completions(std::unique_ptr<grpc::CompletionQueue> queue);
  // Waits for what is under way. Nothing may begin any more, also not in a reaction.
  ~Completions();
  Completions(const Completions&) = delete;
  Completions& operator=(const Completions&) = delete;

  grpc::CompletionQueue* queue() { return queue_.get(); }

  // For all channels of this process. Never ends.
  static Completions& OfChannels();

 private:
  friend class GrpcTurn;

  void Lead();
  void StandBy();
  void StandIn(uint64_t turn);
  bool Nap(Duration duration);

  void SetTurn(GrpcTurn* turn);
  void TellHeldUp(uint64_t turn);

  const std::unique_ptr<grpc::CompletionQueue> queue_;
  std::mutex turn_mutex_;
  GrpcTurn* turn_ = nullptr;        // of the first thread, while it carries on with tasks
  std::atomic<uint64_t> turns_{0};  // how often it has begun and ended that; odd: it does so now
  std::mutex mutex_;
  std::condition_variable end_;
  bool ending_ = false;
  std::thread first_, second_;
};

// Tasks that a reaction starts or resumes on the executor while one of these lives run on this thread when it
// ends, up to their next wait, if this is the first thread of its Completions and the runtime takes guests.
// Else they are posted, as without.
class GrpcTurn {
 public:
  // lone: there is little to do, so that it is not worth waking a thread of the runtime. guests: of the
  // executor's runtime; may be null. behind: called once, when the turn has ended; or by the second thread as
  // soon as that has found that the tasks take long, never while this object lives.
  GrpcTurn(bool lone, const std::shared_ptr<Guests>& guests, const Executor& executor,
           absl::AnyInvocable<void()> behind);
  ~GrpcTurn();
  GrpcTurn(const GrpcTurn&) = delete;
  GrpcTurn& operator=(const GrpcTurn&) = delete;

 private:
  friend class Completions;

  Completions* completions_ = nullptr;  // null: it has none
  Guests* guests_ = nullptr;
  absl::AnyInvocable<void()> behind_;  // null: it has been called
  std::optional<Turn> turn_;
};

}  // namespace nacre
