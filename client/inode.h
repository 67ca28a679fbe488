// One inode as this client knows it: attributes, layout, inline data, directory entries, changes not sent
// yet, open handles. Shared by all handles of the file and by the inode table.
//
// Fields are guarded by `mutex` unless they say otherwise; it is held for moments only, never across a
// co_await, and no other mutex is taken under it. Order of waiting: Gate, then NameLock, then `range`, then
// `meta`.
#pragma once

#include <absl/container/flat_hash_set.h>
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "client/data_cache.h"
#include "client/directory_names.h"
#include "client/error_sequence.h"
#include "client/filesystem.h"
#include "client/inline_bytes.h"
#include "client/layout.h"
#include "client/memory_budget.h"
#include "client/object_io.h"
#include "client/outgrowing.h"
#include "client/rare_mutex.h"
#include "client/scope.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/range_lock.h"
#include "proto/metadata.pb.h"

namespace nacre::client {

// Changes of a file that the MDS has not been told of.
struct Pending {
  // The file was truncated to nothing, and the MDS is told of it together with the first bytes of the new
  // content: until then it has the old one. Here the file is an inline one already, whatever attr says.
  bool cut = false;
  uint64_t size = 0;       // end of the last byte written since; counts if beyond attr.size
  uint64_t sent_size = 0;  // the same, of bytes that objects have already
  std::optional<WallTime> mtime;
  int64_t blocks_delta = 0;  // of data that objects have already
  bool kill_suid = false;
  bool writeback = false;  // proto::UpdateSize
  bool promised = false;

  bool any() const {
    return cut || size != 0 || sent_size != 0 || mtime.has_value() || blocks_delta != 0 || kill_suid;
  }
};

// By what a file's bytes are reached, as of one moment: newer attributes, of which another operation may
// learn at any time, may have another layout already.
struct FileContent {
  std::shared_ptr<std::string> inline_bytes;  // of a file with inline data; else null
  LayoutPtr layout;                           // of a file without; else null
  uint64_t size = 0;                          // as the MDS knows it
  uint64_t change = 0;
};

// Copies `size` bytes that begin `skip` bytes into the pieces.
void CopyOut(std::span<const std::span<const std::byte>> pieces, uint64_t skip, std::byte* to, uint64_t size);

struct Inode {
  Inode(Fid id, std::shared_ptr<DataCache> cache, std::shared_ptr<MemoryBudget> memory);
  ~Inode();
  Inode(const Inode&) = delete;
  Inode& operator=(const Inode&) = delete;

  const Fid fid;
  const std::shared_ptr<DataCache> data_cache;  // may outlive the FileSystem, for handles that do
  const std::shared_ptr<MemoryBudget> budget;   // the same
  FileCache data;                               // guarded by data_cache
  RangeLock range;                              // orders writes, truncations and reads that miss
  RareMutex meta{*budget};                      // orders UpdateSize, WriteInline and MoveOut of this file
  RareMutex sync{*budget};                      // one sync of its objects at a time (durability.h)

  std::mutex mutex;
  proto::Attr attr;
  bool attr_known = false;
  LayoutPtr layout;
  uint64_t content_change = 0;        // attr.change when layout and inline bytes last came from the MDS
  InlineBytes inline_bytes{*budget};  // of a file with attr.inline_data, as this client sees them
  uint64_t inline_dirty_begin = 0;    // not sent yet: [begin, end)
  uint64_t inline_dirty_end = 0;
  uint32_t inline_flights = 0;  // WriteInline pushed and not answered
  // Not null: the file outgrows the MDT. Until that has ended its bytes are all in inline_bytes, however
  // many, and nothing of them is sent: here it is an inline file, whatever attr says. Ends with all of
  // `range` locked.
  std::shared_ptr<Outgrowing> outgrowing;
  bool rewritten =
      false;  // the MDS has cut old content off whose replacement is not all sent: close waits for it
  Pending pending;
  uint64_t held = 0;          // of what the MDT has promised (mdt_room.h)
  uint64_t dirty_blocks = 0;  // of 4 KiB, in the data cache
  Duration dirty_since{0};
  bool listed_dirty = false;  // in the write-behind's list
  uint64_t mutation = 0;      // Session::mutations when it last changed here: what fsync has to see synced
  // OSTs written to since the last sync, with what they had lost at the first write; `unsynced_whole`: no
  // other has anything of the file that was not synced.
  Losses unsynced;
  bool unsynced_whole = false;
  uint32_t direct_senders = 0;  // tasks that send what O_DIRECT writes have left in the cache
  bool direct_dirty = false;    // there may be more for them

