// Reaching an MDS over gRPC when that fails: wrong addresses, nobody there, somebody who does not speak.
#include "rpc/grpc_channel.h"

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/runtime.h"

namespace nacre {
namespace {

using testing::HasSubstr;

TEST(GrpcAddress, WrongOnesAreNamed) {
  for (const std::string& address :
       std::vector<std::string>{"", "host", "host:", ":7000", "host:99999", "host:x",
                                "unix:", "unix:relative", "unix:/" + std::string(200, 'x')}) {
    Status status = NewGrpcConnector(address).status();
    EXPECT_EQ(ToErrno(status), EINVAL) << address;
    EXPECT_THAT(std::string(status.message()), HasSubstr("'" + address + "'"));
  }
}

// A listening TCP socket whose peer never says a word, or says the wrong ones.
class DeafPort {
 public:
  DeafPort() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof any;
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&any), size), 0);
    EXPECT_EQ(listen(fd_, 8), 0);
    getsockname(fd_, reinterpret_cast<sockaddr*>(&any), &size);
    port_ = ntohs(any.sin_port);
  }
  ~DeafPort() { close(fd_); }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

 private:
  int fd_;
  int port_ = 0;
};

TEST(GrpcConnect, AServerThatDoesNotSpeakTimesOutWithAHint) {
  Runtime runtime(1);
  DeafPort port;
  auto connector = *NewGrpcConnector(port.address());
  Status status = runtime.Run(connector->Connect({}, 100ms)).status();
  EXPECT_EQ(ToErrno(status), ETIMEDOUT);
  EXPECT_THAT(std::string(status.message()), HasSubstr(port.address()));
  EXPECT_THAT(std::string(status.message()), HasSubstr("check that nacre-mds runs there"));
}

TEST(GrpcConnect, NobodyThereIsUnavailableWithAHintAtOnce) {
  Runtime runtime(1);
  std::string address;
  {
    DeafPort port;
    address = port.address();
  }
  auto connector = *NewGrpcConnector(address);
  Duration begin = RealClock().Now();
  Status status = runtime.Run(connector->Connect({}, 30s)).status();
  EXPECT_TRUE(IsRetryable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("check that nacre-mds runs there"));
  EXPECT_LT(RealClock().Now() - begin, 5s);
}

}  // namespace
}  // namespace nacre
