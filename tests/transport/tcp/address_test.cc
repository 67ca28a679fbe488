#include "transport/tcp/address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nacre {
namespace {

using ::testing::HasSubstr;

TEST(SocketAddress, Forms) {
  auto tcp = [](const char* text) {
    auto parsed = ParseSocketAddress(text);
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    return std::get<TcpAddress>(*parsed);
  };
  EXPECT_EQ(tcp("oss1.example:7000").host, "oss1.example");
  EXPECT_EQ(tcp("oss1.example:7000").port, 7000);
  EXPECT_EQ(tcp("127.0.0.1:0").port, 0);
  EXPECT_EQ(tcp("[::1]:65535").host, "::1");
  EXPECT_EQ(tcp("[::1]:65535").port, 65535);
  auto local = ParseSocketAddress("unix:/run/nacre/oss.1");
  ASSERT_TRUE(local.ok());
  EXPECT_EQ(std::get<UnixAddress>(*local).path, "/run/nacre/oss.1");
}

TEST(SocketAddress, RefusesOthersWithTheirText) {
  for (std::string text : {"", "host", "host:", ":7000", "host:65536", "host:-1", "host:7000x", "::1:7000",
                           "[]:1", "unix:", "inproc:oss"}) {
    auto parsed = ParseSocketAddress(text);
    ASSERT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("\"" + text + "\""));
  }
  auto parsed = ParseSocketAddress("unix:/" + std::string(200, 'x'));
  EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("longer than the 107 bytes"));
}

}  // namespace
}  // namespace nacre
