// A whole cluster on four threads: what the simulation, which has one thread, cannot find.
//
// An MDS, an OSS with two OSTs and several clients of the real client library run in this process over stores
// in memory. Workers of every client work at once: each in files of its own, whose content it knows to the
// byte, and all on the same few names, of which the successful changes are counted. Afterwards every file is
// read through another client and the checkers look at the stores. NACRE_STRESS_OPERATIONS says how many
// operations each worker does.
#include <absl/strings/str_join.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <optional>

#include "client/filesystem.h"
#include "common/log.h"
#include "common/runtime.h"
#include "rpc/convert.h"
#include "rpc/inproc_channel.h"
#include "server/kv/mem_kv.h"
#include "server/metadata/check.h"
#include "server/metadata/metadata_server.h"
#include "server/object/check.h"
#include "server/object/mem_block_store.h"
#include "server/object/object_server.h"
#include "transport/inproc/inproc_transport.h"

namespace nacre {
namespace {

constexpr int kThreads = 4;
constexpr int kWorkers = 3;  // of each client
constexpr int kSharedNames = 4;
constexpr uint64_t kMaxBytes = 200'000;

int Operations() {
  const char* wanted = std::getenv("NACRE_STRESS_OPERATIONS");
  return wanted == nullptr ? 3000 : std::atoi(wanted);
}

// How often a shared name was made and removed: it is there afterwards if it was made once more.
struct NameCount {
  std::atomic<int> made{0}, removed{0};
};

struct Shared {
  Fid directory;
  NameCount names[kSharedNames];
  std::atomic<int> failures{0};

  // Reports the first few of whatever goes wrong.
  void Fail(const std::string& what) {
    if (failures.fetch_add(1) < 10) ADD_FAILURE() << what;
  }
};

using Content = std::map<std::string, std::string>;  // of one worker's directory

// One worker, from its directory's making to the last byte of its files.
class Worker {
 public:
  Worker(client::FileSystem& filesystem, Shared& shared, std::string name, uint64_t seed)
      : filesystem_(filesystem), shared_(shared), name_(std::move(name)), random_(seed) {}

  Task<bool> Run(int operations) {
    std::string name = name_;
    auto made = co_await filesystem_.Mknod(caller_, kRootFid, name, S_IFDIR | 0755, 0);
    if (!Check("mkdir", made.status())) co_return false;
    directory_ = FromProto(made->attr.fid());
    for (int i = 0; i < operations && shared_.failures == 0; ++i) {
      const bool common = random_.OneIn(4);
      if (common) {
        co_await OnSharedName();
      } else {
        co_await OnOwnFile();
      }
    }
    co_return true;
  }

  const std::string& name() const { return name_; }
  const Content& content() const { return content_; }

 private:
  // Keeps the last operations, for the message of a failure.
  void Note(std::string what) {
    history_.push_back(std::move(what));
    if (history_.size() > 12) history_.pop_front();
  }

  bool Check(const std::string& what, const Status& status) {
    Note(what);
    if (!status.ok()) shared_.Fail(absl::StrCat(name_, ": ", what, ": ", status.ToString()));
    return status.ok();
  }

  std::string PickName() { return absl::StrCat("f", random_.Below(6)); }

  std::string Bytes(size_t length) {
    std::string bytes(length, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random_.Next());
    return bytes;
  }

  Task<void> OnOwnFile() {
    const std::string name = PickName();
    const bool there = content_.contains(name);
    const uint64_t choice = random_.Below(8);
    if (!there || choice == 0) {
      co_await Replace(name);
    } else if (choice == 1) {
      co_await Remove(name);
    } else if (choice == 2) {
      co_await Rename(name);
    } else {
      co_await Change(name);
    }
  }

  // Creates it, or opens and empties it; writes it anew.
  Task<void> Replace(std::string name) {
    std::string file = name;
    auto created = co_await filesystem_.Create(caller_, directory_, file, 0644, O_RDWR | O_CREAT | O_TRUNC);
    if (!Check("create " + name, created.status())) co_return;
    content_[name].clear();
    const client::HandlePtr handle = created->handle;
    co_await Write(handle, name, 0);
    co_await Close(handle, name);
  }

  Task<void> Remove(std::string name) {
    std::string file = name;
    Status removed = co_await filesystem_.Unlink(caller_, directory_, file);
    if (Check("unlink " + name, removed)) content_.erase(name);
  }

