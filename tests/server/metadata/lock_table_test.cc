// The table of locks by itself: its bounds, what it costs when much waits, and random operations beside a
// model.
#include "server/metadata/lock_table.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <cerrno>

#include "common/random.h"
#include "rpc/convert.h"

namespace nacre::mds {
namespace {

proto::LockRange Lock(uint32_t file, uint64_t owner, uint32_t type, bool flock = false) {
  proto::LockRange lock;
  *lock.mutable_fid() = ToProto(Fid{100, file, 0});
  lock.set_owner(owner);
  lock.set_type(type);
  lock.set_end(~uint64_t{0});
  lock.set_flock(flock);
  return lock;
}

TEST(LockTable, BoundsTheWaitsOfASession) {
  LockTable table;
  const uint32_t files = LockTable::kMaxWaiting;
  for (uint32_t file = 0; file <= files; ++file) {
    ASSERT_TRUE(table.Set(1, Lock(file, 1, F_WRLCK), false, 0).status.ok());
    LockTable::Outcome outcome = table.Set(2, Lock(file, file, F_WRLCK), true, file + 1);
    if (file < files) {
      ASSERT_TRUE(outcome.pending.has_value()) << file << outcome.status;
    } else {
      EXPECT_EQ(ToErrno(outcome.status), ENOLCK);
    }
  }
  // One that ends makes room; others have room of their own.
  EXPECT_TRUE(table.Cancel(2, 7));
  EXPECT_FALSE(table.Cancel(2, 7));
  EXPECT_TRUE(table.Set(2, Lock(files, 9, F_WRLCK), true, files + 9).pending.has_value());
  EXPECT_TRUE(table.Set(3, Lock(0, 1, F_WRLCK), true, 1).pending.has_value());
  table.DropSession(2);
  table.DropSession(1);
  EXPECT_EQ(table.CountBySession(), (std::map<SessionId, uint64_t>{{3, 1}}));
}

// Waits for other locks do not make it more expensive to see whether a new wait would be a deadlock: before,
// all of them were looked at for every new one.
TEST(LockTable, ManyWaitsDoNotSlowEachOtherDown) {
  LockTable table;
  constexpr uint32_t kWaits = 20'000;
  ASSERT_TRUE(table.Set(1, Lock(0, 1, F_WRLCK), false, 0).status.ok());
  for (uint32_t i = 0; i < kWaits; ++i) {
    ASSERT_TRUE(table.Set(2, Lock(0, i, F_RDLCK), true, i + 1).pending.has_value());
  }
  ASSERT_TRUE(table.Set(1, Lock(0, 1, F_UNLCK), false, 0).status.ok());
  EXPECT_EQ(table.CountBySession(), (std::map<SessionId, uint64_t>{{2, kWaits}}));
}

TEST(LockTable, FindsACircleThroughSeveralFiles) {
  LockTable table;
  for (uint32_t i = 0; i < 4; ++i) ASSERT_TRUE(table.Set(i, Lock(i, i, F_WRLCK), false, 0).status.ok());
  for (uint32_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(table.Set(i, Lock(i + 1, i, F_WRLCK), true, 1).pending.has_value());
  }
  EXPECT_EQ(ToErrno(table.Set(3, Lock(0, 3, F_WRLCK), true, 1).status), EDEADLK);
  EXPECT_TRUE(table.Cancel(1, 1));  // the circle is open
  EXPECT_TRUE(table.Set(3, Lock(0, 3, F_WRLCK), true, 2).pending.has_value());
  // flocks are no part of it
  EXPECT_TRUE(table.Set(1, Lock(9, 1, F_WRLCK, true), false, 0).status.ok());
  EXPECT_TRUE(table.Set(2, Lock(9, 2, F_WRLCK, true), true, 5).pending.has_value());
}

// One thread of a process waits for more than the process has, but to read; who waits to read what it has,
// and came before, may go on with it. Before, he waited until something else happened to the file.
TEST(LockTable, AWaitThatEndsWithAWeakerLockLetsInWhoCameBefore) {
  auto range = [](uint64_t owner, uint32_t type, uint64_t start, uint64_t end) {
    proto::LockRange lock = Lock(0, owner, type);
    lock.set_start(start);
    lock.set_end(end);
    return lock;
  };
  LockTable table;
  ASSERT_TRUE(table.Set(1, range(1, F_WRLCK, 0, 9), false, 0).status.ok());
  ASSERT_TRUE(table.Set(2, range(2, F_WRLCK, 10, 19), false, 0).status.ok());
  LockTable::Outcome reader = table.Set(3, range(3, F_RDLCK, 0, 9), true, 1);
  LockTable::Outcome both = table.Set(1, range(1, F_RDLCK, 0, 19), true, 2);
  ASSERT_TRUE(reader.pending.has_value() && both.pending.has_value());
  ASSERT_TRUE(table.Set(2, range(2, F_UNLCK, 10, 19), false, 0).status.ok());
  EXPECT_TRUE(both.pending->IsSet());
  EXPECT_TRUE(reader.pending->IsSet());
}

// --- beside a model ---

// A file's bytes in cells: the first eight one by one, the last eight that a lock can have, and what lies
// between.
constexpr int kEdge = 8, kCells = 2 * kEdge + 1;
constexpr uint64_t kLastByte = (uint64_t{1} << 63) - 1;
uint64_t CellStart(int cell) {
  return cell <= kEdge ? static_cast<uint64_t>(cell) : kLastByte - static_cast<uint64_t>(kCells - 1 - cell);
}
uint64_t CellEnd(int cell) { return cell == kCells - 1 ? kLastByte : CellStart(cell + 1) - 1; }

struct Owner {
  SessionId session = 0;
  uint64_t id = 0;
  auto operator<=>(const Owner&) const = default;
};

struct Want {
  Owner owner;
  uint32_t file = 0;
  uint32_t type = F_UNLCK;
  bool flock = false;
  int first = 0, last = kCells - 1;

