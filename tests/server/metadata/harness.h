// An MDS alone in one thread: MemKv, a clock that the test moves, OSTs that are maps, and clients without a
// client library. Not thread-safe.
#pragma once

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <boost/asio/io_context.hpp>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "proto/object.pb.h"
#include "rpc/convert.h"
#include "server/kv/mem_kv.h"
#include "server/metadata/metadata_server.h"

namespace nacre::mds {

class ManualClock : public Clock {
 public:
  ~ManualClock() override;
  Duration Now() override { return now_; }
  WallTime Wall() override;
  std::unique_ptr<TimerHandle> After(const Executor& executor, Duration delay,
                                     absl::AnyInvocable<void()> function) override;
  bool RunNext(Duration limit);  // moves to the next timer; false: none before the limit, which is now
  void Step(Duration by) { now_ += by; }

 private:
  struct Timer {
    Executor executor;
    absl::AnyInvocable<void()> function;
  };
  class Handle;
  Duration now_{0};
  uint64_t next_ = 0;
  std::map<std::pair<Duration, uint64_t>, Timer> timers_;
};

// Objects of all OSTs, behind a Transport that carries ObjectRequests.
class FakeOsts : public Transport {
 public:
  // Blocks of zeros are holes.
  struct Object {
    std::string data;
    Fid parent;
    uint64_t version = 0;
  };

  StatusOr<std::shared_ptr<MemoryRegion>> Register(std::byte* data, size_t size) override;
  StatusOr<std::shared_ptr<Peer>> Connect(const std::string& address) override;
  StatusOr<std::unique_ptr<Listener>> Listen(const std::string& address, CallHandler handler) override;

  Task<void> Delay(CallRequest call);
  StatusOr<proto::ObjectReply> Answer(const std::string& address, const CallRequest& call);
  size_t CountObjects() const;
  void AddLoss(OstIndex ost) { ++losses_[ost]; }  // it says that it has lost power

  std::map<OstIndex, std::map<ObjectId, Object>> objects;
  std::set<OstIndex> away;          // calls to these fail
  std::set<OstIndex> failing;       // their servers say so, and answer
  std::map<OstIndex, int> refuses;  // these answer changes of objects with an error
  // Objects that a session has made longer, as the OSTs note it (ListGrown).
  std::map<OstIndex, std::set<std::pair<SessionId, ObjectId>>> grown;
  std::map<OstIndex, std::set<SessionId>> fenced;
  std::vector<std::string> calls;  // "destroy 3", …
  uint64_t bytes_written = 0;
  // The next sync finds that this OST has lost power before it: everything since the last one is gone.
  std::set<OstIndex> loses_power;
  // Asked before each call to a server is carried out; an error fails it.
  std::function<Status(const std::string& address, const proto::ObjectRequest& request)> on_call;
  // Waited for before each call is carried out; not set: nothing is.
  std::function<Task<void>(const proto::ObjectRequest& request)> delay;

 private:
  proto::ObjectReply Do(const proto::ObjectRequest& request, const CallRequest& call);
  static void Read(const Object& object, const proto::ObjectRange& range, const CallRequest& call,
                   proto::ReadRangeResult* result);
  void Sync(OstIndex ost);

  std::map<OstIndex, std::map<ObjectId, Object>> synced_;
  std::map<OstIndex, uint64_t> losses_;
};

class FakePeer : public MetadataPeer {
 public:
  explicit FakePeer(std::string name) : name_(std::move(name)) {}
  void Send(proto::Push push) override {
    pushes.push_back(push);
    if (on_push) on_push(push);
  }
  void Close() override { closed = true; }
  std::string name() const override { return name_; }

  std::deque<proto::Push> pushes;
  std::function<void(const proto::Push&)> on_push;
  bool closed = false;

 private:
  std::string name_;
};

class Harness {
 public:
  // Without leases unless the options say otherwise: the MDS is told of every open file then.
  explicit Harness(int osts = 4, MetadataOptions options = WithoutLeases());
  static MetadataOptions WithoutLeases();
  ~Harness();

  void Start();
  void Crash();  // the process ends; what was running stays where it is
  void Restart() {
    Crash();
    Start();
  }
  // The store takes so many commits from now on, and then none, as of a machine that stops there.
  void StopAfterCommits(int count);
  // Then that machine starts again, and the OSTs register.
  void RestartStopped();
  // As Restart, of the machine: everything is gone that was not synced.
  void LosePower();
  // The OST is to have so many members from now on; one of them is there.
  void SetCopies(OstIndex ost, uint32_t copies);
  void RegisterOsts();  // what the heartbeats of those that are not away do by themselves within a second

  // Runs until `done`; false if the limit of time passes before.
  bool RunUntil(const std::function<bool()>& done, Duration limit = std::chrono::seconds(600));
  void RunFor(Duration time);

