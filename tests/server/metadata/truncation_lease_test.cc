// Truncations, and the leases of those who ask for them and of those who come by.
#include "tests/server/metadata/lease_clients.h"

namespace nacre::mds {
namespace {

using namespace std::chrono_literals;

// It would not be told when the file is shorter.
TEST(TruncationWithLeases, NobodyElseGetsALeaseBeforeItsEnd) {
  Harness harness(1, WithLeases());
  TestClient dead(harness);
  TestClient other(harness);
  const Fid file = FidOf(dead.Create(kRootFid, "f"));
  proto::MetadataRequest out;
  *out.mutable_move_out()->mutable_fid() = ToProto(file);
  ASSERT_THAT(dead.Call(std::move(out)), IsOk());
  ASSERT_THAT(dead.UpdateSize(file, 50000), IsOk());
  harness.osts.away = {0};
  proto::MetadataRequest cut;
  *cut.mutable_setattr()->mutable_fid() = ToProto(file);
  cut.mutable_setattr()->set_set_size(true);
  cut.mutable_setattr()->set_size(100);
  auto answer = std::make_shared<std::optional<proto::MetadataReply>>();
  dead.Start(std::move(cut), answer);
  const auto granted = [&] {
    proto::MetadataRequest look;
    *look.mutable_lookup()->mutable_parent() = ToProto(kRootFid);
    look.mutable_lookup()->set_name("f");
    look.mutable_lookup()->set_want_lease(true);
    return other.Call(std::move(look)).directory_leases_size() > 0;
  };
  const auto sessions = [&] { return harness.Await(harness.server->GetStatus()).sessions_size(); };
  for (int i = 0; i < 120 && sessions() > 1; ++i) other.StayFor(1s);
  ASSERT_EQ(sessions(), 1);
  other.StayFor(10s);
  EXPECT_FALSE(granted());
  EXPECT_EQ(other.Getattr(file).attr().attr().size(), 50000u);
  harness.osts.away = {};
  other.StayFor(60s);
  EXPECT_TRUE(granted());
  EXPECT_EQ(other.Getattr(file).attr().attr().size(), 100u);
}

// It cannot give the directory's lease back before its truncation is over, which keeps the file locked there.
TEST(TruncationWithLeases, WhoWaitsForASlowOstIsNotEvicted) {
  MetadataOptions options = WithLeases();
  options.revoke_timeout = 8s;
  Harness harness(1, options);
  TestClient other(harness);
  TestClient holder(harness);
  const Fid directory = FidOf(holder.Mkdir(kRootFid, "d"));
  const Fid file = FidOf(holder.Mknod(directory, "f", S_IFREG | 0644));
  proto::MetadataRequest out;
  *out.mutable_move_out()->mutable_fid() = ToProto(file);
  ASSERT_THAT(holder.Call(std::move(out)), IsOk());
  ASSERT_THAT(holder.UpdateSize(file, 50000), IsOk());
  proto::MetadataRequest make;
  *make.mutable_mknod()->mutable_parent() = ToProto(directory);
  make.mutable_mknod()->set_name("g");
  make.mutable_mknod()->set_mode(S_IFREG | 0644);
  make.set_want_lease(true);
  const proto::MetadataReply made = holder.Call(holder.Prepare(std::move(make)));
  ASSERT_EQ(made.directory_leases_size(), 1);

  harness.osts.on_call = [](const std::string&, const proto::ObjectRequest& request) {
    return request.has_truncate() ? absl::UnavailableError("the members behind it are slow") : OkStatus();
  };
  proto::MetadataRequest cut;
  *cut.mutable_setattr()->mutable_fid() = ToProto(file);
  cut.mutable_setattr()->set_set_size(true);
  cut.mutable_setattr()->set_size(100);
  auto answer = std::make_shared<std::optional<proto::MetadataReply>>();
  holder.Start(std::move(cut), answer);
  proto::MetadataRequest look;
  *look.mutable_lookup()->mutable_parent() = ToProto(directory);
  look.mutable_lookup()->set_name("f");
  auto found = std::make_shared<std::optional<proto::MetadataReply>>();
  other.Start(std::move(look), found);
  const auto both_stay_for = [&](Duration time) {
    for (Duration passed{0}; passed < time && !answer->has_value(); passed += 2s) {
      holder.StayFor(1s);
      other.StayFor(1s);
    }
  };
  both_stay_for(14s);
  EXPECT_FALSE(answer->has_value());
  EXPECT_FALSE(found->has_value());
  harness.osts.on_call = nullptr;
  both_stay_for(20s);
  ASSERT_TRUE(answer->has_value());
  EXPECT_THAT(**answer, IsOk());
  Release(holder, made.directory_leases(0).id());
  other.StayFor(1s);
  ASSERT_TRUE(found->has_value());
  EXPECT_EQ((*found)->entry().attr().size(), 100u);
}

}  // namespace
}  // namespace nacre::mds
