// The model after a client's death: which of its changes may be missing, and that nothing else may.
#include "tests/sim/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <set>

#include "rpc/convert.h"
#include "tests/sim/unanswered.h"

namespace nacre::sim {
namespace {

constexpr uint32_t kFile = S_IFREG | 0640;

class ModelTest : public testing::Test {
 protected:
  // The MDS has made it.
  InodeId Make(const std::string& name) {
    const InodeId id = model.NewId();
    const Fid fid{1, static_cast<uint32_t>(id), 0};
    model.NoteMade(fid);
    model.Change(0, 0, 0, [this, id, name, fid] { model.Add(id, kRootInode, name, kFile, fid); });
    return id;
  }
  void Link(InodeId id, const std::string& name) {
    model.Change(0, 0, 0, [this, id, name] { model.Link(id, kRootInode, name); });
  }
  // The client has answered it early.
  void Early(std::function<void()> change) { model.Change(0, 0, ++answered, std::move(change)); }
  void EarlyRemove(const std::string& name) {
    Early([this, name] { model.Remove(kRootInode, name); });
  }
  // It was asked for now, and the client dies before the answer.
  void Unanswer(Unanswered change, int client = 0) {
    model.Begin(++operation, client, client == 0 ? answered : 0, std::move(change));
  }

  // The tree that is found.
  ObservedInode& Found(Fid fid, uint32_t mode, uint32_t links) {
    ObservedInode& inode = tree[fid];
    *inode.attr.mutable_fid() = ToProto(fid);
    inode.attr.set_mode(mode);
    inode.attr.set_nlink(links);
    return inode;
  }
  void FindRoot(std::map<std::string, Fid> entries) {
    ObservedInode& root = Found(kRootFid, S_IFDIR | 0755, 2);
    root.attr.set_size(entries.size());
    root.children = std::move(entries);
  }
  Fid FidOf(InodeId id) { return model.inode(id).fid; }

  std::string Settle() {
    Model::Losses losses;
    losses.may_be_lost = [](const FileChange&) { return false; };
    losses.early = true;
    return model.Settle(tree, losses);
  }

