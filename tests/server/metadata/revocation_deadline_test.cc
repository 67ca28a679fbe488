#include "server/metadata/revocation_deadline.h"

#include <gtest/gtest.h>

namespace nacre::mds {
namespace {

using namespace std::chrono_literals;

constexpr Duration kTimeout = 10s;

struct Conditions {
  bool ost_down = false;
  bool waits_itself = false;
  bool only_ost = false;
  Duration leases_end = 100h;
};

// When the time is over if these things are so at each second; 0: not within `limit`.
template <typename At>
Duration OverAt(At at, Duration limit = 1000s) {
  RevocationDeadline deadline(0s, kTimeout);
  for (Duration now = 1s; now <= limit; now += 1s) {
    const Conditions is = at(now);
    if (deadline.Look({now, is.leases_end, is.ost_down, is.waits_itself, is.only_ost})) return now;
  }
  return 0s;
}

TEST(RevocationDeadline, Table) {
  auto always = [](Conditions is) { return [is](Duration) { return is; }; };
  EXPECT_EQ(OverAt(always({})), 10s);
  EXPECT_EQ(OverAt(always({.ost_down = true})), 30s)
      << "an OST that never comes back: three times, not for ever";
  EXPECT_EQ(OverAt(always({.waits_itself = true})), 70s);
  EXPECT_EQ(OverAt(always({.ost_down = true, .waits_itself = true})), 30s);
  EXPECT_EQ(OverAt(always({.leases_end = 3s})), 3s) << "not heard of";
  EXPECT_EQ(OverAt(always({.ost_down = true, .leases_end = 3s})), 3s);
}

TEST(RevocationDeadline, BeginsAnewWhenAnOstIsBack) {
  EXPECT_EQ(OverAt([](Duration now) { return Conditions{.ost_down = now > 5s && now <= 8s}; }), 19s);
  // It comes and goes: the sum is bounded.
  auto flapping = [](Duration now) { return Conditions{.ost_down = (now / 1s) % 4 < 2}; };
  const Duration over = OverAt(flapping);
  EXPECT_GE(over, 20s);
  EXPECT_LE(over, 30s);
}

TEST(RevocationDeadline, OfAFileThatWaitsForItsOstBeginsWhenThatIsBack) {
  EXPECT_EQ(OverAt([](Duration) { return Conditions{.ost_down = true, .only_ost = true}; }), 0s);
  auto back = [](Duration now) { return Conditions{.ost_down = now < 500s, .only_ost = now < 500s}; };
  EXPECT_EQ(OverAt(back), 510s);
  EXPECT_EQ(OverAt([](Duration) { return Conditions{.only_ost = true, .leases_end = 3s}; }), 3s);
}

TEST(RevocationDeadline, WaitingAndOstsAddUp) {
  auto both = [](Duration now) { return Conditions{.ost_down = now<6s, .waits_itself = now> 20s}; };
  EXPECT_LE(OverAt(both), 90s);
  EXPECT_GT(OverAt(both), 10s);
}

}  // namespace
}  // namespace nacre::mds