  Task<void> Rename(std::string name) {
    std::string from = name, to = PickName();
    const std::string new_name = to;
    Status renamed = co_await filesystem_.Rename(caller_, directory_, from, directory_, to, 0);
    if (!Check(absl::StrFormat("rename %s %s", name, new_name), renamed) || name == new_name) co_return;
    content_[new_name] = content_[name];
    content_.erase(name);
  }

  Task<void> Change(std::string name) {
    std::string file = name;
    Duration negative{0};
    auto known = co_await filesystem_.Lookup(caller_, directory_, file, &negative);
    if (!Check("lookup " + name, known.status())) co_return;
    const Fid fid = FromProto(known->attr.fid());
    auto opened = co_await filesystem_.Open(caller_, fid, O_RDWR);
    if (!Check("open " + name, opened.status())) co_return;
    const client::HandlePtr handle = *opened;
    const uint64_t choice = random_.Below(5);
    if (choice == 0) {
      co_await Truncate(handle, fid, name);
    } else if (choice == 1) {
      Status synced = co_await filesystem_.Fsync(handle, random_.OneIn(2));
      (void)Check("fsync " + name, synced);
    } else if (choice == 2) {
      co_await Write(handle, name, random_.Below(content_[name].size() + 1));
    } else {
      co_await Compare(handle, name);
    }
    co_await Close(handle, name);
  }

  Task<void> Write(client::HandlePtr handle, std::string name, uint64_t offset) {
    const uint64_t most = random_.OneIn(3) ? 60'000 : 3000;
    const std::string bytes = Bytes(1 + random_.Below(most));
    if (offset + bytes.size() > kMaxBytes) co_return;
    const std::span<const std::byte> piece = std::as_bytes(std::span(bytes));
    const std::span<const std::span<const std::byte>> pieces(&piece, 1);
    auto written = co_await filesystem_.Write(handle, offset, pieces);
    if (!Check(absl::StrFormat("write %s %d+%d", name, offset, bytes.size()), written.status())) co_return;
    if (*written != bytes.size()) shared_.Fail(absl::StrCat(name_, ": a short write to ", name));
    std::string& content = content_[name];
    if (content.size() < offset + bytes.size()) content.resize(offset + bytes.size());
    content.replace(offset, bytes.size(), bytes);
  }

  Task<void> Truncate(client::HandlePtr handle, Fid fid, std::string name) {
    client::SetAttributes set;
    set.size = random_.OneIn(3) ? 0 : random_.Below(content_[name].size() * 2 + 1);
    if (*set.size > kMaxBytes) co_return;
    const uint64_t size = *set.size;
    auto changed = co_await filesystem_.Setattr(caller_, fid, set, handle);
    if (Check(absl::StrFormat("truncate %s %d", name, size), changed.status())) content_[name].resize(size);
  }

  Task<void> Compare(client::HandlePtr handle, std::string name) {
    auto read = co_await filesystem_.Read(handle, 0, kMaxBytes * 2);
    if (!Check("read " + name, read.status())) co_return;
    std::string got;
    for (auto part : read->pieces) got.append(reinterpret_cast<const char*>(part.data()), part.size());
    const std::string& want = content_[name];
    if (got == want) co_return;
    const size_t same = static_cast<size_t>(
        std::mismatch(got.begin(), got.end(), want.begin(), want.end()).first - got.begin());
    shared_.Fail(
        absl::StrFormat("%s: %s has %d bytes instead of %d, and differs from byte %d on; before that: %s",
                        name_, name, got.size(), want.size(), same, absl::StrJoin(history_, ", ")));
  }

  Task<void> Close(client::HandlePtr handle, std::string name) {
    Status flushed = co_await filesystem_.Flush(handle, 0);
    Status released = co_await filesystem_.Release(handle);
    (void)(Check("flush " + name, flushed) && Check("close " + name, released));
  }