  proto::LockRange ToProto(uint64_t beyond_the_end = 0) const {
    proto::LockRange lock = Lock(file, owner.id, type, flock);
    lock.set_pid(static_cast<uint32_t>(owner.session * 10 + owner.id));
    lock.set_start(CellStart(first));
    lock.set_end(CellEnd(last) + (last == kCells - 1 ? beyond_the_end : 0));
    return lock;
  }
};

// The same rules, cell by cell, without ranges that split or merge and without any index.
class LockModel {
 public:
  struct Waiter {
    Want want;
    uint64_t id = 0;
  };
  using Ended = std::vector<std::pair<uint64_t, int>>;  // wait ids, and how, in the order in which they end

  // 0, an error, or -1: it waits.
  int Set(const Want& want, bool wait, uint64_t id, Ended* ended) {
    if (wait) EndWaits(want.file, want.owner.session, id, EINTR, ended);
    if (want.flock || want.type == F_UNLCK) Put(want, F_UNLCK);
    int result = 0;
    if (want.type != F_UNLCK && !InTheWay(want).empty()) {
      result = !wait ? EAGAIN : !want.flock && ClosesCircle(want) ? EDEADLK : -1;
    } else if (want.type != F_UNLCK) {
      Put(want, want.type);
    }
    if (result == -1) waiting.push_back({want, id});
    Wake(want.file, ended);
    return result;
  }

  void EndWaits(uint32_t file, SessionId session, std::optional<uint64_t> id, int error, Ended* ended) {
    std::erase_if(waiting, [&](const Waiter& waiter) {
      const bool its = waiter.want.file == file && waiter.want.owner.session == session;
      const bool meant = its && (!id || waiter.id == *id);
      if (meant) ended->emplace_back(waiter.id, error);
      return meant;
    });
  }

  void DropSession(uint32_t file, SessionId session, Ended* ended) {
    for (auto& [place, holders] : held) {
      if (std::get<0>(place) != file) continue;
      std::erase_if(holders, [&](const auto& holder) { return holder.first.session == session; });
    }
    EndWaits(file, session, {}, ESTALE, ended);
    Wake(file, ended);
  }

