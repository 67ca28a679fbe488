// Random operations of one client beside a plain tree in memory, with crashes of the MDS and repeated
// requests; afterwards the checker must find nothing.
#include <set>

#include "server/metadata/check.h"
#include "tests/common/await.h"
#include "tests/server/metadata/harness.h"

namespace nacre::mds {
namespace {

// The namespace as it should look. Nodes are known by their FID.
class Model {
 public:
  struct Node {
    bool directory = false;
    uint32_t links = 0;
    std::map<std::string, Fid> entries;
  };

  Model() { nodes[kRootFid].directory = true; }

  int Make(Fid parent, const std::string& name, Fid fid, bool directory) {
    if (nodes[parent].entries.contains(name)) return EEXIST;
    nodes[parent].entries[name] = fid;
    nodes[fid] = {directory, 1, {}};
    return 0;
  }
  int Remove(Fid parent, const std::string& name, bool directory) {
    auto it = nodes[parent].entries.find(name);
    if (it == nodes[parent].entries.end()) return ENOENT;
    Node& victim = nodes[it->second];
    if (directory != victim.directory) return directory ? ENOTDIR : EISDIR;
    if (directory && !victim.entries.empty()) return ENOTEMPTY;
    Drop(it->second);
    nodes[parent].entries.erase(it);
    return 0;
  }
  int Link(Fid fid, Fid parent, const std::string& name) {
    if (nodes[parent].entries.contains(name)) return EEXIST;
    if (nodes[fid].directory) return EPERM;
    nodes[parent].entries[name] = fid;
    ++nodes[fid].links;
    return 0;
  }
  int Rename(Fid parent, const std::string& name, Fid to, const std::string& new_name) {
    auto it = nodes[parent].entries.find(name);
    if (it == nodes[parent].entries.end()) return ENOENT;
    const Fid moved = it->second;
    if (nodes[moved].directory && Below(moved, to)) return EINVAL;
    auto target = nodes[to].entries.find(new_name);
    if (target != nodes[to].entries.end()) {
      if (target->second == moved) return 0;
      Node& victim = nodes[target->second];
      if (nodes[moved].directory && !victim.directory) return ENOTDIR;
      if (!nodes[moved].directory && victim.directory) return EISDIR;
      if (victim.directory && !victim.entries.empty()) return ENOTEMPTY;
      Drop(target->second);
    }
    nodes[parent].entries.erase(name);
    nodes[to].entries[new_name] = moved;
    return 0;
  }
  bool Below(Fid top, Fid fid) {
    if (top == fid) return true;
    for (auto& [name, child] : nodes[top].entries) {
      if (nodes[child].directory && Below(child, fid)) return true;
    }
    return false;
  }
  std::vector<Fid> All(bool directories) {
    std::vector<Fid> all;
    for (auto& [fid, node] : nodes) {
      if (node.directory == directories) all.push_back(fid);
    }
    return all;
  }

  std::map<Fid, Node> nodes;

 private:
  void Drop(Fid fid) {
    if (nodes[fid].directory || --nodes[fid].links == 0) nodes.erase(fid);
  }
};

class ModelRun {
 public:
  explicit ModelRun(uint64_t seed) : random(seed) {}

  void Run(int steps) {
    for (int i = 0; i < steps && !testing::Test::HasFailure(); ++i) {
      Step();
      if (random.OneIn(40)) Restart();
    }
    Compare();
    harness.RunFor(std::chrono::seconds(5));
    harness.Crash();
    auto report = Await(CheckMdt(harness.store, false));
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_TRUE(report->clean()) << report->problems[0];
  }

 private:
  Fid Pick(const std::vector<Fid>& from) { return from[random.Below(from.size())]; }
  Fid Directory() { return Pick(model.All(true)); }
  std::string Name() { return absl::StrCat("n", random.Below(6)); }

  void Restart() {
    harness.Restart();
    ASSERT_THAT(client.Connect(), IsOk());
    proto::MetadataRequest reclaim;
    reclaim.mutable_reclaim()->set_last(true);
    ASSERT_THAT(client.Call(reclaim), IsOk());
  }

