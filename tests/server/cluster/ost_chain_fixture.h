// The fixture of the tests of the judge's rules over one OST (server/cluster/ost_chain.h).
#pragma once

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "server/cluster/ost_chain.h"

namespace nacre::cluster {

using State = OstMember::State;
using Entry = OstChain::Entry;

// An OST of two copies (three where it is said), with a heartbeat of a second: leases of 3.3 s, silence of
// 2.5 s. Members are letters: their uuids, and their addresses.
class OstChainTest : public testing::Test {
 protected:
  OstChainTest() { StartMgs({}); }
  void StartMgs(OstRecord record) { chain = std::make_unique<OstChain>(5, 1s, now, std::move(record)); }
  void RestartMgs() { StartMgs(chain->record()); }

  static Arrival Member(const std::string& uuid, uint64_t instance, uint32_t copies = 2) {
    Arrival arrival;
    arrival.info.set_index(5);
    arrival.info.set_uuid(uuid);
    arrival.info.set_total_bytes(100);
    arrival.info.set_copies(copies);
    arrival.address = "inproc:" + uuid;
    arrival.instance = instance;
    return arrival;
  }
  static Arrival Failing(Arrival arrival) {
    arrival.info.set_failing(true);
    return arrival;
  }

  void Decide() {
    chain->CheckSilent(now);
    while (auto next = chain->Due(now)) {
      ASSERT_GT(next->epoch, chain->record().epoch);
      chain->Adopt(*std::move(next));
    }
  }
  Status Register(const Arrival& arrival) {
    auto next = chain->WithMember(arrival);
    if (!next.ok()) return next.status();
    chain->Adopt(*std::move(next));
    chain->Registered(arrival, now);
    Decide();
    return OkStatus();
  }
  // Tells everybody who can be told.
  void TellAll() {
    for (const auto& hearer : chain->BehindToTell()) chain->Told(hearer, chain->record().epoch);
    auto head = chain->HeadToTell();
    if (!head.has_value()) return;
    chain->Told(*head, chain->record().epoch);
    EXPECT_TRUE(chain->Serve(*head));
  }
  void Enter(const Arrival& arrival) {
    Status status = Register(arrival);
    EXPECT_TRUE(status.ok()) << status;
    TellAll();
    chain->Answered(arrival.info.uuid(), now);
  }
  int Refusal(const Arrival& arrival) { return ToErrno(chain->WithMember(arrival).status()); }
  bool Beat(Arrival arrival) {
    arrival.info.set_chain_epoch(chain->record().epoch);
    return chain->Beat(arrival, now);
  }
  // Time passes in which these beat, and everybody is told.
  void Pass(Duration time, const std::vector<Arrival>& beating) {
    for (const Duration end = now + time; now < end;) {
      now += 100ms;
      for (const Arrival& arrival : beating) Beat(arrival);
      Decide();
      TellAll();
    }
  }
  Status Report(const std::string& reporter, const std::string& lost, const std::string& joined,
                uint32_t epoch = 0) {
    proto::ReportChainRequest report;
    report.set_reporter(reporter);
    report.set_lost(lost);
    report.set_joined(joined);
    report.set_epoch(epoch == 0 ? chain->record().epoch : epoch);
    auto next = chain->Report(report);
    if (!next.ok()) return next.status();
    if (next->has_value()) {
      chain->Adopt(**std::move(next));
      if (!lost.empty()) chain->Down(lost);
    }
    Decide();
    TellAll();
    return OkStatus();
  }
  // A is the head, B follows.
  void MakePair(uint64_t a = 1, uint64_t b = 1) {
    Enter(Member("A", a));
    Enter(Member("B", b));
    ASSERT_TRUE(Report("A", "", "B").ok());
    ASSERT_EQ(Text(), "A> B>");
  }
  // "A> B+ C-": in sync, joining, away.
  std::string Text() const {
    std::string text;
    for (const OstMember& member : chain->record().members) {
      const char* mark = member.in_sync() ? ">" : member.state == State::kJoining ? "+" : "-";
      absl::StrAppend(&text, text.empty() ? "" : " ", member.uuid, mark);
    }
    return text;
  }

  Duration now{100s};
  std::unique_ptr<OstChain> chain;
};

}  // namespace nacre::cluster
