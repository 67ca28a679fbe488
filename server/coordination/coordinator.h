// The judge between servers: a few small keys that are changed by conditional transactions alone. Real form:
// etcd (etcd_coordinator.h); in memory, with etcd's rules and its failures: MemEtcd (mem_coordinator.h).
//
// Guarantees: a reading shows everything whose transaction had ended before the reading was asked for, and of
// two transactions that have the same revision of a key as their condition at most one is carried out.
// Nothing else. There are no leases here, because etcd's do not prove that their holder has stopped, and a
// watch says only that reading again may be worth it.
//
// Revisions: every transaction that changes something has a number of its own, higher than all before. The
// one that changed a key last is the key's mod_revision; 0: there is no such key.
//
// Errors: UNAVAILABLE, also when the time is over. A reading has then returned nothing. A transaction may
// have been carried out, and if not, may still be later, however long that takes: reading the keys afterwards
// and finding them unchanged does not tell. Another transaction with the same conditions settles it, since
// only one of the two can succeed. So every transaction has a condition on what it changes, and a value says
// which server has put it. Every other error means that nothing was done and that it is no use to repeat it
// as it is: INVALID_ARGUMENT (against the rules below), PERMISSION_DENIED (the user or its password),
// FAILED_PRECONDITION (the etcd that answers is not the one of before: of another cluster, or set back to an
// earlier state). Messages name the address and what to do.
//
// Thread-safe. Tasks may run on any executor, which outlives them; they end within their timeout and some
// milliseconds. A coordinator outlives its tasks and watches.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "common/task.h"

namespace nacre::coordination {

// Within what every etcd takes that is not configured to take less.
inline constexpr size_t kMaxTransactionKeys = 100;
inline constexpr size_t kMaxTransactionBytes = 1 << 20;  // of its keys and values
// Of one reading; a List that is longer fails with INVALID_ARGUMENT.
inline constexpr size_t kMaxListEntries = 1000;

struct Entry {
  std::string key;
  std::string value;
  int64_t mod_revision = 0;

  bool exists() const { return mod_revision != 0; }
  bool operator==(const Entry&) const = default;
};

struct Listing {
  std::vector<Entry> entries;  // by key
  int64_t revision = 0;        // of the newest transaction that it shows
};

struct Condition {
  std::string key;
  int64_t mod_revision = 0;  // that the key has; 0: it does not exist
};

struct Put {
  std::string key;
  std::string value;
};

// Carried out wholly if all conditions hold, else not at all. No key is empty; a key is put once or erased
// once, and has one condition at most; something is put or erased. Erasing what is not there changes nothing.
struct Transaction {
  std::vector<Condition> conditions;
  std::vector<Put> puts;
  std::vector<std::string> erases;
};

struct Outcome {
  bool succeeded = false;
  // Of this transaction if it has changed something, else of the newest before it.
  int64_t revision = 0;
  // If it has not succeeded: all keys that it names as they are, in the order in which it names them first.
  std::vector<Entry> present;
};

enum class Hint {
  kQuiet,    // nothing was heard in this time, which proves nothing
  kChanged,  // something was changed
  kGap,      // changes may have been missed
};

// Hints that reading again may be worth it; on both of the latter the holder should. They may be late,
// doubled and lost, so a holder also reads from time to time without any. One Next at a time; not thread-safe
// otherwise. May be destroyed while no Next is under way.
class Watch {
 public:
  virtual ~Watch() = default;

  // Waits for a hint, kQuiet when the timeout is over. Several are told as one, the one with a gap before the
  // other; what comes between two calls is kept. UNAVAILABLE: nobody was there to give hints at the end.
  virtual Task<StatusOr<Hint>> Next(Duration timeout) = 0;
};

class Coordinator {
 public:
  virtual ~Coordinator() = default;

  // The key, which need not exist.
  virtual Task<StatusOr<Entry>> Get(std::string key, Duration timeout) = 0;

  // All keys with this prefix, as they were at one moment.
  virtual Task<StatusOr<Listing>> List(std::string prefix, Duration timeout) = 0;

  // Asked for once; never repeated where it may have arrived.
  virtual Task<StatusOr<Outcome>> Transact(Transaction transaction, Duration timeout) = 0;

  // Of changes of keys with this prefix (empty: all) behind the revision: that of a Listing or an Outcome.
  // Begins with the first Next.
  virtual std::unique_ptr<Watch> NewWatch(std::string prefix, int64_t revision) = 0;
};

// INVALID_ARGUMENT: against the rules of Get, List and Transaction. For the forms of Coordinator.
Status CheckKey(const std::string& key);
Status CheckTransaction(const Transaction& transaction);

// Every key that it names, once, in the order in which it does first.
std::vector<std::string> NamedKeys(const Transaction& transaction);

// A key as messages show it, escaped and shortened: its bytes may be any.
std::string ShownKey(const std::string& key);

// An UNAVAILABLE that says what was wanted, for how long, and why it failed.
Status Unavailable(std::string_view what, Duration waited, std::string_view why);

}  // namespace nacre::coordination
