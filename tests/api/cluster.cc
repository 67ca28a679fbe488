#include "tests/api/cluster.h"

namespace nacre::test {

Cluster::Cluster(std::vector<std::string> oss_options) : oss_options_(std::move(oss_options)) {
  std::vector<std::string> mds_words = {
      "nacre-mds", "--directory", directory_ / "mdt", "--listen", mds(), "--revoke-timeout", "60s"};
  RunProgram(Formatting(mds_words));
  mds_ = std::make_unique<Program>(mds_words);
  RunProgram(Formatting(OssWords()));
  StartOss();
}

void Cluster::StartOss() { oss_ = std::make_unique<Program>(OssWords()); }

std::vector<std::string> Cluster::OssWords() const {
  std::vector<std::string> words = {
      "nacre-oss", "--mds", mds(), "--listen", "unix:" + directory_ / "oss.sock", "--heartbeat", "100ms"};
  for (int i = 0; i < 4; ++i) {
    words.push_back("--ost");
    words.push_back(std::to_string(i) + "=" + directory_ / ("ost" + std::to_string(i)) + ",256MiB");
  }
  words.insert(words.end(), oss_options_.begin(), oss_options_.end());
  return words;
}

}  // namespace nacre::test