  // A name that everybody makes exclusively and everybody removes.
  Task<void> OnSharedName() {
    const size_t number = random_.Below(kSharedNames);
    std::string name = absl::StrCat("s", number);
    NameCount& count = shared_.names[number];
    if (random_.OneIn(2)) {
      auto made =
          co_await filesystem_.Create(caller_, shared_.directory, name, 0644, O_RDWR | O_CREAT | O_EXCL);
      const int error = ToErrno(made.status());
      if (error == 0) {
        ++count.made;
        co_await Close(made->handle, name);
      } else if (error != EEXIST) {
        (void)Check("create of a shared name", made.status());
      }
      co_return;
    }
    Status removed = co_await filesystem_.Unlink(caller_, shared_.directory, name);
    const int error = ToErrno(removed);
    if (error == 0) {
      ++count.removed;
    } else if (error != ENOENT) {
      (void)Check("unlink of a shared name", removed);
    }
  }

  client::FileSystem& filesystem_;
  Shared& shared_;
  const std::string name_;
  SeededRandom random_;
  const client::Caller caller_;
  Fid directory_;
  Content content_;
  std::deque<std::string> history_;
};

class Stress : public testing::Test {
 protected:
  static constexpr uint64_t kBlocks = 64 << 10;

  ~Stress() override {
    filesystems_.clear();
    oss_.reset();
    channels_.reset();
    mds_.reset();
    runtime_.Stop();
  }

  void Start(int clients) {
    MetadataOptions metadata;
    metadata.heartbeat = 100ms;
    auto mds = runtime_.Run(MetadataServer::Start(
        {runtime_.executor(), RealClock(), SystemRandom(), mdt_, *transport_}, metadata));
    ASSERT_TRUE(mds.ok()) << mds.status();
    mds_ = *std::move(mds);
    channels_ = std::make_unique<InprocServer>(runtime_.executor(), *mds_, *mds_);
    ObjectOptions object;
    object.listen = object.advertise = "inproc:oss";
    object.heartbeat = 100ms;
    object.pool_bytes = 8 << 20;
    std::vector<OstDevices> devices;
    for (int i = 0; i < kOsts; ++i) devices.push_back(Device(i));
    ObjectEnvironment environment{runtime_.executor(), RealClock(), SystemRandom(), *transport_,
                                  channels_->NewClusterChannel()};
    auto oss = runtime_.Run(ObjectServer::Start(environment, std::move(devices), object));
    ASSERT_TRUE(oss.ok()) << oss.status();
    oss_ = *std::move(oss);
    for (int i = 0; i < clients; ++i) {
      client::Options options;
      options.name = absl::StrCat("client", i);
      options.cache_bytes = 2 << 20;
      options.dirty_bytes = 1 << 20;
      options.kernel_cache = 1ms;
      client::Environment client{runtime_.executor(), RealClock(), SystemRandom(), *transport_,
                                 channels_->NewConnector(options.name)};
      auto mounted = runtime_.Run(client::FileSystem::Mount(client, options));
      ASSERT_TRUE(mounted.ok()) << mounted.status();
      filesystems_.push_back(*std::move(mounted));
    }
  }

  OstDevices Device(int i) {
    OstDevices device;
    device.index = static_cast<OstIndex>(i);
    device.store = &kv_[i];
    device.blocks = &disk_[i];
    device.directory = absl::StrFormat("(OST %d in memory)", i);
    return device;
  }

  void Work() {
    auto made = runtime_.Run(filesystems_[0]->Mknod(client::Caller(), kRootFid, "shared", S_IFDIR | 0755, 0));
    ASSERT_TRUE(made.ok()) << made.status();
    shared_.directory = FromProto(made->attr.fid());
    std::vector<std::future<bool>> ends;
    for (size_t i = 0; i < filesystems_.size() * kWorkers; ++i) {
      workers_.push_back(std::make_unique<Worker>(*filesystems_[i % filesystems_.size()], shared_,
                                                  absl::StrCat("w", i), 1000 + i));
    }
    std::vector<std::promise<bool>> promises(workers_.size());
    for (size_t i = 0; i < workers_.size(); ++i) {
      ends.push_back(promises[i].get_future());
      Spawn(runtime_.executor(), workers_[i]->Run(Operations()),
            [&promise = promises[i]](bool ended) { promise.set_value(ended); });
    }
    for (size_t i = 0; i < ends.size(); ++i) {
      ASSERT_EQ(ends[i].wait_for(std::chrono::minutes(5)), std::future_status::ready)
          << "worker " << i << " does not end";
    }
  }

  StatusOr<Fid> Find(client::FileSystem& filesystem, Fid parent, const std::string& name) {
    Duration negative{0};
    auto known = runtime_.Run(filesystem.Lookup(client::Caller(), parent, name, &negative));
    if (!known.ok()) return known.status();
    return FromProto(known->attr.fid());
  }