  // Sends it; now and then twice, or across a crash, as a client does whose reply was lost.
  proto::MetadataReply Send(proto::MetadataRequest request) {
    request = client.Prepare(std::move(request));
    auto reply = harness.Await(harness.server->Handle(client.peer, request));
    if (random.OneIn(5)) {
      if (random.OneIn(4)) Restart();
      auto again = harness.Await(harness.server->Handle(client.peer, request));
      bool error = reply.status().error() != 0;
      EXPECT_EQ(error ? again.status().error() : 0, reply.status().error());
      if (!error) {
        EXPECT_EQ(reply.SerializeAsString(), again.SerializeAsString());
      }
    }
    client.unanswered.erase(request.sequence());
    return reply;
  }

  void Make(bool directory) {
    proto::MetadataRequest request;
    Fid parent = Directory();
    std::string name = Name();
    *request.mutable_mknod()->mutable_parent() = ToProto(parent);
    request.mutable_mknod()->set_name(name);
    request.mutable_mknod()->set_mode((directory ? S_IFDIR : S_IFREG) | 0755);
    auto reply = Send(request);
    Fid fid = FidOf(reply);
    int expected =
        model.nodes[parent].entries.contains(name) ? EEXIST : model.Make(parent, name, fid, directory);
    EXPECT_EQ(ErrorOf(reply), expected);
  }

  void Remove(bool directory) {
    proto::MetadataRequest request;
    Fid parent = Directory();
    std::string name = Name();
    *request.mutable_unlink()->mutable_parent() = ToProto(parent);
    request.mutable_unlink()->set_name(name);
    request.mutable_unlink()->set_directory(directory);
    EXPECT_EQ(ErrorOf(Send(request)), model.Remove(parent, name, directory));
  }

  void Link() {
    std::vector<Fid> files = model.All(false);
    if (files.empty()) return;
    proto::MetadataRequest request;
    Fid fid = Pick(files), parent = Directory();
    std::string name = Name();
    *request.mutable_link()->mutable_fid() = ToProto(fid);
    *request.mutable_link()->mutable_parent() = ToProto(parent);
    request.mutable_link()->set_name(name);
    EXPECT_EQ(ErrorOf(Send(request)), model.Link(fid, parent, name));
  }

  void Rename() {
    proto::MetadataRequest request;
    Fid from = Directory(), to = Directory();
    std::string name = Name(), new_name = Name();
    *request.mutable_rename()->mutable_parent() = ToProto(from);
    request.mutable_rename()->set_name(name);
    *request.mutable_rename()->mutable_new_parent() = ToProto(to);
    request.mutable_rename()->set_new_name(new_name);
    EXPECT_EQ(ErrorOf(Send(request)), model.Rename(from, name, to, new_name));
  }

  void Step() {
    switch (random.Below(8)) {
      case 0:
      case 1:
        return Make(false);
      case 2:
        return Make(true);
      case 3:
        return Remove(false);
      case 4:
        return Remove(true);
      case 5:
        return Link();
      default:
        return Rename();
    }
  }

  void Compare() {
    for (auto& [fid, node] : model.nodes) {
      auto attr = client.Getattr(fid);
      ASSERT_THAT(attr, IsOk());
      if (!node.directory) {
        EXPECT_EQ(attr.attr().attr().nlink(), node.links);
        continue;
      }
      std::vector<std::string> names;
      uint32_t subdirectories = 0;
      for (auto& [name, child] : node.entries) {
        names.push_back(name);
        subdirectories += model.nodes[child].directory ? 1 : 0;
      }
      EXPECT_THAT(client.List(fid, 3), testing::UnorderedElementsAreArray(names));
      EXPECT_EQ(attr.attr().attr().nlink(), 2 + subdirectories);
      EXPECT_EQ(attr.attr().attr().size(), names.size());
    }
  }

  SeededRandom random;
  Harness harness;
  TestClient client{harness};
  Model model;
};

TEST(Model, RandomOperationsWithCrashesAndRepeats) {
  for (uint64_t seed = 1; seed <= 20 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    ModelRun(seed).Run(400);
  }
}

}  // namespace
}  // namespace nacre::mds
