// Clients that hold leases of hundreds and thousands of directories: what giving all of them back costs, and
// what saying all of them does.
#include "tests/client/scopes.h"

namespace nacre::client {
namespace {

class ManyScopes : public Scopes {};

// All of them go when the filesystem's lease comes. Each was a message before, and its answer.
TEST_F(ManyScopes, ManyThatGoAtOnceAreFewMessages) {
  constexpr int kDirectories = 300;
  for (int i = 0; i < kDirectories; ++i) (void)b_->Mkdir("many" + std::to_string(i));
  harness_.world.RunUntil([] { return false; }, 7s);
  for (int i = 0; i < kDirectories; ++i) (void)a_->Lookup("many" + std::to_string(i));
  const int released = a_->released;
  int asked = a_->total();
  EXPECT_TRUE(b_->Unmount().ok());
  ASSERT_TRUE(harness_.RunUntil([&] { return a_->released >= released + kDirectories; }, 60s));
  asked = a_->total() - asked;
  EXPECT_LE(asked, 20);
}

// What it holds takes several messages to say then; the MDS ends what none of them names.
TEST_F(ManyScopes, ManyAreKeptOverALostStream) {
  constexpr int kDirectories = 4500;
  for (int i = 0; i < kDirectories; ++i) (void)b_->Mkdir("many" + std::to_string(i));
  harness_.world.RunUntil([] { return false; }, 7s);
  std::vector<Fid> directories;
  for (int i = 0; i < kDirectories; ++i)
    directories.push_back(FromProto(a_->Lookup("many" + std::to_string(i))->attr.fid()));
  const int before = a_->requests["reclaim"];
  ASSERT_TRUE(a_->Await([](Mounted* a) -> Task<Status> {
                  co_await a->LoseStream();
                  co_return OkStatus();
                }(a_.get()))
                  .ok());
  EXPECT_GE(a_->requests["reclaim"] - before, 2);
  EXPECT_EQ(Asked([&] {
              for (const Fid& directory : directories) (void)a_->Stat(directory);
            }),
            0);
  // They are held at the MDS, too: a change of one waits for it.
  SetAttributes mode;
  mode.mode = 0700;
  const int released = a_->released;
  EXPECT_TRUE(b_->Await(b_->fs().Setattr(b_->caller, directories[0], mode, nullptr)).ok());
  EXPECT_EQ(a_->released - released, 1);
  EXPECT_EQ(a_->Stat(directories[0]).mode() & 07777, 0700u);
}

}  // namespace
}  // namespace nacre::client
