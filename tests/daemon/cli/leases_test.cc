#include "daemon/cli/leases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nacre::cli {
namespace {

using testing::ElementsAre;

constexpr char kMountinfo[] =
    "21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
    "40 21 0:50 / /mnt/nacre rw,nosuid shared:2 - fuse.nacre nacre rw,user_id=0\n"
    "41 21 0:51 / /mnt/with\\040blank rw - fuse.nacre nacre rw\n"
    "42 21 0:50 /users /srv/users rw - fuse.nacre nacre rw\n"
    "43 40 0:60 / /mnt/nacre/tmp rw - tmpfs tmpfs rw\n";

std::string Found(const std::string& path) {
  auto found = FindMount(kMountinfo, path);
  return found.ok() ? found->mountpoint + " " + found->path : "none";
}

TEST(Leases, APathIsFoundWithoutALookAtIt) {
  EXPECT_EQ(Found("/mnt/nacre/a/b"), "/mnt/nacre /a/b");
  EXPECT_EQ(Found("/mnt/nacre"), "/mnt/nacre /");
  EXPECT_EQ(Found("/mnt/with blank/a"), "/mnt/with blank /a");
  EXPECT_EQ(Found("/srv/users/me"), "/srv/users /users/me") << "a part of it that is mounted elsewhere";
  EXPECT_EQ(Found("/mnt/nacre2/a"), "none");
  EXPECT_EQ(Found("/mnt/nacre/tmp/a"), "none") << "something else is mounted on top";
  EXPECT_EQ(Found("/etc"), "none");
}

proto::LeasesOfReply Example() {
  proto::LeasesOfReply leases;
  proto::LeaseHeld* held = leases.add_held();
  held->set_session(7);
  held->set_client("node7:/mnt");
  held->set_mode(proto::LeaseHeld::WRITE);
  held->set_held_ms(61'000);
  held->set_asked_back(true);
  held->set_asked_back_ms(1500);
  proto::LeaseAwaited* awaited = leases.add_awaited();
  awaited->set_name("f");
  awaited->set_session(8);
  awaited->set_waited_ms(1500);
  return leases;
}

TEST(Leases, AreALineEach) {
  EXPECT_THAT(
      LeaseLines(Example()),
      ElementsAre("WRITE of the directory: node7:/mnt (session 7), for 61 s; asked back 1.5 s ago, not "
                  "given back yet",
                  "waiting for 1.5 s, a look of file 'f': session 8"));
  proto::LeasesOfReply quiet;
  quiet.set_none_granted_ms(2500);
  EXPECT_THAT(LeaseLines(quiet),
              ElementsAre("nobody holds a lease", "after a conflict: no lease is granted for another 2.5 s"));
}

TEST(Leases, AndAnObjectForPrograms) {
  const Json json = LeasesToJson("/d", Example());
  EXPECT_EQ(json["held"][0]["mode"], "write");
  EXPECT_EQ(json["held"][0]["asked_back_ms"], 1500);
  EXPECT_EQ(json["awaited"][0]["changes"], false);
  proto::LeasesOfReply one;
  one.add_held();
  EXPECT_TRUE(LeasesToJson("/d", one)["held"][0]["asked_back_ms"].is_null());
}

TEST(Leases, OfAClientAreCounted) {
  proto::SessionState session;
  EXPECT_EQ(LeaseCounts(session), "0 leases");
  session.set_leases(12);
  session.set_write_leases(3);
  EXPECT_EQ(LeaseCounts(session), "12 leases (3 for writing)");
  session.set_leases_asked_back(1);
  EXPECT_EQ(LeaseCounts(session), "12 leases (3 for writing, 1 asked back)");
}

}  // namespace
}  // namespace nacre::cli
