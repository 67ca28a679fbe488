// How many messages to the MDS an operation waits for, by situation: a table that may not get worse.
// Foreground messages are all but the batches in which changes leave behind their answers, and keep-alives.
// In the table of the design two lines ask for fewer than are needed today; these tests say how many.
#include <cstdlib>

#include "client/inode.h"
#include "tests/client/harness.h"

namespace nacre::client {
namespace {

using namespace std::chrono_literals;

// Of the tests with many: NACRE_CLIENTS=10000 for more of them, which takes minutes and half a MiB each.
int Clients(int few) {
  const char* many = std::getenv("NACRE_CLIENTS");
  return many == nullptr ? few : std::atoi(many);
}

int Foreground(const Mounted& mount) {
  int count = 0;
  for (const auto& [kind, sent] : mount.requests) {
    if (kind != "batch" && kind != "keep_alive" && kind != "release_lease") count += sent;
  }
  return count;
}

class Messages : public testing::Test {
 protected:
  void MountAll(int count) {
    for (int i = 0; i < count; ++i) mounts_.push_back(harness_.Mount());
  }
  Mounted& mount(size_t i) { return *mounts_.at(i); }
  // Until whoever has changed something may have its leases, and nothing is on its way.
  void Settle() { harness_.world.RunFor(12s); }

  // How many `what` makes this client wait for. `kinds_` says which.
  template <typename F>
  int Of(Mounted& by, F&& what) {
    harness_.world.RunFor(50ms);  // a close is told when it has been answered
    const auto before = by.requests;
    const int count_before = Foreground(by);
    what();
    harness_.world.RunFor(50ms);
    const int count = Foreground(by) - count_before;
    if (count == 0) return 0;
    kinds_.clear();
    for (const auto& [kind, now] : by.requests) {
      auto then = before.find(kind);
      const int more = now - (then == before.end() ? 0 : then->second);
      if (more > 0) absl::StrAppend(&kinds_, more, " ", kind, " ");
    }
    return count;
  }

  // Each kind of change and look that a tree of one's own gets, as a kernel asks for them.
  static void Work(Mounted& by, Fid own, int round) {
    const std::string name = absl::StrCat("f", round), moved = absl::StrCat("g", round);
    (void)by.Lookup(name, own);
    HandlePtr file = by.Create(name, O_RDWR | O_EXCL, own);
    by.Write(file, 0, "some bytes");
    EXPECT_EQ(by.Read(file, 0, 100), "some bytes");
    EXPECT_TRUE(by.Close(file).ok());
    const Fid fid = FromProto(by.Lookup(name, own)->attr.fid());
    SetAttributes mode;
    mode.mode = 0600;
    EXPECT_TRUE(by.Await(by.fs().Setattr(by.caller, fid, mode, nullptr)).ok());
    EXPECT_EQ(by.Stat(fid).size(), 10u);
    (void)by.Lookup(moved, own);
    EXPECT_TRUE(by.Await(by.fs().Rename(by.caller, own, name, own, moved, 0)).ok());
    file = by.OpenName(moved, O_RDWR, own);
    by.Write(file, 0, Pattern(1, 1000));
    EXPECT_TRUE(by.Close(file).ok());
    const Fid below = by.Mkdir(absl::StrCat("d", round), own);
    EXPECT_TRUE(by.Close(by.Create("inner", O_RDWR | O_EXCL, below)).ok());
    EXPECT_EQ(by.List(own).size(), 2u);
    EXPECT_TRUE(by.Await(by.fs().Unlink(by.caller, below, "inner")).ok());
    EXPECT_TRUE(by.Await(by.fs().Rmdir(by.caller, own, absl::StrCat("d", round))).ok());
    EXPECT_TRUE(by.Await(by.fs().Unlink(by.caller, own, moved)).ok());
  }
  // As a kernel asks for it that has kept nothing.
  static Task<Status> ReadTree(Mounted* by, Fid directory, int files) {
    FileSystem& fs = by->fs();
    CO_ASSIGN_OR_RETURN(HandlePtr listing, co_await fs.Opendir(by->caller, directory));
    CO_ASSIGN_OR_RETURN(const auto entries, co_await fs.Readdir(by->caller, listing, 0, 100, false));
    EXPECT_EQ(entries.size(), static_cast<size_t>(files));
    CO_RETURN_IF_ERROR(co_await fs.Release(std::move(listing)));
    Duration unused{0};
    for (int i = 0; i < files; ++i) {
      CO_ASSIGN_OR_RETURN(const Known found,
                          co_await fs.Lookup(by->caller, directory, absl::StrCat("f", i), &unused));
      const Fid fid = FromProto(found.attr.fid());
      CO_ASSIGN_OR_RETURN(const Known known, co_await fs.Getattr(by->caller, fid, nullptr));
      EXPECT_EQ(known.attr.size(), 1000u);
      CO_ASSIGN_OR_RETURN(HandlePtr file, co_await fs.Open(by->caller, fid, O_RDONLY));
      CO_ASSIGN_OR_RETURN(const ReadResult bytes, co_await fs.Read(file, 0, 4096));
      EXPECT_EQ(bytes.size, 1000u);
      CO_RETURN_IF_ERROR(co_await fs.Release(std::move(file)));
    }
    EXPECT_FALSE((co_await fs.Lookup(by->caller, directory, "absent", &unused)).ok());
    co_return OkStatus();
  }
  // All at the same time. Returns how many messages they wait for, together.
  int AllReadTree(Fid directory, int files) {
    int before = 0, after = 0;
    size_t done = 0;
    for (const auto& one : mounts_) {
      before += Foreground(*one);
      Spawn(one->process()->executor(), ReadTree(one.get(), directory, files), [&done](const Status& status) {
        EXPECT_TRUE(status.ok()) << status;
        ++done;
      });
    }
    EXPECT_TRUE(harness_.RunUntil([&] { return done == mounts_.size(); }));
    for (const auto& one : mounts_) after += Foreground(*one);
    return after - before;
  }

