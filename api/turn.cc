// nacre.h: places in CUDA streams.
#include "api/turn.h"

#include <absl/strings/str_format.h>

#include <cerrno>

#include "api/call.h"
#include "api/devices.h"

namespace nacre::api {

void Turn::Watch() {
  client_->connection().Start([](std::shared_ptr<Turn> self) -> Task<void> {
    Status arrived = co_await self->order_->Arrived();
    std::lock_guard lock(self->mutex_);
    self->status_ = std::move(arrived);
    self->arrived_.notify_all();
  }(shared_from_this()));
}

Status Turn::Wait(Duration timeout) {
  std::unique_lock lock(mutex_);
  auto known = [this] { return status_.has_value(); };
  if (timeout < Duration(0)) {
    arrived_.wait(lock, known);
  } else if (!arrived_.wait_for(lock, std::min<Duration>(timeout, kLongWait), known)) {
    return ErrnoError(EAGAIN, "the stream has not got there yet");
  }
  return *status_;
}

namespace {

Status TakeTurn(nacre_client handle, void* stream, const void* memory, nacre_turn* turn) {
  ASSIGN_OR_RETURN(std::shared_ptr<Client> client, FindClient(handle));
  if (turn == nullptr) return ErrnoError(EINVAL, "nacre_turn_take: a null argument");
  ASSIGN_OR_RETURN(std::shared_ptr<gpu::StreamOrder> order,
                   EnterStream(stream, memory, client->connection()));
  auto made = std::make_shared<Turn>(std::move(client), std::move(order));
  made->Watch();
  turn->id = AllTables().turns.Add(std::move(made));
  return OkStatus();
}

StatusOr<std::shared_ptr<Turn>> FindTurn(nacre_turn turn) {
  RETURN_IF_ERROR(CheckProcess());
  std::shared_ptr<Turn> found = AllTables().turns.Find(turn.id);
  if (found != nullptr) return found;
  return ErrnoError(EBADF,
                    absl::StrFormat("turn %d is not there: it has ended, or was never taken", turn.id));
}

Status AwaitTurn(nacre_turn turn, int64_t timeout) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Turn> found, FindTurn(turn));
  return found->Wait(std::chrono::nanoseconds(timeout));
}

Status EndTurn(nacre_turn turn) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Turn> found, FindTurn(turn));
  AllTables().turns.Take(turn.id);
  found->End();
  return OkStatus();
}

}  // namespace
}  // namespace nacre::api

using nacre::api::Answer;

extern "C" {

int nacre_turn_take(nacre_client client, void* stream, const void* memory, nacre_turn* turn) {
  return Answer(nacre::api::TakeTurn(client, stream, memory, turn));
}

int nacre_turn_wait(nacre_turn turn, int64_t timeout) { return Answer(nacre::api::AwaitTurn(turn, timeout)); }

int nacre_turn_end(nacre_turn turn) { return Answer(nacre::api::EndTurn(turn)); }

}  // extern "C"