  // Gives each waiter his lock once nothing is in its way. They are looked at in the order of their coming,
  // until none is left that may go on: one may let in others by what he has now in a weaker way.
  void Wake(uint32_t file, Ended* ended) {
    for (bool some = true; some;) {
      some = false;
      std::erase_if(waiting, [&](const Waiter& waiter) {
        if (waiter.want.file != file || !InTheWay(waiter.want).empty()) return false;
        Put(waiter.want, waiter.want.type);
        ended->emplace_back(waiter.id, 0);
        return some = true;
      });
    }
  }

  std::set<Owner> InTheWay(const Want& want) {
    std::set<Owner> owners;
    for (int cell = want.first; cell <= want.last; ++cell) {
      for (const auto& [owner, type] : held[{want.file, want.flock, cell}]) {
        const bool excludes = type == F_WRLCK || want.type == F_WRLCK;
        if (owner != want.owner && excludes) owners.insert(owner);
      }
    }
    return owners;
  }

  bool ClosesCircle(const Want& want) {
    std::set<Owner> reached = InTheWay(want);
    for (size_t before = 0; before != reached.size();) {
      before = reached.size();
      for (const Waiter& waiter : waiting) {
        if (waiter.want.flock || !reached.contains(waiter.want.owner)) continue;
        reached.merge(InTheWay(waiter.want));
      }
    }
    return reached.contains(want.owner);
  }

  void Put(const Want& want, uint32_t type) {
    for (int cell = want.first; cell <= want.last; ++cell) {
      auto& holders = held[{want.file, want.flock, cell}];
      if (type == F_UNLCK)
        holders.erase(want.owner);
      else
        holders[want.owner] = type;
    }
  }

  uint32_t TypeAt(uint32_t file, bool flock, int cell, const Owner& owner) {
    const auto& holders = held[{file, flock, cell}];
    auto it = holders.find(owner);
    return it == holders.end() ? static_cast<uint32_t>(F_UNLCK) : it->second;
  }

  // Runs of cells that an owner has in the same way: as many locks as the table is to have.
  std::map<SessionId, uint64_t> Runs() {
    std::map<SessionId, uint64_t> runs;
    for (auto& [place, holders] : held) {
      const auto [file, flock, cell] = place;
      for (const auto& [owner, type] : holders) {
        if (cell == 0 || TypeAt(file, flock, cell - 1, owner) != type) ++runs[owner.session];
      }
    }
    return runs;
  }

  std::map<std::tuple<uint32_t, bool, int>, std::map<Owner, uint32_t>> held;  // by file, flock and cell
  std::vector<Waiter> waiting;                                                // in the order of their coming
};

class LockTableModel : public testing::Test {
 protected:
  static constexpr uint32_t kFiles = 2;
  static constexpr uint64_t kSessions = 3, kOwners = 2;

  Want RandomWant() {
    Want want;
    want.owner = {1 + random_.Below(kSessions), 1 + random_.Below(kOwners)};
    want.file = static_cast<uint32_t>(random_.Below(kFiles));
    const uint32_t types[] = {F_RDLCK, F_WRLCK, F_UNLCK};
    want.type = types[random_.Below(3)];
    want.flock = random_.OneIn(5);
    if (want.flock) return want;
    want.first = static_cast<int>(random_.Below(kCells));
    want.last = want.first + static_cast<int>(random_.Below(static_cast<uint64_t>(kCells - want.first)));
    return want;
  }

  Task<void> Note(uint64_t id, OneShot<Status> answer) {
    Status status = co_await answer.Wait();
    ended_.emplace_back(id, ToErrno(status));
  }

  void RandomSet() {
    const Want want = RandomWant();
    const bool wait = !random_.OneIn(3), again = random_.OneIn(10) && next_id_ > 1;
    const uint64_t id = again ? 1 + random_.Below(next_id_ - 1) : next_id_++;
    const uint64_t beyond = random_.OneIn(2) ? 0 : random_.OneIn(2) ? 1 : ~uint64_t{0} - kLastByte;
    SCOPED_TRACE(absl::StrFormat("session %d owner %d file %d type %d flock %d cells %d-%d wait %d",
                                 want.owner.session, want.owner.id, want.file, want.type, want.flock,
                                 want.first, want.last, wait));
    LockTable::Outcome outcome = table_.Set(want.owner.session, want.ToProto(beyond), wait, id);
    const int expected = model_.Set(want, wait, id, &expected_);
    EXPECT_EQ(outcome.pending.has_value() ? -1 : ToErrno(outcome.status), expected);
    if (outcome.pending.has_value()) Spawn(context_.get_executor(), Note(id, *outcome.pending));
    ++results_[expected];
    Compare();
  }

