// Errors of the options are reported with the wrong value.
#include "server/coordination/etcd_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

namespace nacre::coordination {
namespace {

using testing::HasSubstr;

class EtcdOptionsTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = std::filesystem::temp_directory_path() / "nacre-etcd-options.XXXXXX";
    ASSERT_NE(::mkdtemp(directory_.data()), nullptr);
    options_.endpoints = {"a:2379", "b:2379"};
    certificate_ = Write("certificate", "-----BEGIN CERTIFICATE-----\nx\n");
    key_ = Write("key", "-----BEGIN EC PRIVATE KEY-----\nx\n");
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string Write(const std::string& name, const std::string& text) {
    std::ofstream(directory_ + "/" + name) << text;
    return directory_ + "/" + name;
  }

  // The options are refused with this errno and these words.
  void Refused(int error, const std::string& words) {
    const Status status = CheckEtcdOptions(options_).status();
    EXPECT_EQ(ToErrno(status), error) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(words));
  }

  std::string directory_, certificate_, key_;
  EtcdOptions options_;
};

TEST_F(EtcdOptionsTest, EndpointsAreAddressesOfOneKind) {
  options_.endpoints = {"a:1", "http://b:2", "[::1]:3/"};
  const StatusOr<EtcdAccess> access = CheckEtcdOptions(options_);
  ASSERT_TRUE(access.ok()) << access.status();
  EXPECT_FALSE(access->tls);
  EXPECT_EQ(access->endpoints[1].address, "b:2");
  EXPECT_EQ(access->endpoints[2].target, "dns:///[::1]:3");

  options_.endpoints = {};
  Refused(EINVAL, "no endpoint");
  for (const std::string& wrong :
       std::vector<std::string>{"", "a", "a:", ":1", "a:99999", "ftp://a:1", "unix:/a", "http://a:1/v3"}) {
    options_.endpoints = {"a:1", wrong};
    Refused(EINVAL, "'" + wrong + "'");
  }
  options_.endpoints = {"a:1", "http://a:1"};
  Refused(EINVAL, "'http://a:1' is given twice");
  options_.endpoints = {"https://a:1"};
  Refused(EINVAL, "'https://a:1': TLS takes");
}

TEST_F(EtcdOptionsTest, TlsTakesFilesThatAreThere) {
  options_.endpoints = {"a:1", "https://b:2"};
  options_.ca_file = certificate_;
  options_.certificate_file = certificate_;
  options_.key_file = key_;
  const StatusOr<EtcdAccess> access = CheckEtcdOptions(options_);
  ASSERT_TRUE(access.ok()) << access.status();
  EXPECT_TRUE(access->tls);
  EXPECT_THAT(access->key, HasSubstr("PRIVATE KEY"));

  options_.key_file = "";
  Refused(EINVAL, "certificate file '" + certificate_ + "'");
  options_.key_file = certificate_;
  Refused(EINVAL, "key file '" + certificate_ + "'");
  options_.key_file = directory_ + "/nothing";
  Refused(ENOENT, "key file '" + options_.key_file + "'");
  options_.key_file = key_;
  options_.ca_file = key_;
  Refused(EINVAL, "CA file '" + key_ + "'");
  options_.ca_file = directory_;
  EXPECT_FALSE(CheckEtcdOptions(options_).ok());
  options_.ca_file = "";
  options_.endpoints = {"a:1"};
  Refused(EINVAL, "takes a CA file");
  options_.ca_file = certificate_;
  options_.endpoints = {"http://a:1"};
  Refused(EINVAL, "'http://a:1': is without TLS");
}

TEST_F(EtcdOptionsTest, UserAndPasswordGoTogether) {
  options_.user = "nacre";
  Refused(EINVAL, "user 'nacre' lacks a password");
  options_.user = "";
  options_.password = "secret";
  const Status status = CheckEtcdOptions(options_).status();
  EXPECT_EQ(ToErrno(status), EINVAL);
  EXPECT_THAT(std::string(status.message()), testing::Not(HasSubstr("secret")));
}

TEST_F(EtcdOptionsTest, AnAttemptHasBounds) {
  options_.attempt = 1ms;
  Refused(EINVAL, "attempt of 0.001 s");
  options_.attempt = 1h;
  Refused(EINVAL, "attempt of 3600.000 s");
}

}  // namespace
}  // namespace nacre::coordination
