#include "server/coordination/etcd_watch.h"

#include <absl/strings/match.h>
#include <absl/strings/str_format.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cerrno>

#include "common/log.h"
#include "rpc/grpc_completions.h"
#include "server/coordination/etcd.grpc.pb.h"
#include "server/kv/kv_store.h"

namespace nacre::coordination {
namespace {

constexpr Duration kPauseOfWatch = 50ms;        // after each round over all members
constexpr int kAskAfter = 2, kGiveUpAfter = 4;  // attempts of silence
constexpr int kRefusals = 2;                    // in a row; the first may have been the token's fault

// Wakes whoever waits, now or when the time is over.
Task<void> WaitFor(OneShot<Unit> news, Duration patience) {
  const Executor executor = co_await CurrentExecutor();
  const auto timer = RealClock().After(executor, patience, [news] { news.Set({}); });
  co_await news.Wait();
}

}  // namespace

// The state of a stream, as its events have told it so far.
struct EtcdWatchState {
  uint64_t version = 0;  // rises with each change of the others
  bool created = false;
  bool changed = false;
  bool ended = false;
  bool compacted = false;  // the revisions that it was to begin with are gone
  std::string refused;     // etcd's reason for not watching any more
  std::string why;         // it has ended
  etcdserverpb::ResponseHeader header;
  Duration heard{0};  // when the member said something last

  bool over() const { return ended || compacted || !refused.empty(); }
};

// One stream with one member and one watch on it. Reactions come from gRPC's thread. The stream is read to
// its end: a read that fails, of which gRPC is asked the reason when no write is under way any more.
class EtcdWatchStream : public std::enable_shared_from_this<EtcdWatchStream> {
 public:
  EtcdWatchStream(EtcdClient& client, size_t member, const std::string& token)
      : stub_(etcdserverpb::Watch::NewStub(client.channel(member))),
        words_([&client, member](const auto& status) { return client.Words(member, status); }) {
    EtcdClient::SetMetadata(&context_, token);
  }

  void Start(const std::string& prefix, int64_t start_revision) {
    etcdserverpb::WatchCreateRequest* create = writing_.mutable_create_request();
    const std::string end = PrefixEnd(prefix);
    create->set_key(prefix.empty() ? std::string(1, '\0') : prefix);
    create->set_range_end(end.empty() ? std::string(1, '\0') : end);
    create->set_start_revision(start_revision);
    state_.heard = RealClock().Now();
    write_under_way_ = true;
    stream_ = stub_->PrepareAsyncWatch(&context_, Completions::OfChannels().queue());
    stream_->StartCall(started_.Begin());
  }

  // Asks the member whether it is there.
  void Ask() {
    std::unique_lock lock(mutex_);
    if (write_under_way_ || over_) return;
    write_under_way_ = true;
    writing_.mutable_progress_request();
    lock.unlock();
    stream_->Write(writing_, write_.Begin());
  }

  void Close() { context_.TryCancel(); }

  // The news so far; `changed` is told once.
  EtcdWatchState Take() {
    std::lock_guard lock(mutex_);
    EtcdWatchState state = state_;
    state_.changed = false;
    return state;
  }

  // Set when there is more than in the state of this version. One waiter.
  OneShot<Unit> News(uint64_t version) {
    OneShot<Unit> news;
    std::lock_guard lock(mutex_);
    if (state_.version != version) news.Set({});
    news_ = news;
    return news;
  }

  // From here on words_ is not called any more: its client may go.
  void Forget() {
    std::lock_guard lock(mutex_);
    words_ = nullptr;
  }

 private:
  void OnStarted(bool) {
    stream_->Write(writing_, write_.Begin());
    stream_->Read(&incoming_, read_.Begin());
  }

  void OnRead(bool ok) {
    std::unique_lock lock(mutex_);
    if (!ok) {
      over_ = true;
      if (!write_under_way_) Finish(std::move(lock));
      return;
    }
    state_.heard = RealClock().Now();
    state_.header = incoming_.header();
    if (incoming_.canceled()) {
      state_.compacted = incoming_.compact_revision() > 0;
      if (!state_.compacted) state_.refused = incoming_.cancel_reason();
      if (!state_.compacted && state_.refused.empty()) state_.refused = "the watch was cancelled";
      Tell();
    } else if (incoming_.created()) {
      state_.created = true;
      Tell();
    }
    if (incoming_.events_size() > 0) {
      state_.changed = true;
      Tell();
    }
    lock.unlock();
    incoming_.Clear();
    stream_->Read(&incoming_, read_.Begin());
  }

  void OnWritten(bool ok) {
    if (!ok) context_.TryCancel();
    std::unique_lock lock(mutex_);
    write_under_way_ = false;
    if (over_) Finish(std::move(lock));
  }

  void OnEnded(bool) {
    std::lock_guard lock(mutex_);
    state_.ended = true;
    if (words_) state_.why = words_(end_);
    Tell();
  }

  void Tell() {
    ++state_.version;
    news_.Set({});
  }

  void Finish(std::unique_lock<std::mutex> lock) {
    lock.unlock();
    stream_->Finish(&end_, finish_.Begin());
  }