  // Every file, through a client that did not write it.
  void CompareAll() {
    for (size_t i = 0; i < workers_.size(); ++i) {
      client::FileSystem& other = *filesystems_[(i + 1) % filesystems_.size()];
      auto directory = Find(other, kRootFid, workers_[i]->name());
      ASSERT_TRUE(directory.ok()) << directory.status();
      for (const auto& [name, content] : workers_[i]->content()) {
        auto fid = Find(other, *directory, name);
        ASSERT_TRUE(fid.ok()) << fid.status();
        auto handle = runtime_.Run(other.Open(client::Caller(), *fid, O_RDONLY));
        ASSERT_TRUE(handle.ok()) << handle.status();
        auto read = runtime_.Run(other.Read(*handle, 0, kMaxBytes * 2));
        ASSERT_TRUE(read.ok()) << read.status();
        std::string got;
        for (auto part : read->pieces) got.append(reinterpret_cast<const char*>(part.data()), part.size());
        EXPECT_TRUE(got == content) << workers_[i]->name() << "/" << name << ": " << got.size()
                                    << " bytes instead of " << content.size() << ", or others";
        ASSERT_TRUE(runtime_.Run(other.Release(*handle)).ok());
      }
    }
    for (int i = 0; i < kSharedNames; ++i) {
      const int there = shared_.names[i].made - shared_.names[i].removed;
      const bool found = Find(*filesystems_[0], shared_.directory, absl::StrCat("s", i)).ok();
      EXPECT_EQ(there, found ? 1 : 0) << "shared name " << i << ": made " << shared_.names[i].made
                                      << " times, removed " << shared_.names[i].removed << " times";
    }
  }

  void Stop() {
    for (auto& filesystem : filesystems_) EXPECT_TRUE(runtime_.Run(filesystem->Unmount()).ok());
    filesystems_.clear();
    ASSERT_TRUE(runtime_.Run(oss_->Stop()).ok());
    ASSERT_TRUE(runtime_.Run(mds_->Stop()).ok());
    channels_->Stop();
  }

  void CheckStores() {
    mds::ObjectCheck objects(mdt_);
    for (int i = 0; i < kOsts; ++i) {
      ost::CheckOptions options;
      options.verify_data = true;
      options.on_object = [&objects, i](const ost::CheckedObject& object) {
        proto::ListedObject found;
        *found.mutable_object() = ToProto(object.id);
        *found.mutable_parent() = ToProto(object.parent);
        found.set_size(object.size);
        found.set_blocks(object.blocks);
        EXPECT_TRUE(objects.AddObject(static_cast<OstIndex>(i), found).ok());
      };
      auto report = runtime_.Run(ost::CheckOst(Device(i), std::move(options)));
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_TRUE(report->problems.empty()) << report->problems.front().text;
    }
    auto mdt = runtime_.Run(mds::CheckMdt(mdt_, false));
    ASSERT_TRUE(mdt.ok()) << mdt.status();
    EXPECT_TRUE(mdt->clean()) << mdt->problems.front();
    auto both = runtime_.Run(objects.Finish(false));
    ASSERT_TRUE(both.ok()) << both.status();
    EXPECT_TRUE(both->clean()) << both->problems.front();
  }

  static constexpr int kOsts = 2;

  MemKv mdt_, kv_[kOsts];
  MemBlockStore disk_[kOsts] = {MemBlockStore(kBlocks), MemBlockStore(kBlocks)};
  Runtime runtime_{kThreads};
  std::unique_ptr<Transport> transport_ =
      MakeInprocTransport(MakeInprocNetwork(), runtime_.executor(), RealClock());
  std::unique_ptr<MetadataServer> mds_;
  std::unique_ptr<InprocServer> channels_;
  std::unique_ptr<ObjectServer> oss_;
  std::vector<std::unique_ptr<client::FileSystem>> filesystems_;
  Shared shared_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

TEST_F(Stress, OneClient) {
  Start(1);
  Work();
  CompareAll();
  Stop();
  CheckStores();
}

TEST_F(Stress, ThreeClients) {
  Start(3);
  Work();
  CompareAll();
  Stop();
  CheckStores();
}

}  // namespace
}  // namespace nacre
