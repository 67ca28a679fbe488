#include "daemon/config.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

#include "daemon/config_file.h"

namespace nacre {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const std::filesystem::path kTop = NACRE_SOURCE_DIR;

template <typename Config>
Status Read(Config* config, std::string_view text) {
  std::vector<ConfigSection> sections = {Describe(config)};
  return ReadConfigText(text, "test.toml", sections);
}

std::string Why(std::string_view text) {
  MdsConfig config;
  Status status = Read(&config, text);
  EXPECT_EQ(ToErrno(status), EINVAL) << text;
  return std::string(status.message());
}

TEST(Config, TheSamplesShowEveryKeyWithItsDefault) {
  MdsConfig mds;
  ASSERT_EQ(ReadConfig(kTop / "deploy/config/mds.toml", &mds), OkStatus());
  EXPECT_EQ(Finish(&mds), OkStatus());
  EXPECT_EQ(mds.options.inline_limit, 16384u);
  OssConfig oss;
  ASSERT_EQ(ReadConfig(kTop / "deploy/config/oss.toml", &oss), OkStatus());
  EXPECT_EQ(Finish(&oss), OkStatus());
  ASSERT_EQ(oss.osts.size(), 1u);
  EXPECT_EQ(oss.osts[0].directory, "/var/lib/nacre/ost0");
  ClientConfig client;
  ASSERT_EQ(ReadConfig(kTop / "deploy/config/client.toml", &client), OkStatus());
  EXPECT_EQ(Finish(&client), OkStatus());

  const MdsConfig mds_default;
  EXPECT_EQ(mds.options.session_timeout, mds_default.options.session_timeout);
  EXPECT_EQ(mds.memory, mds_default.memory);
  const ClientConfig client_default;
  EXPECT_EQ(client.options.cache_bytes, client_default.options.cache_bytes);
  EXPECT_EQ(client.options.retry.soft_timeout, client_default.options.retry.soft_timeout);
}

std::string Contents(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

template <typename Config>
void ExpectDocumented(const std::string& sample, Config config) {
  ConfigSection section = Describe(&config);
  const std::string text = Contents(kTop / "deploy/config" / sample);
  const std::string manual = Contents(kTop / "docs/man/nacre.toml.5");
  for (const ConfigKey& key : section.keys()) {
    EXPECT_THAT(text, HasSubstr("\n" + key.name + " = ")) << sample;
    EXPECT_THAT(manual, HasSubstr("\n.BR " + key.name + " ")) << "nacre.toml(5), section " << section.name();
    EXPECT_FALSE(key.help.empty()) << key.name;
  }
}

TEST(Config, EveryKeyIsInItsSampleAndInTheManual) {
  ExpectDocumented("mds.toml", MdsConfig());
  ExpectDocumented("mds.toml", CopiesConfig());
  ExpectDocumented("oss.toml", OssConfig());
  ExpectDocumented("client.toml", ClientConfig());
}

TEST(Config, ReadsEachType) {
  MdsConfig mds;
  ASSERT_EQ(Read(&mds, R"([mds]
    directory = "/d"
    listen = ["unix:/a", "127.0.0.2:1"]
    memory = "128MiB"
    inline_limit = 4096
    threads = 7
    leases = false
    session_timeout = "1.5min"
    drain_rate = "16M"
    log = "debug")"),
            OkStatus());
  EXPECT_EQ(mds.directory, "/d");
  EXPECT_EQ(mds.listen, (std::vector<std::string>{"unix:/a", "127.0.0.2:1"}));
  EXPECT_EQ(mds.memory, 128u << 20);
  EXPECT_EQ(mds.inline_limit, 4096u);
  EXPECT_EQ(mds.threads, 7u);
  EXPECT_FALSE(mds.options.leases);
  EXPECT_EQ(mds.options.session_timeout, 90s);
  EXPECT_EQ(mds.options.drain_rate, 16u << 20);
  EXPECT_EQ(mds.log, "debug");
}

TEST(Config, EachMistakeNamesFileLineKeyAndWhatIsAllowed) {
  EXPECT_THAT(Why("[mds]\n\nmemroy = \"1GiB\""),
              AllOf(HasSubstr("test.toml:3: unknown key 'memroy' in [mds]: did you mean 'memory'?"),
                    HasSubstr("inline_limit")));
  EXPECT_THAT(Why("[mds]\nxyzzyplugh = 1"),
              AllOf(HasSubstr("unknown key 'xyzzyplugh'"), Not(HasSubstr("did you mean"))));
  EXPECT_THAT(Why("[mdss]\nthreads = 1"),
              HasSubstr("test.toml:1: unknown section 'mdss': did you mean 'mds'?"));
  EXPECT_THAT(Why("threads = 1"), HasSubstr("test.toml:1: unknown key 'threads'"));
  EXPECT_THAT(Why("mds = 1"), HasSubstr("test.toml:1: mds must be a section: [mds]"));
  EXPECT_THAT(Why("[mds]\nmemory = \"lots\""), HasSubstr("test.toml:2: [mds] memory: 'lots' is not a size"));
  EXPECT_THAT(Why("[mds]\nmemory = \"1KiB\""),
              HasSubstr("\"1KiB\" is not allowed; must be a size from 8M to 1T"));
  EXPECT_THAT(Why("[mds]\nmemory = -1"), HasSubstr("-1 is not allowed; must be a size"));
  EXPECT_THAT(Why("[mds]\nthreads = 0"), HasSubstr("0 is not allowed; must be a number from 1 to 256"));
  EXPECT_THAT(Why("[mds]\nthreads = 1.5"), HasSubstr("[mds] threads: must be a number"));
  EXPECT_THAT(Why("[mds]\nheartbeat = 5"),
              HasSubstr("5 is not allowed; must be a duration from 100ms to 1min"));
  EXPECT_THAT(Why("[mds]\nheartbeat = \"5\""), HasSubstr("'5' is not a duration"));
  EXPECT_THAT(Why("[mds]\nlog = \"loud\""),
              HasSubstr("\"loud\" is not allowed; must be one of debug, info, warning, error"));
  EXPECT_THAT(Why("[mds]\nleases = \"perhaps\""),
              HasSubstr("\"perhaps\" is not allowed; must be true or false"));
  EXPECT_THAT(Why("[mds]\nlisten = \"127.0.0.1:1\""),
              HasSubstr("must be a list of texts, such as [\"a\", \"b\"]"));
  EXPECT_THAT(Why("[mds]\nlisten = [1]"), HasSubstr("[mds] listen: must be a list of texts"));
  EXPECT_THAT(Why("[mds]\ndirectory = 5"), HasSubstr("5 is not allowed; must be a text in quotes"));
  EXPECT_THAT(Why("[mds\n"), HasSubstr("test.toml:1: not TOML:"));
  EXPECT_THAT(Why("[mds]\n[\x1bmds]"),
              HasSubstr("test.toml:2: not TOML: a section's name must follow the '['"));
  EXPECT_THAT(Why("[= 5"), HasSubstr("test.toml:1: not TOML:"));
  EXPECT_THAT(Why("[mds]\nlog = \"info\" \u02d5"), HasSubstr("test.toml:2: not TOML:"));
  MdsConfig good;
  EXPECT_EQ(Read(&good, "[mds]  # \u02d5 ~\ndirectory = \"/m\u00fcll~1\"\nlisten = ['unix:/\u00e9']"),
            OkStatus());
  EXPECT_EQ(good.directory, "/m\u00fcll~1");
  EXPECT_EQ(good.listen, std::vector<std::string>{"unix:/\u00e9"});
  EXPECT_THAT(Why("[mds]\nthreads = 1\nthreads = 2"), HasSubstr("test.toml:3: not TOML:"));
}

// Files of before go on working.
TEST(Config, AKeyThatWasTakenAwayIsNoMistake) {
  MdsConfig mds;
  testing::internal::CaptureStderr();
  EXPECT_EQ(Read(&mds, "[mds]\nthreads = 7\nkernel_cache = \"1s\""), OkStatus());
  EXPECT_THAT(
      testing::internal::GetCapturedStderr(),
      HasSubstr("test.toml:3: [mds] kernel_cache is not used any more and can be deleted: the key of"));
  EXPECT_EQ(mds.threads, 7u);
}

TEST(Config, AllMistakesOfAFileAreTold) {
  EXPECT_THAT(Why("[mds]\nthreads = 0\nlog = \"loud\""),
              AllOf(HasSubstr("test.toml:2:"), HasSubstr("\ntest.toml:3:")));
}

TEST(Config, AMissingFileIsNamed) {
  MdsConfig config;
  Status status = ReadConfig("/nowhere/nacre.toml", &config);
  EXPECT_EQ(ToErrno(status), ENOENT);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/nowhere/nacre.toml"));
}

TEST(Config, OstsAreSectionsOfTheirOwn) {
  OssConfig oss;
  ASSERT_EQ(Read(&oss,
                 "[[oss.ost]]\nindex = 3\ndirectory = \"/a\"\nsize = \"1GiB\"\n[[oss.ost]]\nindex = "
                 "4\ndirectory = \"/b\""),
            OkStatus());
  ASSERT_EQ(oss.osts.size(), 2u);
  EXPECT_EQ(oss.osts[0].index, 3u);
  EXPECT_EQ(oss.osts[0].size, 1u << 30);
  EXPECT_EQ(oss.osts[1].directory, "/b");
  EXPECT_EQ(Finish(&oss), OkStatus());

  OssConfig twice;
  ASSERT_EQ(Read(&twice, "[[oss.ost]]\ndirectory = \"/a\"\n[[oss.ost]]\ndirectory = \"/b\""), OkStatus());
  EXPECT_THAT(std::string(Finish(&twice).message()), HasSubstr("index 0 is there twice"));

  OssConfig wrong;
  EXPECT_THAT(std::string(Read(&wrong, "[[oss.ost]]\nindx = 1").message()),
              HasSubstr("test.toml:2: unknown key 'indx' in [oss.ost]: did you mean 'index'?"));
  EXPECT_THAT(std::string(Read(&wrong, "[oss]\nost = 1").message()), HasSubstr("[[oss.ost]]"));
  EXPECT_THAT(std::string(Finish(&wrong).message()), HasSubstr("[[oss.ost]]"));
}

TEST(Config, ClientsAreToldWhereToGo) {
  for (const char* nowhere : {"0.0.0.0:7720", "[::]:7720"}) {
    OssConfig oss;
    oss.osts.push_back({.directory = "/a"});
    oss.listen = nowhere;
    oss.insecure = true;
    EXPECT_THAT(
        std::string(Finish(&oss).message()),
        AllOf(HasSubstr(absl::StrCat("[oss] listen '", nowhere, "'")), HasSubstr("say in advertise")));
    oss.advertise = "10.0.0.1:7720";
    EXPECT_EQ(Finish(&oss), OkStatus());
    oss.advertise = nowhere;
    EXPECT_THAT(std::string(Finish(&oss).message()), HasSubstr("[oss] advertise"));
  }
}

TEST(Config, ALoopbackAddressBesideARemoteMdsIsWarnedOf) {
  OssConfig oss;
  oss.osts.push_back({.directory = "/a"});
  const auto warned = [&oss](const char* mds, const char* listen) {
    oss.mds = mds;
    oss.listen = listen;
    testing::internal::CaptureStderr();
    EXPECT_EQ(Finish(&oss), OkStatus());
    return absl::StrContains(testing::internal::GetCapturedStderr(), "clients on other machines");
  };
  EXPECT_TRUE(warned("10.0.0.1:7710", "127.0.0.1:7720"));
  EXPECT_TRUE(warned("127.0.0.1:7710,mds2:7710", "localhost:7720"));
  EXPECT_FALSE(warned("127.0.0.1:7710", "127.0.0.1:7720"));
  EXPECT_FALSE(warned("unix:/run/mds.sock", "unix:/run/oss.sock"));
}

TEST(Config, AnOstMayHaveCopies) {
  OssConfig oss;
  ASSERT_EQ(
      Read(&oss, "[[oss.ost]]\ndirectory = \"/a\"\n[[oss.ost]]\nindex = 1\ndirectory = \"/b\"\ncopies = 3"),
      OkStatus());
  EXPECT_EQ(oss.osts[0].copies, 1u);
  EXPECT_EQ(oss.osts[1].copies, 3u);
  EXPECT_EQ(Finish(&oss), OkStatus());
  for (const char* copies : {"0", "4", "-1"}) {
    OssConfig wrong;
    EXPECT_THAT(std::string(Read(&wrong, absl::StrCat("[[oss.ost]]\ncopies = ", copies)).message()),
                HasSubstr(absl::StrCat("test.toml:2: [oss.ost] copies: ", copies,
                                       " is not allowed; must be a number from 1 to 3")));
  }
  EXPECT_EQ(ParseOstFlag("3=/a")->copies, 1u);
  for (const char* text : {"3=/a,1GiB,copies=2", "3=/a,copies=2,1GiB"}) {
    auto ost = ParseOstFlag(text);
    ASSERT_TRUE(ost.ok()) << ost.status();
    EXPECT_EQ(ost->index, 3u);
    EXPECT_EQ(ost->directory, "/a");
    EXPECT_EQ(ost->size, 1u << 30);
    EXPECT_EQ(ost->copies, 2u);
  }
  for (const char* copies : {"0", "4", "two", ""}) {
    auto ost = ParseOstFlag(absl::StrCat("3=/a,copies=", copies));
    EXPECT_EQ(ToErrno(ost.status()), EINVAL);
    EXPECT_THAT(
        std::string(ost.status().message()),
        HasSubstr(absl::StrCat("'", copies, "' is not allowed; copies must be a number from 1 to 3")));
  }
}

MdsConfig OneOfSeveral() {
  MdsConfig mds;
  mds.directory = "/d";
  mds.listen = {"127.0.0.1:7710", "unix:/a"};
  mds.copies.coordinator = {"etcd1:2379", "http://10.0.0.2:2379"};
  return mds;
}

TEST(Config, AnMdsMayBeOneOfSeveral) {
  MdsConfig mds = OneOfSeveral();
  ASSERT_EQ(Finish(&mds), OkStatus());
  EXPECT_TRUE(mds.copies.several());
  EXPECT_FALSE(mds.copies.name.empty());
  EXPECT_EQ(mds.copies.address, "127.0.0.1:7710");
  EXPECT_EQ(mds.copies.etcd.endpoints, mds.copies.coordinator);

  std::vector<ConfigSection> sections = Sections(&mds);
  ASSERT_EQ(ReadConfigText("[mds]\nthreads = 7\n[copies]\nname = \"b\"\naddress = \"unix:/b\"", "test.toml",
                           sections),
            OkStatus());
  ASSERT_EQ(Finish(&mds), OkStatus());
  EXPECT_EQ(mds.threads, 7u);
  EXPECT_EQ(mds.copies.name, "b");
  EXPECT_EQ(mds.copies.address, "unix:/b");
  OssConfig oss;  // of another daemon: checked, not kept
  EXPECT_EQ(ReadConfig(kTop / "deploy/config/mds.toml", &oss), OkStatus());

  MdsConfig alone;
  alone.directory = "/d";
  EXPECT_EQ(Finish(&alone), OkStatus());
  EXPECT_FALSE(alone.copies.several());
}

TEST(Config, WhatIsWrongWithCopiesIsNamed) {
  auto why = [](const std::function<void(MdsConfig*)>& change) {
    MdsConfig mds = OneOfSeveral();
    change(&mds);
    return std::string(Finish(&mds).message());
  };
  EXPECT_THAT(why([](MdsConfig* mds) {
                mds->listen = {"0.0.0.0:7710"};
                mds->insecure = true;
              }),
              AllOf(HasSubstr("[copies] address is not set"), HasSubstr("'0.0.0.0:7710'"),
                    HasSubstr("every address of this machine; say the one by which")));
  EXPECT_THAT(why([](MdsConfig* mds) { mds->copies.address = "[::]:7710"; }),
              HasSubstr("[copies] address '[::]:7710': '[::]' stands for every address"));
  for (const char* address : {"mds1", "mds1:0", "mds1:port", ":7710", "mds1:70000"}) {
    EXPECT_THAT(why([&](MdsConfig* mds) { mds->copies.address = address; }),
                AllOf(HasSubstr(absl::StrCat("[copies] address '", address, "'")), HasSubstr("HOST:PORT")));
  }
  EXPECT_THAT(why([](MdsConfig* mds) { mds->copies.address = "mds1:1,mds2:1"; }),
              HasSubstr("must be one address"));
  for (const char* name : {"a/b", "a b", "a,b"}) {
    EXPECT_THAT(why([&](MdsConfig* mds) { mds->copies.name = name; }),
                HasSubstr(absl::StrCat("[copies] name '", name, "'")));
  }
  for (const char* prefix : {"", "/nacre"}) {
    EXPECT_THAT(why([&](MdsConfig* mds) { mds->copies.prefix = prefix; }),
                HasSubstr(absl::StrCat("[copies] prefix '", prefix, "': must end with a slash")));
  }
  EXPECT_THAT(why([](MdsConfig* mds) { mds->copies.coordinator = {"etcd1"}; }),
              AllOf(HasSubstr("[copies] etcd endpoint 'etcd1'"), HasSubstr("HOST:PORT")));
  EXPECT_THAT(why([](MdsConfig* mds) { mds->copies.user = "nacre"; }),
              HasSubstr("[copies] user 'nacre' and password_file '' go together"));
  EXPECT_THAT(why([](MdsConfig* mds) {
                mds->copies.user = "nacre";
                mds->copies.password_file = "/nowhere/password";
              }),
              HasSubstr("[copies] password_file '/nowhere/password': No such file"));
  EXPECT_THAT(why([](MdsConfig* mds) {
                mds->copies.coordinator.clear();
                mds->copies.name = "mds1";
              }),
              HasSubstr("[copies] name is 'mds1', but coordinator is empty"));
}

TEST(Config, OneFileMayServeAll) {
  OssConfig oss;
  ASSERT_EQ(ReadConfig(kTop / "deploy/config/mds.toml", &oss), OkStatus());
  EXPECT_TRUE(oss.osts.empty());
}

TEST(Config, WhatFollowsFromSeveralKeysIsChecked) {
  MdsConfig mds;
  EXPECT_THAT(std::string(Finish(&mds).message()), HasSubstr("[mds] directory is not set"));
  ClientConfig client;
  client.mount = "/m";
  client.dirty = client.options.cache_bytes + 1;
  EXPECT_THAT(std::string(Finish(&client).message()), HasSubstr("dirty is larger than cache"));
  client.dirty = 0;
  client.recovery = "soft";
  EXPECT_EQ(Finish(&client), OkStatus());
  EXPECT_FALSE(client.options.retry.hard);
  EXPECT_EQ(client.options.dirty_bytes, client.options.cache_bytes / 4);
  EXPECT_THAT(client.options.name, HasSubstr(":/m@"));
}

TEST(Config, OnlyLoopbackIsServedUnlessToldOtherwise) {
  for (const char* address :
       {"127.0.0.1:1", "127.8.9.1:7710", "localhost:1", "[::1]:1", "unix:/x", "inproc:a"}) {
    EXPECT_EQ(CheckExposure(address, false), OkStatus()) << address;
  }
  for (const char* address :
       {"0.0.0.0:1", "10.0.0.1:7710", "example.org:1", "[::]:1", "127.0.0.1.example.org:1"}) {
    Status status = CheckExposure(address, false);
    EXPECT_EQ(ToErrno(status), EACCES) << address;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(address), HasSubstr("--insecure")));
    EXPECT_EQ(CheckExposure(address, true), OkStatus());
  }
}

}  // namespace
}  // namespace nacre
