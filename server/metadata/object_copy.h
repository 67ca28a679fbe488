// Copies a file's bytes from the objects of one layout to those of another, by way of this server's memory.
//
// Holes stay holes. Every block is checked against the checksum that its OST keeps for it, and is written
// with that checksum. The versions of the old objects are noted before anything is read: if they are
// unchanged later, the copy is what the file has (Unchanged). After a loss of power of an OST in between a
// version says nothing, and counts as changed.
//
// Memory: one buffer of some MiB. Belongs to one coroutine.
#pragma once

#include <map>
#include <string>

#include "server/metadata/object_io.h"

namespace nacre::mds {

// How far a copy is, for others to look at, and how fast it may go. Outlives the copy. Thread-safe.
struct CopyProgress {
  std::atomic<uint64_t> copied{0};  // bytes
  std::atomic<uint64_t> total{0};   // that the file has in objects
  std::atomic<uint32_t> attempts{0};
  std::atomic<bool> given_up{false};  // the copy is to end
  uint64_t bytes_per_second = 0;      // 0: as fast as it goes
};

class ObjectCopy {
 public:
  ObjectCopy(MdsPtr mds, Fid fid, Layout from, Layout to, std::shared_ptr<CopyProgress> progress);

  // All bytes of the old objects, also those behind the file's end, and durably. DEADLINE_EXCEEDED: it is not
  // done at `until`; CANCELLED: given up; UNAVAILABLE: an OST does not answer; else an OST's error.
  Task<Status> Run(Duration until);

  // After Run: whether the old objects are as they were when it began.
  Task<StatusOr<bool>> Unchanged();

  // Cuts the new objects to what a file of this size has in them, durably. Returns the blocks that they take.
  Task<StatusOr<uint64_t>> CutTo(uint64_t size);

 private:
  struct Version {
    bool exists = false;
    uint32_t epoch = 0;
    uint64_t changes = 0;
    uint64_t losses = 0;  // of the OST
    bool operator==(const Version&) const = default;
  };
  struct Window {  // of an object, in the buffer
    uint64_t begin = 0, length = 0;
    std::vector<std::pair<uint64_t, uint64_t>> data;  // offsets in it, without its holes
    std::vector<uint32_t> sums;                       // of its blocks
    bool end = false;                                 // the object ends here
  };

  Task<StatusOr<proto::ObjectReply>> Call(ObjectCall call);
  Task<StatusOr<proto::ObjectReply>> Stat(Stripe stripe);
  Task<StatusOr<std::vector<Version>>> Versions();
  Task<Status> CopyObject(Stripe stripe);
  Task<StatusOr<std::optional<uint64_t>>> NextData(Stripe stripe, uint64_t offset);
  Task<StatusOr<Window>> Read(Stripe stripe, uint64_t offset);
  StatusOr<Window> Examine(const Stripe& stripe, uint64_t offset, const proto::ObjectReply& reply) const;
  Task<Status> Write(uint32_t stripe, Window window);
  Task<Status> KeepRate(uint64_t bytes);
  Task<Status> SyncAll();

  const MdsPtr mds_;
  const Fid fid_;
  const Layout from_, to_;
  const std::shared_ptr<CopyProgress> progress_;
  std::vector<Stripe> old_, new_;
  std::string buffer_;
  std::shared_ptr<MemoryRegion> region_;
  std::vector<Version> versions_;
  std::map<OstIndex, uint64_t> written_;  // OSTs with new objects, and what each had lost by the first write
  Duration until_{0};
  Duration began_{0};
  uint64_t copied_ = 0;
};

}  // namespace nacre::mds
