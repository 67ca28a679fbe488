// A simulated cluster with one or two clients of the real client library, and short forms of what tests do
// with files.
//
// The MDS, the OSSes and the network are those of tests/sim; the clients are mounted here, so that a test
// sees each request to the MDS (Requests) and can put a fault in its way. Single-threaded.
#pragma once

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/filesystem.h"
#include "rpc/convert.h"
#include "tests/sim/cluster.h"

namespace nacre::client {

inline constexpr uint64_t kMiB = 1 << 20;

MATCHER_P(HasErrno, error, "") {
  *result_listener << arg;
  return ToErrno(arg) == error;
}

class Harness;

// One mounted client.
class Mounted {
 public:
  Mounted(Harness& harness, int node, Options options);

  FileSystem& fs() { return *fs_; }
  sim::Process* process() { return process_; }
  Status Unmount();
  void Kill();

  // How many requests of each kind have gone to the MDS, by proto field name; `total` but keep-alives.
  std::map<std::string, int> requests;
  int total() const;
  // How many of the changes that were answered early the MDS has yet to do.
  uint64_t Behind();

  // Awaited before a request leaves.
  std::function<Task<void>(const proto::MetadataRequest&)> before_request;
  // Awaited when a reply has come, before the client gets it: or this error in its place.
  std::function<Task<Status>(const proto::MetadataRequest&)> before_reply;
  // The stream to the MDS breaks, and the next one is there.
  Task<void> LoseStream();

  template <typename T>
  T Await(Task<T> task);

  // Short forms; they fail the test where success is expected.
  Fid Mkdir(const std::string& name, Fid parent = kRootFid);
  HandlePtr Create(const std::string& name, int flags = O_RDWR, Fid parent = kRootFid);
  HandlePtr Open(Fid fid, int flags = O_RDWR);
  HandlePtr OpenName(const std::string& name, int flags = O_RDWR, Fid parent = kRootFid);
  StatusOr<Known> Lookup(const std::string& name, Fid parent = kRootFid);
  // For how long the kernel may still keep an answer (Known::until).
  Duration Left(Duration until);
  proto::Attr Stat(Fid fid);
  void Write(const HandlePtr& handle, uint64_t offset, std::string_view data);
  StatusOr<size_t> TryWrite(const HandlePtr& handle, uint64_t offset, std::string_view data);
  std::string Read(const HandlePtr& handle, uint64_t offset, size_t size);
  void Truncate(const HandlePtr& handle, uint64_t size);
  Status Fsync(const HandlePtr& handle);
  Status Close(const HandlePtr& handle);
  std::vector<std::string> List(Fid fid = kRootFid);

  Caller caller;

 private:
  friend class Harness;
  Harness& harness_;
  sim::Process* process_;
  FileSystem* fs_ = nullptr;
};

struct HarnessOptions {
  uint64_t seed = 1;
  int osses = 2;
  int osts_per_oss = 2;
  uint64_t ost_blocks = 32 << 10;
  MetadataOptions metadata;
  Options client;
};

class Harness {
 public:
  explicit Harness(HarnessOptions options = {});
  ~Harness();

  std::unique_ptr<Mounted> Mount();
  std::unique_ptr<Mounted> Mount(Options options);

  // Whether it takes no time at all, as what waits for a server does.
  template <typename F>
  bool AtOnce(F action) {
    const Duration before = world.clock().Now();
    action();
    return world.clock().Now() == before;
  }
  bool RunUntil(const std::function<bool()>& done, Duration limit = std::chrono::minutes(10)) {
    return world.RunUntil(done, limit);
  }

  const HarnessOptions options;
  sim::World world;
  sim::Network network;
  sim::Cluster cluster;

 private:
  int next_node_ = 100;
};

template <typename T>
T Mounted::Await(Task<T> task) {
  auto result = std::make_shared<std::optional<T>>();
  Spawn(process_->executor(), std::move(task), [result](T value) { *result = std::move(value); });
  EXPECT_TRUE(harness_.RunUntil([&] { return result->has_value(); })) << "no answer";
  return *std::move(*result);
}

// Bytes that differ everywhere.
std::string Pattern(uint64_t seed, size_t size);

}  // namespace nacre::client
