// The judge over one OST of several members: who is in its chain, and when that changes
// (docs/decisions/0064-chains-of-osts.md). Rules and state alone: it stores nothing and sends nothing
// (chain_keeper.h does), and time is what it is told.
//
// Every change is a new record with a higher epoch. It is in force from Adopt on, which must come after it is
// on stable storage; nobody hears of it before. The rules:
//  - A member of the chain that has been restarted leaves it if another one that is in sync runs on: it may
//    have lost what it had not synced.
//  - One that is silent or fails leaves it when it can serve no client any more: its lease is over, its
//    process has ended, or another process serves its store. Only if another one runs on.
//  - If none runs on, a restarted one goes on alone, as soon as no other can serve a client or come back as
//    the process that it was. Until then it waits.
//  - Who is not in sync joins when the OST has a head; it is in sync when the head says so.
// So the last member in sync is never taken out, and none that is not in sync is ever the head.
//
// A member's heartbeats are answered, which renews its OSS's lease, only while it is the head or knows that
// it is not. So a head that could not be told that it is one no more serves nobody when its place is taken.
//
// Not thread-safe.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "proto/cluster.pb.h"
#include "server/cluster/ost_record.h"

namespace nacre::cluster {

// Of the OSSes that have an OST of several members.
inline Duration ChainInterval(Duration heartbeat) { return heartbeat / 2; }  // between their heartbeats
inline Duration ChainLease(Duration heartbeat) { return 3 * heartbeat; }
inline Duration ChainSilence(Duration heartbeat) { return 5 * heartbeat / 2; }  // then a member is down

// A member that registers.
struct Arrival {
  proto::OstInfo info;
  std::string address;
  uint64_t instance = 0;  // of its OSS process
};

class OstChain {
 public:
  // Nobody has registered since; all may have been heard of just now.
  OstChain(OstIndex index, Duration heartbeat, Duration now, OstRecord record = {});

  const OstRecord& record() const { return record_; }
  void Adopt(OstRecord record);
  proto::Chain Describe() const;

  // --- the members' reports ---

  // The record with this member in it. EINVAL: two members at one address, or a number of copies that cannot
  // be; EEXIST: there are as many members as there are to be; EAGAIN: as EEXIST, but one of them may yet turn
  // out to have gone for good.
  StatusOr<OstRecord> WithMember(const Arrival& arrival) const;
  // It is there, once the record that has it is in force.
  void Registered(const Arrival& arrival, Duration now);
  // Its registration is being answered, which renews its OSS's lease.
  void Answered(std::string_view uuid, Duration now);
  // False: it has to register (again).
  bool Beat(const Arrival& arrival, Duration now);
  // The OSS process of that instance has ended; what comes of it yet was sent before. False: it is known
  // already, or there is no such process.
  bool Ended(uint64_t instance, Duration now);
  // The record that the head's report leads to; none: it is so already, or the reporter has to look at the
  // chain as it is first. ESTALE: the reporter is not the head. EBUSY: there is no other member that could be
  // the head.
  StatusOr<std::optional<OstRecord>> Report(const proto::ReportChainRequest& report) const;
  void NoteSpace(uint64_t instance, const proto::StatfsOstReply& space);  // of the head

  // --- time ---

  // Members that have been silent for too long are down. True: there is one that was up.
  bool CheckSilent(Duration now);
  // The record that is due now.
  std::optional<OstRecord> Due(Duration now) const;
  // How long until CheckSilent or Due may say something else though nothing is heard; none: for ever.
  std::optional<Duration> NextLook(Duration now) const;
  // At the latest: what no client can be served by any member after, unless one is told that it is the head.
  Duration ServesUntil() const;

  // --- telling ---

  // The members that have yet to hear of the chain; empty uuid: none. The members behind the head come first,
  // and the head only when all those that are up have heard.
  struct Hearer {
    std::string uuid;
    std::string address;
    uint64_t instance = 0;
    bool operator==(const Hearer&) const = default;
  };
  std::vector<Hearer> BehindToTell() const;
  std::optional<Hearer> HeadToTell() const;
  bool Knows(const Hearer& hearer, uint32_t epoch) const;
  void Told(const Hearer& hearer, uint32_t epoch);
  // It did not answer. The second time in a row it is down, until it registers again: true.
  bool NotTold(const Hearer& hearer);
  void Down(std::string_view uuid);
  // The head knows the chain and all that it has missed: the OST is up while its head is. False: it is not
  // the head, or not the process, that it was.
  bool Serve(const Hearer& hearer);
  bool serving() const { return !serving_.empty(); }

  // Whether the member's registration may be answered.
  enum class Entry { kPending, kDone, kFailed };
  Entry EntryOf(std::string_view uuid) const;

  // --- what others see ---

  bool up() const;
  uint64_t instance() const;  // of the head; 0: it has not registered
  void Fill(Duration now, proto::OstState* state) const;
  proto::OstInfo Info() const;  // the head's, with the space of the smallest member in sync

 private:
  struct Presence {
    proto::OstInfo info;
    bool here = false;  // has registered, and its heartbeats come
    bool failing = false;
    uint64_t instance = 0;  // 0: has never registered here
    Duration registered{0};
    bool answered = false;  // since
    Duration heard{0};      // when something of it was answered last that renews its OSS's lease
    Duration seen{0};       // when something came from it last: an answer may go to a process that has ended
    uint64_t ended = 0;     // the instance that is known to have ended; 0: of none is that known
    Duration ended_at{0};   // when that was heard
    uint32_t told = 0;      // the epoch that it has heard of in this registration
    bool placed = false;    // knows that it is not the head, or is it with all that it has missed
    int unanswered = 0;     // tellings in a row
    bool up() const { return here && !failing; }
  };

  const Presence& At(const OstMember& member) const;
  uint64_t ProcessOf(const OstMember& member) const;  // the last one that is known: its instance
  bool Restarted(const OstMember& member) const;      // since it got its state
  bool HasEnded(const OstMember& member) const;       // that process
  bool Sound(const OstMember& member) const;          // in sync, and runs on
  bool OtherSound(std::string_view uuid) const;
  Duration ServesUntil(const OstMember& member) const;  // a client, as the process that it was: at the latest
  bool Outlived(const OstMember& member) const;         // another one has been heard since
  bool Undecided(const OstMember& member) const;        // restarted, and nobody else runs on
  bool Deposes(const OstMember& member) const;          // fails, and another one runs on
  Hearer HearerOf(const OstMember& member) const;
  Status CheckCopies(const proto::OstInfo& info) const;
  Status CheckPlace(const Arrival& arrival, const OstMember* replaced) const;
  StatusOr<const OstMember*> ToReplace(const Arrival& arrival) const;
  void ChangeInSync(Duration now, OstRecord* next) const;
  void ChangeOthers(Duration now, OstRecord* next) const;

  const OstIndex index_;
  const Duration heartbeat_;
  const Duration began_;
  OstRecord record_;
  std::map<std::string, Presence, std::less<>> presences_;  // of all members of the record
  std::string serving_;  // the head, once it has been told everything; empty: there is none
};

}  // namespace nacre::cluster
