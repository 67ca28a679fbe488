// A client's session: who it is, which stream it is reached by, and the answers to its mutations
// (proto/metadata.proto: session, sequence, low_water). Thread-safe; shared by the session table and the
// operations in progress.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/ids.h"
#include "common/task.h"
#include "proto/metadata.pb.h"
#include "rpc/answer_slots.h"
#include "rpc/metadata_channel.h"
#include "rpc/reply_cache.h"
#include "server/kv/kv_store.h"
#include "server/metadata/own_fids.h"
#include "server/metadata/records.h"

namespace nacre::mds {

// Limits of the answers that a session leaves unacknowledged.
inline constexpr ReplyLimits kMaxOutstanding{65536, size_t{256} << 20};

class Session {
 public:
  Session(SessionId id, SessionRecord record, Duration now);

  const SessionId id;
  const SessionRecord record;
  OwnFids own_fids;

  // The stream.
  void Attach(std::shared_ptr<MetadataPeer> peer, Duration now);
  // False: it has another stream by now.
  bool Detach(const std::shared_ptr<MetadataPeer>& peer);
  // Notes that the session was heard at `now` (Mds::listening), when a request has come over the stream of
  // this peer; unless the session has ended, or has another stream.
  struct Heard {
    bool ended = false;
    std::optional<uint64_t> stream;  // its number, which rises with each; none: not the session's any more
  };
  Heard Hear(const std::shared_ptr<MetadataPeer>& peer, Duration now);
  Duration heard() const;
  std::shared_ptr<MetadataPeer> peer() const;
  void Push(proto::Push push);  // lost if there is no stream

  // Between a restart of the MDS and the session's last Reclaim.
  bool whole() const;
  void set_whole(bool whole);
  // An ended session's requests are refused.
  bool ended() const;
  bool TryEnd();  // true for the first caller: it ends the session
  // Whether it has been outlived: no OST carries anything out for it any more, and its client does not answer
  // out of caches. Others still wait for the leases of such a session: how far its files reach is found out.
  bool outlived() const { return outlived_; }
  void SetOutlived() { outlived_ = true; }

  // A request of its own waits for others, or for an OST: what is asked of the session may take as long.
  class [[nodiscard]] Wait {
   public:
    explicit Wait(std::shared_ptr<Session> session) : session_(std::move(session)) { ++session_->waits_; }
    ~Wait() { --session_->waits_; }
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

   private:
    std::shared_ptr<Session> session_;
  };
  bool waits() const { return waits_ > 0; }

  void Report(proto::KeepAlive report);
  proto::KeepAlive report() const;

  // Forgets answers that the client says it has, although low_water stays behind a mutation that is still
  // under way.
  void Acknowledge(const proto::MetadataRequest& request);

  // Mutations. Exactly one of the fields is set, or none: carry it out, then call EndMutation.
  struct Begun {
    std::optional<proto::MetadataReply> answer;  // it was done before
    std::optional<OneShot<Unit>> wait;           // it is being done: begin again when this is set
  };
  Begun BeginMutation(uint64_t sequence, uint64_t low_water);
  // Returns what a request that came over `stream` waits for until the mutation has been done, and asks again
  // when it is set; none: the mutation has been done. ESTALE: the session has ended or goes on over another
  // stream, which brings the request once more.
  StatusOr<std::optional<OneShot<Unit>>> WaitFor(uint64_t sequence, uint64_t stream);
  // Remembers the answer, and lets the repeats go on that came meanwhile.
  void EndMutation(uint64_t sequence, const proto::MetadataReply& reply);
  // Adds the answer to the batch of its mutation.
  void Record(uint64_t sequence, const proto::MetadataReply& reply, KvBatch* batch);
  // At the start, in the order of the slots: an answer that the store remembers.
  void Restore(uint32_t slot, ReplyRecord record);
  // The same of one that an earlier version has stored. Returns its slot.
  uint32_t Adopt(uint64_t sequence, const std::string& encoded);

 private:
  // To be set without the mutex, by who has ended what they wait for; all of them if that is none.
  std::vector<OneShot<Unit>> TakeSuccessors(std::optional<uint64_t> sequence);

  struct Answer {
    std::string encoded;
    std::optional<uint32_t> slot;  // in the store
    size_t bytes() const { return encoded.size(); }
  };

  std::atomic<int> waits_{0};
  std::atomic<bool> outlived_{false};
  mutable std::mutex mutex_;
  std::shared_ptr<MetadataPeer> peer_;
  uint64_t streams_ = 0;  // so far
  Duration heard_;
  bool whole_ = true;
  bool ended_ = false;
  proto::KeepAlive report_;
  std::multimap<uint64_t, OneShot<Unit>> successors_;  // by what they wait for (WaitFor)
  AnswerSlots slots_;
  ReplyCache<Answer> answers_;
};

using SessionPtr = std::shared_ptr<Session>;

}  // namespace nacre::mds