  Model model;
  uint64_t answered = 0, operation = 0;
  ObservedTree tree;
};

TEST_F(ModelTest, OfWhatWasAnsweredEarlyTheNewestMayBeLost) {
  Make("a");
  const Fid b = FidOf(Make("b"));
  EarlyRemove("a");
  EarlyRemove("b");
  FindRoot({{"b", b}});
  Found(b, kFile, 1);
  EXPECT_EQ(Settle(), "");
}

TEST_F(ModelTest, AnOlderOneMayNot) {
  const Fid a = FidOf(Make("a"));
  Make("b");
  EarlyRemove("a");
  EarlyRemove("b");
  FindRoot({{"a", a}});
  Found(a, kFile, 1);
  EXPECT_NE(Settle(), "");
}

// Seed 12419: the name leads again to what had been removed there.
TEST_F(ModelTest, AFileThatIsThereBecauseItsRemovalIsLostWasNotMadeAnew) {
  const InodeId file = Make("a");
  Link(file, "b");
  const Fid fid = FidOf(file);
  EarlyRemove("b");
  Unanswer(UnansweredMake(model, kRootInode, "b", S_IFREG | 0644, ""));
  FindRoot({{"a", fid}, {"b", fid}});
  Found(fid, kFile, 2);
  EXPECT_EQ(Settle(), "");
}

// Seed 4500736: the same of a link.
TEST_F(ModelTest, AnEntryThatIsThereBecauseItsRenameIsLostIsNoLinkToAnother) {
  const InodeId file = Make("a"), other = Make("z");
  Link(file, "b");
  const Fid fid = FidOf(file), other_fid = FidOf(other);
  Early([this] { model.Rename(kRootInode, "b", kRootInode, "c", false, 0, 0); });
  Unanswer(UnansweredLink(model, other, kRootInode, "b"));
  FindRoot({{"a", fid}, {"b", fid}, {"z", other_fid}});
  Found(fid, kFile, 2);
  Found(other_fid, kFile, 1);
  EXPECT_EQ(Settle(), "");
}

// The name was never there, as far as the MDS knows; and something else is lost as well.
TEST_F(ModelTest, ANameThatIsNotThereBecauseItsCreationIsLostWasNotRemoved) {
  const Fid kept = FidOf(Make("kept"));
  const InodeId made = model.NewId();
  Early([this, made] { model.Add(made, kRootInode, "a", kFile, Fid{1, 77, 0}); });
  EarlyRemove("kept");
  Unanswer(UnansweredRemove(model, kRootInode, "a"));
  FindRoot({{"kept", kept}});
  Found(kept, kFile, 1);
  EXPECT_EQ(Settle(), "");
}

TEST_F(ModelTest, AnUnansweredChangeMayHaveHappenedBehindAllThatWasAnsweredEarly) {
  const InodeId file = Make("a");
  Make("b");
  const Fid fid = FidOf(file);
  EarlyRemove("b");
  Unanswer(UnansweredLink(model, file, kRootInode, "c"));
  FindRoot({{"a", fid}, {"c", fid}});
  Found(fid, kFile, 2);
  EXPECT_EQ(Settle(), "");
}

// Seed 204001451: the file was gone for the client that renamed it, and is there for the MDS.
TEST_F(ModelTest, AnUnansweredRenameMayHaveMovedWhatAnotherClientsLostRemovalLeft) {
  const Fid a = FidOf(Make("a"));
  EarlyRemove("a");
  Unanswer(UnansweredRename(model, kRootInode, "a", kRootInode, "b", 0, 1, 0), 1);
  FindRoot({{"b", a}});
  Found(a, kFile, 1);
  EXPECT_EQ(Settle(), "");
}

// Nor has it moved anything else there.
TEST_F(ModelTest, AnUnansweredRenameOfWhatWasNeverThereHasNotHappened) {
  const Fid b = FidOf(Make("b"));
  Unanswer(UnansweredRename(model, kRootInode, "a", kRootInode, "b", 0, 1, 0), 1);
  FindRoot({{"b", b}});
  Found(b, kFile, 1);
  EXPECT_EQ(Settle(), "");
  EXPECT_EQ(model.PathOf(*model.Child(kRootInode, "b")), "/b");
}

// Of a file that has taken another one's place: what was written to it before is there when its client is
// killed. Seed 620002311: a write that was answered in the same moment as the rename, and behind it.
class ModelReplacedTest : public ModelTest {
 protected:
  // The write is the answer of number 4. `behind`: how many there were when the rename began.
  std::string LoseWriteAtRenameBehind(uint64_t behind) {
    const InodeId file = Make("a");
    Make("b");
    FileChange write;
    write.operation = 7;
    write.length = 100;
    write.data = Pattern(write.operation, 0, write.length);
    model.file(file).Begin(write);
    model.file(file).Acknowledge(write.operation, 5s, /*lazy=*/true, /*answer=*/4);
    model.Change(0, 0, 0,
                 [this, behind] { model.Rename(kRootInode, "a", kRootInode, "b", false, 0, behind); });
    FindRoot({{"b", FidOf(file)}});
    Found(FidOf(file), kFile, 1);
    Model::Losses losses;
    losses.may_be_lost = [](const FileChange&) { return true; };
    losses.replaced_whole = true;
    return model.Settle(tree, losses);
  }
};

TEST_F(ModelReplacedTest, WhatWasWrittenBeforeIsThere) { EXPECT_NE(LoseWriteAtRenameBehind(4), ""); }

TEST_F(ModelReplacedTest, WhatWasAnsweredBehindItsBeginningNeedNotBe) {
  EXPECT_EQ(LoseWriteAtRenameBehind(3), "");
}

// Everything loses its power, the MDS's last changes too: those that it did last, in its order.
class ModelPowerTest : public ModelTest {
 protected:
  // One client answers `e` early and another makes `a` and `b`; then the MDS does the first, and says so.
  ModelPowerTest() {
    model.RememberSteps();
    model.Remember(Duration{0});
    const InodeId early = model.NewId();
    Early([this, early] { model.Add(early, kRootInode, "e", kFile, Fid{1, 77, 0}); });
    model.Remember(10s);
    for (const char* name : {"a", "b"}) {
      fids_[name] = FidOf(Make(name));
      model.Remember(10s);
    }
    model.EarlyDone(0, answered);
    fids_["e"] = Fid{1, 77, 0};
  }
  std::string Lost(const std::set<std::string>& left) {
    std::map<std::string, Fid> entries;
    for (const std::string& name : left) {
      entries[name] = fids_.at(name);
      Found(fids_.at(name), kFile, 1);
    }
    FindRoot(std::move(entries));
    Model::Losses losses;
    losses.early = true;
    losses.names_after = 5s;
    return model.Settle(tree, losses);
  }

  std::map<std::string, Fid> fids_;
};

// Seed 1001008545: what was answered first was done last.
TEST_F(ModelPowerTest, TakesWhatTheMdsHasDoneLast) { EXPECT_EQ(Lost({"a", "b"}), ""); }

TEST_F(ModelPowerTest, TakesMoreOfThat) { EXPECT_EQ(Lost({"a"}), ""); }

TEST_F(ModelPowerTest, TakesNothingBeforeThat) { EXPECT_NE(Lost({"b", "e"}), ""); }

class ModelOrderTest : public ModelTest {
 protected:
  // b, which was removed early, is found to be there again; so is a link that its client asked for behind
  // that.
  ModelOrderTest() {
    const InodeId file = Make("a");
    const Fid fid = FidOf(file), b = FidOf(Make("b"));
    EarlyRemove("b");
    Unanswer(UnansweredLink(model, file, kRootInode, "c"));
    FindRoot({{"a", fid}, {"b", b}, {"c", fid}});
    Found(fid, kFile, 2);
    Found(b, kFile, 1);
  }
};

// The client asks the MDS only when it has done what was answered early.
TEST_F(ModelOrderTest, AnUnansweredChangeIsNotDoneWithoutWhatWasAnsweredBefore) { EXPECT_NE(Settle(), ""); }

// A change that waits while the client is evicted goes on in the session that follows.
TEST_F(ModelOrderTest, UnlessTheSessionOfThatHasEnded) {
  model.MayGoOnWithout(0);
  EXPECT_EQ(Settle(), "");
}

}  // namespace
}  // namespace nacre::sim