  // Clients that work in trees of their own: the most that one of them waits for, after the first touch.
  int MostInOwnTrees(int clients) {
    MountAll(clients);
    std::vector<Fid> trees;
    for (int i = 0; i < clients; ++i) trees.push_back(mount(i).Mkdir(absl::StrCat("tree", i)));
    Settle();
    for (int i = 0; i < clients; ++i) Work(mount(i), trees[i], 0);
    int most = 0;
    for (int round = 1; round < 3; ++round) {
      for (int i = 0; i < clients; ++i)
        most = std::max(most, Of(mount(i), [&] { Work(mount(i), trees[i], round); }));
    }
    return most;
  }
  // Clients that read one tree: what they wait for when all read it again.
  int InOneTree(int clients) {
    MountAll(clients);
    const Fid tree = mount(0).Mkdir("tree");
    for (int i = 0; i < 5; ++i) {
      HandlePtr file = mount(0).Create(absl::StrCat("f", i), O_RDWR | O_EXCL, tree);
      mount(0).Write(file, 0, Pattern(i + 1, 1000));
      EXPECT_TRUE(mount(0).Close(file).ok());
    }
    (void)AllReadTree(tree, 5);
    Settle();
    (void)AllReadTree(tree, 5);  // who comes first may be taken for the only one, and asks once more
    (void)AllReadTree(tree, 5);
    return AllReadTree(tree, 5);
  }

  Harness harness_;
  std::vector<std::unique_ptr<Mounted>> mounts_;
  std::string kinds_;  // of the last count above zero
};

TEST_F(Messages, InATreeOfOnesOwnThereAreNone) { EXPECT_EQ(MostInOwnTrees(2), 0) << kinds_; }
TEST_F(Messages, InATreeOfOnesOwnThereAreNoneBesideManyOthers) {
  EXPECT_EQ(MostInOwnTrees(Clients(200)), 0) << kinds_;
}
TEST_F(Messages, InATreeThatAllReadThereAreNone) { EXPECT_EQ(InOneTree(8), 0) << kinds_; }
TEST_F(Messages, InATreeThatVeryManyReadThereAreNone) { EXPECT_EQ(InOneTree(Clients(1000)), 0) << kinds_; }

// Nobody has a lease of it, so nobody is asked to give one back.
TEST_F(Messages, InADirectoryThatAllChangeAChangeIsOne) {
  MountAll(4);
  const Fid shared = mount(0).Mkdir("shared");
  auto create = [&](int i, int round) {
    EXPECT_TRUE(
        mount(i).Close(mount(i).Create(absl::StrCat("f", i, ".", round), O_RDWR | O_EXCL, shared)).ok());
  };
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 4; ++i) create(i, round);
  }
  for (int round = 3; round < 6; ++round) {
    for (int i = 0; i < 4; ++i) {
      EXPECT_LE(Of(mount(i), [&] { create(i, round); }), 2) << "the creation, and that its handle is closed";
      EXPECT_LE(Of(mount(i), [&] { (void)mount(i).Stat(shared); }), 1);
      EXPECT_LE(Of(mount(i), [&] { (void)mount(i).Lookup(absl::StrCat("f", i, ".0"), shared); }), 1);
    }
  }
}