  uint32_t opens = 0;        // handles
  uint32_t write_opens = 0;  // of these, open for writing
  uint32_t told = 0;         // of these, known to the MDS, or about to be
  uint32_t closing = 0;      // closed here, and still open at the MDS until what is under way has arrived
  uint64_t named = 0;        // how often the MDS was told how often it is open (reclaim.h)
  bool overtold = false;     // the MDS may count other handles: the last close ends all, and none before
  uint32_t told_writes =
      0;  // since it was opened for writing: of which the MDS was told (Telling::WantsFileLease)
  uint32_t settling = 0;   // mutations under way whose outcome the MDS decides (settling.h)
  uint32_t appending = 0;  // appends under way whose place is the MDS's to say (append.cc)
  bool kept_open = false;  // the MDS keeps the unlinked file for us (Unlink.keep_open)
  bool gone = false;       // no links and no handles left: nothing needs to be written any more

  uint32_t closes_asked = 0;                 // closes that the MDS was sent and has not answered
  std::vector<OneShot<Unit>> close_waiters;  // for the answers to these

  ErrorSequence errors;                 // of write-behind
  std::vector<proto::LockRange> locks;  // held through this client, for Reclaim

  // The file's pages that the kernel may have (kept_pages.h).
  struct Pages {
    bool some = false;     // there may be some, and a handle through which they are used
    ScopePtr under;        // the lease of the directory by which the last were opened
    uint64_t lease = 0;    // READ, to be relied on; 0: none
    uint64_t recalls = 0;  // rises when one begins to leave
    uint64_t content = 0;  // the lease under which content is known and cached
    Duration recalled{0};  // when one of the file was last asked back
    struct Locked {
      uint64_t end = 0;
      bool writes = false;
      std::vector<OneShot<Unit>> waiters;  // for the end of this
    };
    std::multimap<uint64_t, Locked> locked;  // by where it begins: what the kernel waits for (HoldPages)
  } pages;

  // Leases of it that are being given back.
  struct Leaving {
    uint64_t lease = 0;
    proto::LeaseMode mode = proto::LEASE_READ;
    bool data = false;  // it protects data that waits for a server (held_data.h)
    bool late = false;  // it is the file's own, and was taken for such data
    // Everything that depended on it is told, and the MDS is asked to end it: it may have, and have given one
    // to somebody else, though the answer does not come.
    bool returned = false;
    // READ of a file. The MDS has granted it once more: after a restart it knows of it, but not that it has
    // asked for it back. The kernel may have got pages under it since it began to forget them.
    bool again = false;
    bool forgotten = false;  // the kernel has none; the lease is not taken any more
  };
  std::vector<Leaving> leaving;
  // Requests for WRITE of it that have not been answered (held_data.h), and who waits until none is left.
  uint32_t late_requests = 0;
  std::vector<OneShot<Unit>> late_request_waiters;

  // Leases (scope.h).
  ScopePtr covered;          // under which the attributes were learned; null: under none
  uint32_t own_changes = 0;  // of the inode, asked for by this client and not answered yet
  uint64_t changed = 0;      // InodeTable::NextEvent when the last of these ended
  std::vector<OneShot<Unit>> own_change_waiters;  // for the end of these
  ScopePtr opened_under;  // handles that the MDS does not know: what makes sure that it is told in time
  // Each of these says something of the file that is so as long as the lease is good, because others need
  // that lease before they come near the file. A file that was elsewhere meanwhile, or had a second name,
  // could be reached without it: LeaveCover.
  ScopePtr alone_under;          // no other client has pages of the file, or has it open for writing
  ScopePtr made_under;           // no other client has ever had it open
  ScopePtr no_capability_under;  // the file has none: a write has made sure of that
  ScopePtr synced_under;         // all that others have changed of the file is synced
  // Under which the file's data is cached and held back here (held_data.h); null: it is not. Becomes null,
  // or not, with all of `range` locked.
  ScopePtr data_scope;

