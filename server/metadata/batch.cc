#include "server/metadata/batch.h"

#include <absl/container/inlined_vector.h>
#include <absl/types/span.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "common/ids.h"
#include "rpc/convert.h"
#include "rpc/mutation.h"

namespace nacre::mds {
namespace {

constexpr size_t kMostUnderWay = 32;

using Fids = absl::InlinedVector<Fid, 2>;

// The inodes that the request names by their FIDs.
Fids NamedBy(const proto::MetadataRequest& request) {
  if (request.has_mknod()) return {FromProto(request.mknod().parent()), FromProto(request.mknod().fid())};
  if (request.has_unlink()) return {FromProto(request.unlink().parent())};
  return {ChangedInode(request)};
}

// Whether others may begin while it is under way, and it while others are: it takes its locks before it reads
// what counts, and commits once.
bool GoesBesideOthers(const proto::MetadataRequest& request) {
  switch (request.op_case()) {
    case proto::MetadataRequest::kMknod:
      return request.mknod().has_fid();
    case proto::MetadataRequest::kUnlink:
    case proto::MetadataRequest::kUpdateSize:
      return true;
    case proto::MetadataRequest::kWriteInline:
      return !request.write_inline().replace();
    case proto::MetadataRequest::kSetattr:
      return !request.setattr().set_size();
    default:
      return false;
  }
}

bool Meet(absl::Span<const Fid> some, absl::Span<const Fid> others) {
  return std::ranges::any_of(some,
                             [&](const Fid& fid) { return std::ranges::find(others, fid) != others.end(); });
}

// The changes of a batch that are under way, shared by its tasks.
class BatchUnderWay {
 public:
  explicit BatchUnderWay(int mutations) : replies_(static_cast<size_t>(mutations)) {}

  // Waits until what names these inodes may begin. `alone`: until nothing is under way.
  static Task<void> AwaitTurn(std::shared_ptr<BatchUnderWay> self, Fids named, bool alone) {
    while (const auto end = self->EndToAwait(named, alone)) co_await end->Wait();
  }

  void Begin(const Fids& named) {
    std::lock_guard lock(mutex_);
    named_.insert(named_.end(), named.begin(), named.end());
    ++under_way_;
  }

  void End(int mutation, const Fids& named, proto::MetadataReply reply) {
    std::unique_lock lock(mutex_);
    replies_[static_cast<size_t>(mutation)] = std::move(reply);
    for (const Fid& fid : named) named_.erase(std::ranges::find(named_, fid));
    --under_way_;
    const std::optional<OneShot<Unit>> waiting = std::exchange(ended_, std::nullopt);
    lock.unlock();
    if (waiting) waiting->Set({});
  }

  // When nothing is under way.
  std::vector<proto::MetadataReply> TakeReplies() { return std::move(replies_); }

 private:
  // Nothing: it may begin. Else what is set when one of those under way has ended.
  std::optional<OneShot<Unit>> EndToAwait(const Fids& named, bool alone) {
    std::lock_guard lock(mutex_);
    if (under_way_ == 0) return std::nullopt;
    if (!alone && under_way_ < kMostUnderWay && !Meet(named, named_)) return std::nullopt;
    return ended_.emplace();
  }

  std::mutex mutex_;
  std::vector<proto::MetadataReply> replies_;
  std::vector<Fid> named_;
  size_t under_way_ = 0;
  std::optional<OneShot<Unit>> ended_;
};

}  // namespace

Task<proto::BatchReply> CarryOut(proto::Batch batch, CarryOutOne one) {
  const int count = batch.requests_size();
  auto run = std::make_shared<BatchUnderWay>(count);
  const Executor executor = co_await CurrentExecutor();
  for (int i = 0; i < count; ++i) {
    proto::MetadataRequest& request = *batch.mutable_requests(i);
    const Fids named = NamedBy(request);
    const bool beside = GoesBesideOthers(request);
    co_await BatchUnderWay::AwaitTurn(run, named, /*alone=*/!beside);
    // A task of its own is for nothing if the next one waits for its end anyway.
    const bool followed = beside && i + 1 < count && GoesBesideOthers(batch.requests(i + 1)) &&
                          !Meet(named, NamedBy(batch.requests(i + 1)));
    run->Begin(named);
    if (!followed) {
      proto::MetadataReply reply = co_await one(std::move(request), std::nullopt);
      run->End(i, named, std::move(reply));
      continue;
    }
    OneShot<Unit> placed;
    Spawn(executor, one(std::move(request), placed), [run, i, named, placed](proto::MetadataReply reply) {
      run->End(i, named, std::move(reply));
      placed.Set({});
    });
    co_await placed.Wait();
  }
  co_await BatchUnderWay::AwaitTurn(run, {}, /*alone=*/true);
  proto::BatchReply replies;
  for (proto::MetadataReply& reply : run->TakeReplies()) *replies.add_replies() = std::move(reply);
  co_return replies;
}

}  // namespace nacre::mds