  template <typename T>
  T Await(Task<T> task) {
    auto result = std::make_shared<std::optional<T>>();
    Spawn(context.get_executor(), std::move(task), [result](T value) { *result = std::move(value); });
    EXPECT_TRUE(RunUntil([&] { return result->has_value(); })) << "no answer";
    return *std::move(*result);
  }

  asio::io_context context;
  ManualClock clock;
  const Authority* authority = nullptr;  // given to Start
  SeededRandom random{42};
  MemKv store;
  FakeOsts osts;
  int ost_count;
  uint64_t ost_bytes = uint64_t{1} << 30;
  std::function<uint64_t(OstIndex)> used_bytes;  // what OSTs say of themselves; unset: nothing is used
  MetadataOptions options;
  std::unique_ptr<MetadataServer> server;

 private:
  static Task<void> BeatHearts(Harness* harness);
  Task<Status> BeatHeart(OstIndex ost);
  proto::RegisterOssRequest Registration(OstIndex ost);

  std::map<OstIndex, uint32_t> copies_;  // of those that are to have several
};

// A client of the harness: numbers its mutations, keeps its session. Methods return replies; status() has the
// error.
class TestClient {
 public:
  explicit TestClient(Harness& harness, uint32_t uid = 0, uint32_t gid = 0,
                      std::vector<uint32_t> groups = {});

  proto::MetadataReply Connect();  // opens or resumes the session
  // Over a new stream, after a loss of the old one or a restart: also says what is open, one handle of each.
  void Reconnect(const std::vector<Fid>& open = {});
  // Time passes, with signs of life.
  void StayFor(Duration time);
  proto::MetadataReply Call(proto::MetadataRequest request);
  // Does not wait; the reply comes into *reply.
  void Start(proto::MetadataRequest request, std::shared_ptr<std::optional<proto::MetadataReply>> reply);
  proto::MetadataRequest Prepare(
      proto::MetadataRequest request);  // session, sequence, low water, credentials
  void As(uint32_t uid, uint32_t gid, std::vector<uint32_t> groups = {});

  proto::MetadataReply Lookup(Fid parent, const std::string& name, bool layout = false);
  proto::MetadataReply Getattr(Fid fid);
  proto::MetadataReply Create(Fid parent, const std::string& name, uint32_t mode = 0644,
                              uint32_t flags = O_RDWR | O_CREAT, bool exclusive = true);
  proto::MetadataReply Mknod(Fid parent, const std::string& name, uint32_t mode, uint64_t rdev = 0,
                             const std::string& target = {});
  proto::MetadataReply Mkdir(Fid parent, const std::string& name, uint32_t mode = 0755) {
    return Mknod(parent, name, S_IFDIR | mode);
  }
  proto::MetadataReply Symlink(Fid parent, const std::string& name, const std::string& target) {
    return Mknod(parent, name, S_IFLNK | 0777, 0, target);
  }
  proto::MetadataReply Readlink(Fid fid);
  proto::MetadataReply Unlink(Fid parent, const std::string& name, bool keep_open = false);
  proto::MetadataReply Rmdir(Fid parent, const std::string& name);
  proto::MetadataReply Rename(Fid parent, const std::string& name, Fid new_parent,
                              const std::string& new_name, uint32_t flags = 0);
  proto::MetadataReply Link(Fid fid, Fid parent, const std::string& name);
  proto::MetadataReply Readdir(Fid fid, uint64_t cookie = 0, uint32_t limit = 0, bool plus = false);
  proto::MetadataReply Open(Fid fid, uint32_t flags = O_RDONLY);
  proto::MetadataReply Close(Fid fid, uint32_t count = 1, bool write = false);
  proto::MetadataReply UpdateSize(Fid fid, uint64_t size, int64_t blocks = 0);
  proto::MetadataReply Truncate(Fid fid, uint64_t size);
  proto::MetadataReply Chmod(Fid fid, uint32_t mode);
  proto::MetadataReply Chown(Fid fid, int64_t uid, int64_t gid);  // -1: stays
  std::vector<std::string> List(Fid fid, uint32_t limit = 0);

  Harness& harness;
  std::shared_ptr<FakePeer> peer;
  SessionId session = 0;
  uint64_t nonce;
  uint64_t sequence = 0;
  std::set<uint64_t> unanswered;
  uint32_t uid, gid;
  std::vector<uint32_t> groups;
};

inline int ErrorOf(const proto::MetadataReply& reply) { return static_cast<int>(reply.status().error()); }
inline Fid FidOf(const proto::MetadataReply& reply) { return FromProto(reply.entry().attr().fid()); }

MATCHER(IsOk, "") {
  *result_listener << arg.status().message();
  return arg.status().error() == 0;
}
MATCHER_P(Fails, error, "") {
  *result_listener << "error " << arg.status().error() << ": " << arg.status().message();
  return arg.status().error() == static_cast<uint32_t>(error);
}

}  // namespace nacre::mds
