// Users, passwords and certificates, at real members.
#include <absl/strings/match.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/runtime.h"
#include "server/coordination/etcd_coordinator.h"
#include "tests/server/coordination/etcd_cluster.h"

namespace nacre::coordination {
namespace {

using testing::HasSubstr;

constexpr Duration kPatience = 20s;

class EtcdAccessTest : public testing::Test {
 protected:
  void SetUp() override { NACRE_NEEDS_ETCD(); }

  std::unique_ptr<Coordinator> Connect(const EtcdOptions& options) {
    StatusOr<std::unique_ptr<Coordinator>> coordinator = NewEtcdCoordinator(options);
    EXPECT_TRUE(coordinator.ok()) << coordinator.status();
    return *std::move(coordinator);
  }
  StatusOr<Entry> Get(Coordinator& coordinator, const std::string& key, Duration timeout = kPatience) {
    return runtime_.Run(coordinator.Get(key, timeout));
  }
  StatusOr<Outcome> Set(Coordinator& coordinator, const std::string& key, const std::string& value,
                        Duration timeout = kPatience) {
    return runtime_.Run(coordinator.Transact({{}, {{key, value}}, {}}, timeout));
  }

  Runtime runtime_{1};
};

// With authentication on; "nacre" may read and write nacre/.
class EtcdUserTest : public EtcdAccessTest {
 protected:
  void SetUp() override {
    EtcdAccessTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    cluster_.emplace(EtcdCluster::Options{.members = 1});
    options_.endpoints = cluster_->endpoints();
    options_.user = "nacre";
    options_.password = "secret";
    // Of before authentication is on: who has a user is let in all the same.
    const auto early = Connect(options_);
    ASSERT_TRUE(Set(*early, "nacre/a", "1").ok());
    const std::vector<std::vector<std::string>> commands = {
        {"user", "add", "root:hidden"},
        {"user", "grant-role", "root", "root"},
        {"user", "add", "nacre:secret"},
        {"role", "add", "servers"},
        {"role", "grant-permission", "servers", "--prefix=true", "readwrite", "nacre/"},
        {"user", "grant-role", "nacre", "servers"},
        {"auth", "enable"}};
    for (const std::vector<std::string>& words : commands) {
      const StatusOr<std::string> output = cluster_->Ctl(words);
      ASSERT_TRUE(output.ok()) << output.status();
    }
    const StatusOr<Entry> entry = Get(*early, "nacre/a");
    ASSERT_TRUE(entry.ok()) << "it does not notice that authentication is on: " << entry.status();
  }

  std::optional<EtcdCluster> cluster_;
  EtcdOptions options_;
};

TEST_F(EtcdUserTest, TheUserMayWhatItsRoleMay) {
  const auto coordinator = Connect(options_);
  ASSERT_TRUE(Set(*coordinator, "nacre/a", "2").ok());
  EXPECT_EQ(Get(*coordinator, "nacre/a")->value, "2");
  const auto watch = coordinator->NewWatch("nacre/", 0);
  EXPECT_EQ(*runtime_.Run(watch->Next(100ms)), Hint::kQuiet);
  ASSERT_TRUE(Set(*coordinator, "nacre/a", "3").ok());
  EXPECT_EQ(*runtime_.Run(watch->Next(kPatience)), Hint::kChanged);

  for (const Status& status : {Get(*coordinator, "other").status(), Set(*coordinator, "other", "x").status(),
                               runtime_.Run(coordinator->NewWatch("other", 0)->Next(kPatience)).status()}) {
    EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("user"));
  }
}

TEST_F(EtcdUserTest, AWrongPasswordAndNoUserAreRefused) {
  options_.password = "wrong";
  const auto wrong = Connect(options_);
  options_.user = options_.password = "";
  const auto nobody = Connect(options_);
  for (Coordinator* coordinator : {wrong.get(), nobody.get()}) {
    for (const Status& status :
         {Get(*coordinator, "nacre/a").status(), Set(*coordinator, "nacre/a", "x").status(),
          runtime_.Run(coordinator->NewWatch("nacre/", 0)->Next(kPatience)).status()}) {
      EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
      EXPECT_THAT(std::string(status.message()), testing::Not(HasSubstr("wrong")));
    }
  }
}

// Its tokens are in a member's memory: after its start it knows none of them.
TEST_F(EtcdUserTest, ATokenThatIsRefusedIsRenewed) {
  const auto coordinator = Connect(options_);
  ASSERT_TRUE(Set(*coordinator, "nacre/a", "2").ok());
  cluster_->Kill(0);
  cluster_->Start(0);
  // One that was sent into the connection of before has no end that is known.
  StatusOr<Outcome> outcome = Set(*coordinator, "nacre/a", "3");
  if (absl::IsUnavailable(outcome.status())) outcome = Set(*coordinator, "nacre/a", "3");
  EXPECT_TRUE(outcome.ok()) << outcome.status();

  cluster_->Kill(0);
  cluster_->Start(0);
  EXPECT_TRUE(Get(*coordinator, "nacre/a").ok());

  cluster_->Kill(0);
  cluster_->Start(0);
  const auto watch = coordinator->NewWatch("nacre/", 0);
  const StatusOr<Hint> hint = runtime_.Run(watch->Next(5s));
  EXPECT_TRUE(hint.ok()) << hint.status();
}

TEST_F(EtcdAccessTest, TlsJudgesBothSides) {
  const TestCertificates ours, theirs;
  EtcdCluster cluster({.members = 1, .tls_directory = ours.directory()});
  EtcdOptions options;
  options.endpoints = {"https://" + cluster.endpoints()[0]};
  options.ca_file = ours / "ca.crt";
  options.certificate_file = ours / "client.crt";
  options.key_file = ours / "client.key";
  const auto coordinator = Connect(options);
  const StatusOr<Outcome> outcome = Set(*coordinator, "a", "1");
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  const auto watch = coordinator->NewWatch("a", outcome->revision);
  EXPECT_EQ(*runtime_.Run(watch->Next(100ms)), Hint::kQuiet);
  ASSERT_TRUE(Set(*coordinator, "a", "2").ok());
  EXPECT_EQ(*runtime_.Run(watch->Next(kPatience)), Hint::kChanged);

  EtcdOptions wrong_ca = options;
  wrong_ca.ca_file = theirs / "ca.crt";
  EtcdOptions no_certificate = options;
  no_certificate.certificate_file = no_certificate.key_file = "";
  EtcdOptions wrong_certificate = options;
  wrong_certificate.certificate_file = theirs / "client.crt";
  wrong_certificate.key_file = theirs / "client.key";
  EtcdOptions plain;
  plain.endpoints = cluster.endpoints();
  for (const EtcdOptions& wrong : {wrong_ca, no_certificate, wrong_certificate, plain}) {
    const auto refused = Connect(wrong);
    // A busy machine may not have come to the refusal by then.
    Status reading, writing;
    for (Duration time = 400ms; time < 1min; time *= 4) {
      reading = Get(*refused, "a", time).status();
      writing = Set(*refused, "a", "3", time).status();
      if (absl::StrContains(reading.message(), "TLS") && absl::StrContains(writing.message(), "TLS")) break;
    }
    for (const Status& status : {reading, writing}) {
      EXPECT_TRUE(absl::IsUnavailable(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("TLS"));
    }
  }
  EXPECT_EQ(Get(*coordinator, "a")->value, "2");
}

}  // namespace
}  // namespace nacre::coordination
