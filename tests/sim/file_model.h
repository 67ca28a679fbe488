// A model of a file's bytes: the content as acknowledged, and beside it the changes that a crash may still
// take.
//
// Every change is remembered until it is known to be durable. After a crash each 4 KiB block must read as it
// was with some of the changes that may be lost left out, and never as a part of one: a torn block matches
// nothing. A change that may be lost may also be found as if it had been made before appends that came before
// it: the MDS writes their bytes to the objects later, over what a client has sent that did not know of them
// and repeats it then (docs/decisions/0085-stored-appends.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/clock.h"

namespace nacre::sim {

using Bytes = std::vector<std::byte>;

// Returns the bytes that an operation writes: different for every operation and offset, so that a byte tells
// where it comes from.
Bytes Pattern(uint64_t operation, uint64_t offset, uint64_t length);

struct FileChange {
  enum Kind { kWrite, kTruncate, kZero };  // kZero: a punched or zeroed range; the size stays
  Kind kind = kWrite;
  uint64_t operation = 0;
  int client = 0;
  bool append = false;        // a write at the file's end, wherever that was
  bool lazy = false;          // made under a lease: the client may still hold it back
  bool acknowledged = false;  // else it may have happened, in part
  bool durable = false;       // no crash may take it
  Duration at{0};             // when it was acknowledged
  uint64_t answer = 0;        // which of all the answers that was (Workload::done): a moment has no order
  uint64_t offset = 0;
  uint64_t length = 0;         // kTruncate: none, the offset is the new size
  Bytes data;                  // kWrite
  std::vector<uint64_t> ends;  // the file's sizes while it was not acknowledged
  size_t appends_before = 0;   // how many appends had begun before it; the model sets it
};

class FileModel {
 public:
  const Bytes& bytes() const { return current_; }
  uint64_t size() const { return current_.size(); }

  // A change that begins: it may show from now on, and after a crash may or may not have happened. One with
  // the same operation is replaced.
  void Begin(FileChange change);
  // It has been acknowledged, as the answer of this number. `lazy`: the client may still hold it back.
  void Acknowledge(uint64_t operation, Duration now, bool lazy = false, uint64_t answer = 0);
  // It was refused: it must not show.
  void Withdraw(uint64_t operation);

  // Acknowledged changes of which this is true can no longer be lost.
  void MakeDurable(const std::function<bool(const FileChange&)>& durable);
  // The operations whose changes may still be lost; what an fsync that begins now will make durable.
  std::vector<uint64_t> Acknowledged() const;

  // Whether there is a change that this client may still hold back.
  bool MayMissSomethingOf(int client) const;

  // Empty: a read of [offset, offset + got.size()) that asked for `asked` bytes may answer this. Else what is
  // wrong.
  std::string CheckRead(uint64_t offset, uint64_t asked, const Bytes& got) const;

  // The file may have been moved to other objects, which are cut where it ends. So a write over that end,
  // which goes to the new objects once more, may be lost there and leave its part before the end. For Settle.
  void MayHaveMoved();

  // After a crash, when the whole file reads as `observed`. Empty: a state that the promises allow, and the
  // model has taken it over. Else what is wrong.
  // `may_wait`: of a truncation to nothing, whether its client may have held it back however old it is; it
  // may be lost then, unless something that came after it may not.
  std::string Settle(const Bytes& observed, const std::function<bool(const FileChange&)>& may_be_lost,
                     const std::function<bool(const FileChange&)>& may_wait = nullptr);

 private:
  static void Apply(const FileChange& change, Bytes* bytes);
  // The changes that touch this block, as indices into recent_.
  std::vector<size_t> Touching(uint64_t block) const;
  // The bytes that a change gives its part of a block, which begins there.
  struct BlockPart {
    uint64_t from = 0;
    Bytes bytes;
    uint64_t end() const { return from + bytes.size(); }
  };
  static BlockPart PartIn(uint64_t block, const FileChange& change);
  Bytes DurableBlock(uint64_t block) const;
  // The bytes of a block that its changes have explained, and what is there.
  class Explanation;
  std::string SettleBlock(uint64_t block, const Bytes& observed,
                          const std::function<bool(const FileChange&)>& may_be_lost) const;
  bool SizeAllowed(uint64_t size, const std::function<bool(const FileChange&)>& may_be_lost) const;

  Bytes base_;  // durable
  Bytes current_;
  std::vector<FileChange> recent_;  // since then, in order
  struct Appended {
    uint64_t begin = 0, end = 0;
  };
  std::vector<Appended> appends_;  // since the last Settle, in order
};

}  // namespace nacre::sim