  void DropFromModel(SessionId session) {
    for (uint32_t file = 0; file < kFiles; ++file) model_.DropSession(file, session, &expected_);
  }

  void RandomEnd() {
    const SessionId session = 1 + random_.Below(kSessions);
    if (random_.OneIn(4)) {
      SCOPED_TRACE(absl::StrCat("the end of session ", session));
      table_.DropSession(session);
      DropFromModel(session);
      return Compare();
    }
    const uint64_t id = 1 + random_.Below(next_id_);
    SCOPED_TRACE(absl::StrCat("cancels ", id, " of session ", session));
    const size_t before = model_.waiting.size();
    for (uint32_t file = 0; file < kFiles; ++file) model_.EndWaits(file, session, id, EINTR, &expected_);
    EXPECT_EQ(table_.Cancel(session, id), model_.waiting.size() < before);
    Compare();
  }

  // The table agrees with the model on the waits that have ended, how and in which order, on the number of
  // locks and on what is in somebody's way.
  void Compare() {
    context_.restart();
    context_.poll();
    EXPECT_EQ(ended_, expected_);
    EXPECT_EQ(table_.CountBySession(), model_.Runs());
    for (int i = 0; i < 20; ++i) CompareOne(RandomWant());
  }

  void CompareOne(Want want) {
    if (want.type == F_UNLCK) want.type = F_WRLCK;
    auto found = table_.Get(want.owner.session, want.ToProto());
    ASSERT_TRUE(found.ok()) << found.status();
    const std::set<Owner> in_the_way = model_.InTheWay(want);
    ASSERT_EQ(found->type() == F_UNLCK, in_the_way.empty());
    if (in_the_way.empty()) return;
    // The lock of one of them, as long as it is.
    const Owner owner{found->pid() / 10, found->owner()};
    ASSERT_TRUE(in_the_way.contains(owner));
    EXPECT_EQ(found->pid() % 10, owner.id);
    EXPECT_EQ(found->flock(), want.flock);
    EXPECT_LE(found->start(), CellEnd(want.last));
    EXPECT_GE(found->end(), CellStart(want.first));
    for (int cell = 0; cell < kCells; ++cell) {
      const bool inside = found->start() <= CellStart(cell) && CellEnd(cell) <= found->end();
      const bool beside = found->start() == CellEnd(cell) + 1 || found->end() + 1 == CellStart(cell);
      const uint32_t type = model_.TypeAt(want.file, want.flock, cell, owner);
      if (inside || beside) {
        EXPECT_EQ(type == found->type(), inside) << cell;
      }
    }
  }

  asio::io_context context_;
  SeededRandom random_{0};
  LockTable table_;
  LockModel model_;
  uint64_t next_id_ = 1;
  LockModel::Ended ended_, expected_;
  std::map<int, int> results_;
};

TEST_F(LockTableModel, RandomOperations) {
  for (uint64_t seed = 1; seed <= 100 && !HasFailure(); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    random_ = SeededRandom(seed);
    for (int i = 0; i < 200 && !HasFailure(); ++i) random_.OneIn(8) ? RandomEnd() : RandomSet();
    for (SessionId session = 1; session <= kSessions; ++session) {
      table_.DropSession(session);
      DropFromModel(session);
      Compare();
    }
    EXPECT_TRUE(model_.waiting.empty());
    EXPECT_TRUE(table_.CountBySession().empty());
  }
  // Each of the outcomes was among them, often.
  for (int result : {0, EAGAIN, EDEADLK, -1}) EXPECT_GT(results_[result], 500) << result;
}

}  // namespace
}  // namespace nacre::mds