  const std::unique_ptr<etcdserverpb::Watch::Stub> stub_;
  std::function<std::string(const grpc::Status&)> words_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientAsyncReaderWriter<etcdserverpb::WatchRequest, etcdserverpb::WatchResponse>>
      stream_;
  grpc::Status end_;
  etcdserverpb::WatchResponse incoming_;
  etcdserverpb::WatchRequest writing_;
  std::mutex mutex_;
  EtcdWatchState state_;
  OneShot<Unit> news_;
  bool write_under_way_ = false, over_ = false;
  Reaction<EtcdWatchStream, &EtcdWatchStream::OnStarted> started_{this};
  Reaction<EtcdWatchStream, &EtcdWatchStream::OnRead> read_{this};
  Reaction<EtcdWatchStream, &EtcdWatchStream::OnWritten> write_{this};
  Reaction<EtcdWatchStream, &EtcdWatchStream::OnEnded> finish_{this};
};

EtcdWatch::EtcdWatch(EtcdClient& client, std::string prefix, int64_t revision)
    : client_(client), prefix_(std::move(prefix)), after_(revision), seen_(new EtcdWatchState) {}

EtcdWatch::~EtcdWatch() { Drop(); }

Task<StatusOr<Hint>> EtcdWatch::Next(Duration timeout) {
  const Duration end = RealClock().Now() + timeout;
  while (true) {
    const Duration left = end - RealClock().Now();
    if (stream_ == nullptr) {
      if (left <= 0ns) co_return Unavailable("watch", timeout, why_);
      const Duration patience = std::min(left, client_.attempt() * kGiveUpAfter);
      CO_RETURN_IF_ERROR(co_await Open(patience));
      if (stream_ == nullptr) co_await Rest(end);
      continue;
    }
    Look();
    if (seen_->over()) {
      CO_RETURN_IF_ERROR(LeaveStream());
      continue;
    }
    const bool changed = std::exchange(changed_, false);
    if (std::exchange(gap_, false)) co_return Hint::kGap;
    if (changed) co_return Hint::kChanged;
    const Duration silence = RealClock().Now() - seen_->heard;
    if (silence >= client_.attempt() * kGiveUpAfter) {
      Fail(absl::StrFormat("etcd at %s is silent", client_.address(member_)));
      continue;
    }
    if (left <= 0ns) co_return Hint::kQuiet;
    if (silence >= client_.attempt() * kAskAfter) stream_->Ask();
    const OneShot<Unit> news = stream_->News(seen_->version);
    co_await WaitFor(news, std::min(left, client_.attempt()));
  }
}

// Afterwards there is a stream, or why_ says why there is none.
Task<Status> EtcdWatch::Open(Duration patience) {
  const Duration end = RealClock().Now() + patience;
  member_ = client_.current();
  StatusOr<std::string> token = co_await client_.Token(member_, patience);
  if (!token.ok()) {
    if (!absl::IsUnavailable(token.status())) co_return token.status();
    Fail(std::string(token.status().message()));
    co_return OkStatus();
  }
  token_ = *std::move(token);
  stream_ = std::make_shared<EtcdWatchStream>(client_, member_, token_);
  stream_->Start(prefix_, after_ == 0 ? 0 : after_ + 1);
  while (true) {
    Look();
    if (seen_->over()) co_return LeaveStream();
    if (seen_->created) break;
    const Duration left = end - RealClock().Now();
    if (left <= 0ns) {
      Fail(absl::StrFormat("etcd at %s did not begin a watch in time", client_.address(member_)));
      co_return OkStatus();
    }
    const OneShot<Unit> news = stream_->News(seen_->version);
    co_await WaitFor(news, left);
  }
  failures_ = 0;
  refused_ = 0;
  const Status same = client_.CheckHeader(member_, seen_->header);
  if (!same.ok()) Drop();
  co_return same;
}

// Lets the others have their turn before all are tried again.
Task<void> EtcdWatch::Rest(Duration end) {
  if (failures_ % client_.members() != 0) co_return;
  const Duration pause = std::min(end - RealClock().Now(), kPauseOfWatch);
  if (pause > 0ns) co_await RealClock().Sleep(pause);
}

void EtcdWatch::Look() {
  *seen_ = stream_->Take();
  changed_ = changed_ || seen_->changed;
}

Status EtcdWatch::LeaveStream() {
  if (seen_->compacted) {
    Drop();
    after_ = 0;
    gap_ = true;
    return OkStatus();
  }
  if (seen_->refused.empty()) {
    Fail(seen_->why);
    return OkStatus();
  }
  const std::string reason = seen_->refused;
  const bool access = absl::StrContains(reason, "denied") || absl::StrContains(reason, "auth") ||
                      absl::StrContains(reason, "user name");
  if (!access) {
    Fail(absl::StrFormat("etcd at %s ended the watch: %s", client_.address(member_), reason));
    return OkStatus();
  }
  // 3.4 says the same for a token that it does not know.
  client_.TokenRefused(token_);
  Drop();
  if (client_.has_user() && ++refused_ < kRefusals) return OkStatus();
  refused_ = 0;
  return ErrnoError(
      EACCES, absl::StrFormat(
                  "watch: etcd at %s refuses it: %s (%s)", client_.address(member_), reason,
                  client_.has_user() ? "the user lacks the right to read these keys" : "no user is given"));
}

void EtcdWatch::Fail(std::string why) {
  why_ = std::move(why);
  LogDebug("watch of '%s': %s", ShownKey(prefix_), why_);
  ++failures_;
  client_.Failed(member_);
  Drop();
}

void EtcdWatch::Drop() {
  if (stream_ == nullptr) return;
  if (seen_->created) {
    after_ = 0;
    gap_ = true;
  }
  stream_->Forget();
  stream_->Close();
  stream_.reset();
  *seen_ = EtcdWatchState();
}

}  // namespace nacre::coordination
