#include "rpc/grpc_session.h"

#include <absl/strings/str_format.h>

#include <boost/asio/post.hpp>
#include <cerrno>

#include "common/burst.h"
#include "common/log.h"
#include "rpc/grpc_common.h"

namespace nacre {
namespace {

// Requests neither begin nor are read while so much waits to be sent: a client that does not read cannot fill
// our memory.
constexpr size_t kMaxQueuedBytes = 64 << 20;

}  // namespace

void GrpcSession::Wait(void* tag) {
  context_.AsyncNotifyWhenDone(over_.Begin());
  service_.RequestSession(&context_, &stream_, serving_.queue, serving_.queue, tag);
}

void GrpcSession::Start() {
  user_.emplace(serving_.users);
  name_ = context_.peer();
  stream_.SendInitialMetadata(tell_.Begin());  // tells the client that we are there
  stream_.Read(&incoming_, read_.Begin());
}

void GrpcSession::Send(proto::Push push) {
  std::unique_lock lock(mutex_);
  if (ended_) return;
  *outgoing_.Room(push.ByteSizeLong()).add_pushes() = std::move(push);
  Write(std::move(lock));
}

// Messages that were sent before still go out.
void GrpcSession::Close() { End(false); }

// Reads on behind what a lone request leads to: that tells the client that it may send more, which wakes it,
// so its answer goes first.
void GrpcSession::OnRead(bool ok) {
  if (!ok) return End(true);
  const GrpcTurn turn(incoming_.requests_size() == 1, serving_.guests, executor_, [this] { ReadOn(); });
  std::unique_lock lock(mutex_);
  for (auto& request : *incoming_.mutable_requests()) {
    const size_t bytes = request.ByteSizeLong();
    requests_.Add(std::move(request), bytes);
  }
  incoming_.Clear();
  Proceed(std::move(lock));
}

void GrpcSession::ReadOn() {
  std::unique_lock lock(mutex_);
  reading_ = false;
  Proceed(std::move(lock));
}

void GrpcSession::OnWritten(bool ok) {
  if (!ok) End(true);
  std::unique_lock lock(mutex_);
  writing_ = false;
  if (ended_ || outgoing_.empty())
    Write(std::move(lock));
  else
    WriteSoon(std::move(lock));
  Proceed(std::unique_lock(mutex_));
}

void GrpcSession::OnFinished(bool) {
  asio::post(executor_, [self = shared_from_this()] { self->handler_.Disconnected(self); });
}

Task<void> GrpcSession::Handle(std::shared_ptr<GrpcSession> self, proto::MetadataRequest request) {
  const uint64_t id = request.id();
  proto::MetadataReply reply = co_await self->handler_.Handle(self, std::move(request));
  reply.set_id(id);
  self->Answer(std::move(reply));
}

// Lets requests begin, and reads on, while not too much waits to be sent. The executor takes what is posted
// in order, so when the next burst has its turn, those of this one have been answered or wait for
// something.
void GrpcSession::Proceed(std::unique_lock<std::mutex> lock) {
  if (ended_) return;
  std::vector<proto::MetadataRequest> begun;
  if (outgoing_.bytes() <= kMaxQueuedBytes && !burst_posted_) begun = requests_.Begin();
  const bool more = !begun.empty() && requests_.CanBegin();
  burst_posted_ |= more;
  const bool read = !reading_ && requests_.HasRoom() && outgoing_.bytes() <= kMaxQueuedBytes;
  reading_ |= read;
  // The answers of those that begin together leave together.
  const bool waits = begun.size() > 1 && BeginToWait();
  // Keeps the server's queue until the read has begun: another thread may end the stream meanwhile.
  std::optional<GrpcUsers::User> reader;
  if (read) reader.emplace(serving_.users);
  lock.unlock();
  {
    const Burst burst(executor_);
    for (auto& request : begun) Spawn(executor_, Handle(shared_from_this(), std::move(request)));
  }
  if (waits) PostWrite();
  if (more) asio::post(executor_, [self = shared_from_this()] { self->NextBurst(); });
  if (read) stream_.Read(&incoming_, read_.Begin());
}

void GrpcSession::NextBurst() {
  std::unique_lock lock(mutex_);
  burst_posted_ = false;
  Proceed(std::move(lock));
}

void GrpcSession::Answer(proto::MetadataReply reply) {
  size_t bytes = reply.ByteSizeLong();
  if (bytes > kMaxMetadataMessage) {
    std::string message =
        absl::StrFormat("a reply of %d bytes is beyond the limit of %d", bytes, kMaxMetadataMessage);
    LogError("%s: %s", name_, message);
    const uint64_t id = reply.id();
    reply.Clear();
    reply.set_id(id);
    reply.mutable_status()->set_error(EMSGSIZE);
    reply.mutable_status()->set_message(message);
    bytes = reply.ByteSizeLong();
  }
  std::unique_lock lock(mutex_);
  requests_.Ended();
  if (ended_) return;
  *outgoing_.Room(bytes).add_replies() = std::move(reply);
  const bool more = requests_.CanBegin();
  WriteSoon(std::move(lock));
  if (more) Proceed(std::unique_lock(mutex_));
}

// Starts what is to be done next, if nothing is under way: a write, or the end.
void GrpcSession::Write(std::unique_lock<std::mutex> lock) {
  if (writing_ || finished_) return;
  if (!outgoing_.empty()) {
    writing_ = true;
    writing_frame_ = outgoing_.Take();
    lock.unlock();
    stream_.Write(writing_frame_, write_.Begin());
    return;
  }
  if (!ended_) return;
  finished_ = true;
  lock.unlock();
  stream_.Finish(grpc::Status::OK, finish_.Begin());
  user_.reset();
}

void GrpcSession::End(bool lost) {
  std::unique_lock lock(mutex_);
  ended_ = true;
  requests_.Clear();
  if (lost) outgoing_.Clear();
  Write(std::move(lock));
}

}  // namespace nacre
