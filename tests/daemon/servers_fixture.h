// Servers as processes, for tests of the daemons and of the commands that ask them.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/runtime.h"
#include "rpc/grpc_channel.h"
#include "tests/daemon/program.h"

namespace nacre {

// A cluster of one MDS and one OSS with two OSTs on unix sockets.
class ServersTest : public testing::Test {
 protected:
  std::vector<std::string> MdsWords() {
    return {"nacre-mds", "--directory", directory_ / "mdt", "--listen", mds_};
  }
  std::vector<std::string> OssWords() {
    return {"nacre-oss",
            "--mds",
            mds_,
            "--listen",
            "unix:" + directory_ / "oss.sock",
            "--heartbeat",
            "100ms",
            "--ost",
            "0=" + directory_ / "ost0" + ",256MiB",
            "--ost",
            "1=" + directory_ / "ost1" + ",256MiB"};
  }

  void Format() {
    Ended mds = RunProgram(Formatting(MdsWords()));
    ASSERT_EQ(mds.exit, 0) << mds.output;
    Ended oss = RunProgram(Formatting(OssWords()));
    ASSERT_EQ(oss.exit, 0) << oss.output;
  }

  // Until the MGS answers and counts so many OSTs as up.
  bool WaitForOsts(int osts) {
    return WaitForStatus([osts](const proto::ClusterStatus& status) {
      int up = 0;
      for (const auto& ost : status.map().osts()) up += ost.up();
      return up >= osts;
    });
  }

  // Until the MGS answers so.
  template <typename Condition>
  bool WaitForStatus(Condition condition) {
    auto cluster = *NewGrpcClusterChannel(mds_, 1s);
    for (Duration end = RealClock().Now() + 60s; RealClock().Now() < end;) {
      auto status = runtime_.Run(cluster->GetStatus());
      if (status.ok() && condition(*status)) return true;
      runtime_.Run([]() -> Task<int> {
        co_await RealClock().Sleep(10ms);
        co_return 0;
      }());
    }
    return false;
  }

  TemporaryDirectory directory_;
  std::string mds_ = "unix:" + directory_ / "mds.sock";
  Runtime runtime_{1};
};

}  // namespace nacre
