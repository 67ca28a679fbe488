// One MDS and one OSS with four OSTs as processes, for tests of the library.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/daemon/program.h"

namespace nacre::test {

class Cluster {
 public:
  // `oss_options`: further words of nacre-oss's command line.
  explicit Cluster(std::vector<std::string> oss_options = {});
  // Address of the MDS.
  std::string mds() const { return "unix:" + directory_ / "mds.sock"; }
  std::string File(const std::string& name) const { return directory_ / name; }

  Program& mds_process() { return *mds_; }
  Program& oss_process() { return *oss_; }
  void KillOss() { oss_.reset(); }
  void StartOss();

 private:
  std::vector<std::string> OssWords() const;

  const std::vector<std::string> oss_options_;
  TemporaryDirectory directory_;
  std::unique_ptr<Program> mds_, oss_;
};

}  // namespace nacre::test
