// The server's end of a call: how calls are waited for, and those with one answer. Included by rpc/grpc_*.cc
// only.
#pragma once

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "common/task.h"
#include "rpc/grpc_completions.h"

namespace nacre {

// Counts who may still begin an operation with a server's queue, which must not end before. Thread-safe.
class GrpcUsers {
 public:
  // One of them; from its making to its end.
  class User {
   public:
    explicit User(GrpcUsers& users) : users_(&users) {
      std::lock_guard lock(users.mutex_);
      ++users.count_;
    }
    User(const User&) = delete;
    User& operator=(const User&) = delete;
    ~User() { End(); }

    void End() {
      if (users_ == nullptr) return;
      std::lock_guard lock(users_->mutex_);
      if (--users_->count_ == 0) users_->none_.notify_all();
      users_ = nullptr;
    }

   private:
    GrpcUsers* users_;
  };

  void WaitForNone() {
    std::unique_lock lock(mutex_);
    none_.wait(lock, [this] { return count_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable none_;
  int count_ = 0;
};

// The state that all calls to one server have in common.
struct GrpcServing {
  explicit GrpcServing(const Executor& executor) : executor(executor), guests(Guests::Of(executor)) {}

  const Executor executor;
  const std::shared_ptr<Guests> guests;  // of the executor's runtime; null: it is of none
  grpc::ServerCompletionQueue* queue = nullptr;
  GrpcUsers users;
};

// Waits for calls to one method, one after the other, each an object of its own: Call, made by
// `make`. Call::Wait(tag) asks gRPC for it; then either Call::Start() begins it or Call::Drop() ends it.
template <typename Call>
class GrpcCalls : public std::enable_shared_from_this<GrpcCalls<Call>> {
 public:
  using Make = std::function<std::shared_ptr<Call>()>;

  GrpcCalls(GrpcServing& serving, Make make) : user_(serving.users), make_(std::move(make)) {}

  void WaitForNext() {
    next_ = make_();
    next_->Wait(come_.Begin());
  }

 private:
  // False: the server has been shut down.
  void OnCome(bool ok) {
    const std::shared_ptr<Call> call = std::move(next_);
    if (!ok) {
      call->Drop();
      return user_.End();
    }
    WaitForNext();
    call->Start();
  }

  GrpcUsers::User user_;
  const Make make_;
  std::shared_ptr<Call> next_;
  Reaction<GrpcCalls, &GrpcCalls::OnCome> come_{this};
};

// A call with one answer. Ends with the handler's reply or when the caller is gone, whatever comes first.
template <typename Request, typename Reply>
class UnaryCall : public std::enable_shared_from_this<UnaryCall<Request, Reply>> {
 public:
  using Writer = grpc::ServerAsyncResponseWriter<Reply>;
  using WaitFor = std::function<void(grpc::ServerContext*, Request*, Writer*, void* tag)>;
  using Handle = std::function<Task<Reply>(Request)>;

  // wait_for: gRPC's Request… of the method. handle: the handler's method.
  UnaryCall(GrpcServing& serving, WaitFor wait_for, Handle handle)
      : serving_(serving), wait_for_(std::move(wait_for)), handle_(std::move(handle)) {}

  void Wait(void* tag) {
    context_.AsyncNotifyWhenDone(over_.Begin());
    wait_for_(&context_, &request_, &writer_, tag);
  }
  void Start() {
    {
      std::lock_guard lock(mutex_);
      user_.emplace(serving_.users);
    }
    Spawn(serving_.executor, Run(this->weak_from_this(), handle_(std::move(request_))));
  }
  void Drop() { over_.Drop(); }

 private:
  // The handler may need longer than the server lives.
  static Task<void> Run(std::weak_ptr<UnaryCall> call, Task<Reply> task) {
    const Reply reply = co_await std::move(task);
    if (const auto self = call.lock()) self->End(&reply);
  }

  void OnOver(bool) { End(nullptr); }
  void OnWritten(bool) {}

  void End(const Reply* reply) {
    std::lock_guard lock(mutex_);
    if (!user_) return;
    if (reply != nullptr)
      writer_.Finish(*reply, grpc::Status::OK, write_.Begin());
    else
      writer_.FinishWithError(grpc::Status::CANCELLED, write_.Begin());
    user_.reset();
  }

  GrpcServing& serving_;
  const WaitFor wait_for_;
  const Handle handle_;
  grpc::ServerContext context_;
  Request request_;
  Writer writer_{&context_};
  std::mutex mutex_;
  std::optional<GrpcUsers::User> user_;  // while it may have to be ended
  Reaction<UnaryCall, &UnaryCall::OnOver> over_{this};
  Reaction<UnaryCall, &UnaryCall::OnWritten> write_{this};
};

}  // namespace nacre