  ScopePtr scope;  // the lease that is held of it, if it is a directory, or WRITE of it, if it is a file;
                   // null: none
  ScopePtr ended;  // the one before: the kernel may still keep what it was promised under it

  // Directories.
  uint32_t moves = 0;  // changes under way that may take files out of it (Scope::BeginMove)
  DirectoryNames names{*budget};
  uint64_t version = 0;   // rises before and after each change made here
  uint32_t changing = 0;  // changes under way
  absl::flat_hash_set<std::string> locked_names;
  std::vector<OneShot<Unit>> name_waiters;

  // InodeTable's place for it, guarded by its mutex.
  Inode* older = nullptr;
  Inode* newer = nullptr;
  uint64_t used = 0;  // when, by the table's count of uses

  // With the mutex held:
  bool inline_dirty() const { return inline_dirty_begin < inline_dirty_end; }
  // It was truncated by somebody who is about to write.
  bool awaits_bytes() const {
    return pending.cut && write_opens > 0 && (inline_bytes == nullptr || inline_bytes->empty());
  }
  bool inline_unsent() const { return pending.cut || inline_dirty(); }
  // Whether it is a file with bytes or times here that have not begun their way.
  bool IsUnsent() const {
    return S_ISREG(attr.mode()) && (inline_unsent() || dirty_blocks > 0 || pending.any());
  }
  // As far as the inode knows; the data cache knows the rest (HoldsBack).
  bool holds_back() const {
    return pending.any() || inline_dirty() || inline_flights > 0 || dirty_blocks > 0 || held > 0;
  }
  // Its data is not worked on here any more. A lease of its own that is on its way back protects none of what
  // comes from now on.
  void EndData() {
    data_scope.reset();
    unsynced_whole = false;  // others may write
    for (Leaving& one : leaving) one.data = false;
  }
  // Ends the lease, `scope`, which is held, and returns it.
  ScopePtr EndScope();
  // The lease goes back from now on; one that the MDS has not named has nothing to go back yet.
  void NoteLeaving(const Scope& ending);
  // The MDS has it back.
  void ForgetLeaving(uint64_t lease) {
    std::erase_if(leaving, [lease](const Leaving& one) { return one.lease == lease; });
  }
  // The answer to a change of the file's data said so: AttrReply.alone_under.
  void NoteAlone(uint64_t lease);
  // Whether the file is written to here and beside others, and the MDS need not be told at once (scope.h).
  bool IsShared() const { return scope != nullptr && scope->shares() && scope->good(); }
  // Whether a lease makes sure that the attributes are true (as long as leases are good by the clock).
  bool IsCovered() const { return attr_known && covered != nullptr && covered->CoversFiles(); }
  // Whether the file has WRITE of its own while its data waits for a server (held_data.h).
  bool HasLateData() const {
    return std::any_of(leaving.begin(), leaving.end(), [](const Leaving& one) { return one.data; });
  }
  // The last handle has gone: whoever opens the file next makes the kernel drop the pages, unless
  // KeptPages::For knows better. Returns READ of the file, which goes back from now on; 0: there is none.
  uint64_t ForgetPages();
  // Whether READ of the file makes sure of its content (leased_reads.cc).
  bool ContentLeased() const { return pages.lease != 0 && pages.content == pages.lease; }
  // Whether only the lease of its directory says that the kernel may have pages of the file.
  bool PagesNeedCover() const { return pages.some && pages.under != nullptr && pages.lease == 0; }
  // Whether the content is in inline_bytes, not in objects.
  bool Inline() const { return pending.cut || outgrowing != nullptr || attr.inline_data(); }
  uint64_t Size() const { return std::max<uint64_t>(pending.cut ? 0 : attr.size(), pending.size); }
  proto::Attr Effective() const;
  // Takes over newer attributes; older ones are ignored. The rest of their answer may be used if this returns
  // true.
  bool Apply(const proto::Attr& newer);
  void ApplyLayout(const proto::Layout& proto_layout);
  // The MDS does not know the file by these objects any more.
  void ForgetLayout(const LayoutPtr& old);
  // Takes written bytes in; ContentLost if the others are not known.
  Status WriteInline(uint64_t offset, std::span<const std::span<const std::byte>> pieces, size_t size);
  // Inline bytes as they are after a truncation.
  void CutInline(uint64_t size, bool was_inline);
  // Notes what objects have been given already.
  void NoteSent(const Pending& sent);
  // One link less. Returns whether nobody needs the inode any more; `keep_open`: whether the MDS is to keep
  // it for us.
  bool DropLink(const proto::Time& now, bool* keep_open);
  // A change of the attributes is counted as the MDS counts it. The known content is as true as before.
  void CountChange();
  // The file may get another directory or a second name, or has lost its last one: others can come near it
  // without the lease that has covered it, whether or not that stays good and covers it again.
  void LeaveCover();
  // Attributes, entries and clean content may be out of date: others may have changed them. Data that is held
  // back stays, with all that it takes to send it.
  void Forget();
  // The session has ended: nothing is open, locked, leased or held back any more, nothing known is true.
  // Nothing of it is on its way, and its data is dropped.
  void Reset();
  std::optional<FileContent> Content() const;  // nothing: not known
  // The same, if it is as new as the attributes: it came with them, or is worked on here.
  std::optional<FileContent> CurrentContent() const;
};

using InodePtr = std::shared_ptr<Inode>;

// EIO: what was known of the file went while an operation waited (this client was evicted, or data could not
// be written back).
Status ContentLost(const Inode& inode);

inline constexpr int kRaces = 8;  // retries of what other clients keep changing under us

// An entry of a directory as it was when a handle began to list it.
struct Listed {
  std::string name;
  Fid fid;
  uint32_t type = 0;  // d_type
};
using Listing = std::shared_ptr<const std::vector<Listed>>;

// Whether the file's data is worked on here, in the cache. Takes its mutex, as what follows.
bool HoldsData(Inode& inode);
// Whether something is held back of it, or on its way.
bool HoldsBack(Inode& inode);
// Whether the file's data may be in the cache for a reader.
bool ReadsCached(Inode& inode);
// Notes what write, close and fsync of the file are to report.
void NoteError(Inode& inode, const Status& status);

// The pattern of a handle's reads, for readahead. Guarded by its own mutex.
struct ReadPattern {
  std::mutex mutex;
  uint64_t next = 0;        // where a sequential reader goes on
  uint64_t ahead = 0;       // fetched, or being fetched, up to here
  uint64_t window = 0;      // 0: not sequential
  uint64_t past_cache = 0;  // reads that asked the MDS
};

class FileHandle {
 public:
  FileHandle(InodePtr file, int open_flags, Caller opener, uint64_t session_epoch)
      : inode(std::move(file)), flags(open_flags), caller(std::move(opener)), epoch(session_epoch) {}

  const InodePtr inode;
  const int flags;
  const Caller caller;
  const uint64_t epoch;  // Session::epoch when it was opened
  bool writeback =
      false;  // stands for what the kernel writes back (FileSystem::WriteBack); set when it is made

  bool readable() const;
  bool writable() const;

  // Guarded by inode->mutex.
  bool told = false;  // the MDS knows of this handle
  bool released = false;
  uint64_t errors_seen = 0;        // place in Inode::errors
  uint64_t errors_before = 0;      // how many there had been when it was opened
  uint64_t mount_errors_seen = 0;  // guarded by Handles

  ReadPattern reading;

  // Directories: the entries as they were when this handle began to list them here. Guarded by inode->mutex.
  Listing listing;
  uint64_t scan_began = 0;  // InodeTable::Now; guarded by inode->mutex
  // Directories: whether this handle has read all entries up to `scan_cookie` with nothing missed. Guarded by
  // inode->mutex.
  bool scan_whole = false;
  uint64_t scan_cookie = 0;
  uint64_t scan_drops = 0;
};

}  // namespace nacre::client