// The second write brings a lease of the file.
TEST_F(Messages, AWriteToAnOwnFileInADirectoryThatOthersChangeIsNone) {
  MountAll(2);
  const Fid shared = mount(0).Mkdir("shared");
  std::vector<HandlePtr> files;
  for (int i = 0; i < 2; ++i)
    files.push_back(mount(i).Create(absl::StrCat("own", i), O_RDWR | O_EXCL, shared));
  auto write = [&](int i, int round) { mount(i).Write(files[i], round * 100'000, Pattern(round, 100'000)); };
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 2; ++i) write(i, round);
  }
  for (int round = 3; round < 8; ++round) {
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(Of(mount(i), [&] { write(i, round); }), 0) << kinds_;
      EXPECT_EQ(Of(mount(i), [&] { (void)mount(i).Stat(files[i]->inode->fid); }), 0) << kinds_;
    }
  }
  auto sync = [&](int i) { EXPECT_TRUE(mount(i).Await(mount(i).fs().Fsync(files[i], true)).ok()); };
  for (int i = 0; i < 2; ++i) {
    sync(i);
    write(i, 2);  // in place: the MDT has nothing of it
    EXPECT_EQ(Of(mount(i), [&] { sync(i); }), 0) << kinds_;
  }
}

// So does the second one to a file whose bytes lie in the MDT.
TEST_F(Messages, AWriteOfAFewBytesToAnOwnFileInADirectoryThatOthersChangeIsNone) {
  MountAll(2);
  const Fid shared = mount(0).Mkdir("shared");
  std::vector<HandlePtr> files;
  for (int i = 0; i < 2; ++i)
    files.push_back(mount(i).Create(absl::StrCat("own", i), O_RDWR | O_EXCL, shared));
  auto write = [&](int i, int round) { mount(i).Write(files[i], round * 10, "some bytes"); };
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 2; ++i) write(i, round);
  }
  for (int round = 3; round < 8; ++round) {
    for (int i = 0; i < 2; ++i) EXPECT_EQ(Of(mount(i), [&] { write(i, round); }), 0) << kinds_;
  }
}

// The design asks for none here.
TEST_F(Messages, AWriteToAPartOfAFileThatAllWriteIsOne) {
  MountAll(4);
  EXPECT_TRUE(mount(0).Close(mount(0).Create("large")).ok());
  std::vector<HandlePtr> files;
  for (int i = 0; i < 4; ++i) files.push_back(mount(i).OpenName("large"));
  for (int round = 0; round < 5; ++round) {
    for (int i = 0; i < 4; ++i) {
      const uint64_t offset = static_cast<uint64_t>(round * 4 + i) * kMiB;
      const int count = Of(mount(i), [&] { mount(i).Write(files[i], offset, Pattern(i + 1, kMiB)); });
      EXPECT_TRUE(round == 0 || count <= 1) << count;
    }
  }
}

TEST_F(Messages, AStatOfAFileThatAnotherWritesIsOne) {
  MountAll(2);
  const Fid own = mount(0).Mkdir("own");
  Settle();
  HandlePtr file = mount(0).Create("f", O_RDWR | O_EXCL, own);
  const Fid fid = file->inode->fid;
  for (int round = 0; round < 5; ++round) {
    mount(0).Write(file, round * 1000, Pattern(1, 1000));
    EXPECT_LE(Of(mount(1), [&] { EXPECT_EQ(mount(1).Stat(fid).size(), (round + 1) * 1000u); }), 1);
  }
}

// A file's readers ask again when it has changed, and then no more.
TEST_F(Messages, AFileThatOneWritesAndManyReadIsAskedForOnceAChange) {
  MountAll(8);
  HandlePtr written = mount(0).Create("f");
  mount(0).Write(written, 0, Pattern(1, kMiB));
  std::vector<HandlePtr> files;
  for (int i = 1; i < 8; ++i) files.push_back(mount(i).OpenName("f", O_RDONLY));
  for (int round = 1; round < 4; ++round) {
    mount(0).Write(written, 0, Pattern(round, kMiB));
    Settle();  // what is changed often is not lent
    for (int i = 1; i < 8; ++i) {
      for (int again = 0; again < 3; ++again)
        EXPECT_EQ(mount(i).Read(files[i - 1], 0, 4096), Pattern(round, 4096));
      EXPECT_EQ(Of(mount(i), [&] { (void)mount(i).Read(files[i - 1], 4096, 4096); }), 0) << kinds_;
    }
  }
}

}  // namespace
}  // namespace nacre::client
