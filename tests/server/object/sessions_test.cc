#include "server/object/sessions.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "server/kv/mem_kv.h"
#include "server/object/mem_block_store.h"
#include "tests/common/await.h"

namespace nacre::ost {
namespace {

class SessionsTest : public testing::Test {
 protected:
  SessionsTest() { lease.Renew(Duration{0}, Duration{0}); }  // without limit

  Sessions::Admission Admit(SessionId session, uint64_t sequence, uint64_t low_water) {
    return Await(sessions.Admit(session, sequence, low_water));
  }
  // Carries out a mutation.
  void Do(SessionId session, uint64_t sequence, uint64_t low_water) {
    Sessions::Admission admission = Admit(session, sequence, low_water);
    ASSERT_TRUE(admission.status.ok()) << admission.status;
    ASSERT_FALSE(admission.answer.has_value());
    admission.ticket.Finish(absl::StrCat("answer ", sequence));
  }

  MemKv kv;
  MemBlockStore disk{4096};
  Space space{&disk, "memory"};
  ServiceLease lease;
  Sessions sessions{&kv, &space, &RealClock(), &lease};
};

TEST_F(SessionsTest, ARepeatIsAnsweredAndALateCopyIsRefused) {
  Do(5, 1, 1);
  EXPECT_EQ(Admit(5, 1, 1).answer, "answer 1");
  Do(5, 2, 2);
  EXPECT_EQ(ToErrno(Admit(5, 1, 1).status), ESTALE);
}

// A low water says what has been answered, so it never lies above the request that brings it: believed, it
// would shut out everything that the session sends afterwards.
TEST_F(SessionsTest, ALowWaterAboveItsOwnRequestIsRefused) {
  EXPECT_EQ(ToErrno(Admit(5, 1, ~uint64_t{0}).status), EPROTO);
  EXPECT_TRUE(Admit(5, 0, ~uint64_t{0}).status.ok());  // not a mutation: it has none
  Do(5, 1, 1);
}

}  // namespace
}  // namespace nacre::ost
