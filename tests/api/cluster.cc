#include "tests/api/cluster.h"

namespace nacre::test {

Cluster::Cluster() {
  mds_ = std::make_unique<Program>(std::vector<std::string>{"nacre-mds", "--directory", directory_ / "mdt",
                                                            "--listen", mds(), "--revoke-timeout", "60s"});
  StartOss();
}

void Cluster::StartOss() {
  std::vector<std::string> words = {
      "nacre-oss", "--mds", mds(), "--listen", "unix:" + directory_ / "oss.sock", "--heartbeat", "100ms"};
  for (int i = 0; i < 4; ++i) {
    words.push_back("--ost");
    words.push_back(std::to_string(i) + "=" + directory_ / ("ost" + std::to_string(i)) + ",256MiB");
  }
  oss_ = std::make_unique<Program>(std::move(words));
}

}  // namespace nacre::test
