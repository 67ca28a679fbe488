// One request of the kernel while it is being worked on, and how operations are started and answered.
// Internal to fuse/.
//
// A Request lives in its task's frame. It answers once, unless that has been done for a caller that was
// killed (fuse/interrupts.h); dropped unanswered it answers EIO, so that no caller waits for ever. Not
// thread-safe, but it may move between threads with its task.
#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/filesystem.h"
#include "fuse/answer.h"
#include "fuse/libfuse.h"
#include "fuse/session.h"

namespace nacre::fuse {

class Request {
 public:
  Request(fuse_req_t request, Patience patience);
  Request(Request&& other) noexcept;
  Request& operator=(Request&&) = delete;
  ~Request();

  Session& session() { return *session_; }
  client::FileSystem& filesystem() { return session_->filesystem(); }
  const client::Caller& caller() const { return caller_; }
  const std::shared_ptr<Answer>& answer() { return answer_; }

  // Answers. Each may be the only one.
  void Error(int error);
  void Done(const Status& status) { Error(ToErrno(status)); }
  void Entry(const StatusOr<client::Known>& known);
  void NoEntry(Duration until);  // a negative entry that the kernel may keep (client::Known)
  bool Attributes(const StatusOr<client::Known>& known);  // false: as Reply
  void Text(std::string_view text);                       // bytes as they are
  bool Count(const StatusOr<size_t>& count);              // false: as Reply
  // Answers by a function of libfuse's: reply(request, arguments...). False: the caller did not get the
  // answer, since it has been let go (fuse/interrupts.h).
  template <typename... Parameters, typename... Arguments>
  bool Reply(int (*reply)(fuse_req_t, Parameters...), Arguments&&... arguments) {
    answered_ = true;
    fuse_req_t request = answer_->Take();
    return request != nullptr && reply(request, std::forward<Arguments>(arguments)...) == 0;
  }

 private:
  std::shared_ptr<Session> session_;
  std::shared_ptr<Answer> answer_;
  bool answered_ = false;
  client::Caller caller_;
};

// Starts the operation on this thread, which reads requests. Arguments are copied into its frame.
template <typename... Parameters, typename... Arguments>
void StartWith(Patience patience, fuse_req_t raw, Task<void> (*operation)(Request, Parameters...),
               Arguments&&... arguments) {
  Request request(raw, patience);
  Session& session = request.session();
  std::shared_ptr<Answer> answer = request.answer();
  session.Started(answer);
  // Not Spawn: an executor that is none of Asio's takes a piece of memory to find out that it is here.
  coroutine::RunToEnd(operation(std::move(request), std::forward<Arguments>(arguments)...), [] {})
      .Begin(session.executor(), Answer::CancellationOf(answer))
      .Resume();
}
template <typename... Parameters, typename... Arguments>
void Start(fuse_req_t raw, Task<void> (*operation)(Request, Parameters...), Arguments&&... arguments) {
  StartWith(Patience::kUntilSignal, raw, operation, std::forward<Arguments>(arguments)...);
}

inline Session& SessionOf(fuse_req_t raw) { return *static_cast<Session*>(fuse_req_userdata(raw)); }
inline Fid FidOf(fuse_req_t raw, fuse_ino_t node) { return SessionOf(raw).nodes().Get(node); }

// Kernel's forms of ours.
void FillStat(const proto::Attr& attr, struct stat* out);
double SecondsTo(Duration until);  // client::Known; 0 if that is over
// For how many seconds the kernel may keep the attributes: not at all if a later change was answered since
// they were looked up.
double AttributesTimeout(Session& session, const client::Known& known);
// Counts as a lookup of the kernel's.
fuse_entry_param MakeEntry(Session& session, const client::Known& known);

// Has the kernel drop pages and attributes of the inode. For changes of data that are carried out although
// their caller was let go: the kernel believes that they were not.
Task<void> ForgetInode(Request& request, Fid fid);

// An open file or directory, named by fuse_file_info::fh.
struct OpenFile {
  OpenFile(Fid fid, client::HandlePtr handle) : fid(fid), handle(std::move(handle)) {}

  const Fid fid;
  const client::HandlePtr handle;
  bool cached = false;   // it goes through the kernel's page cache
  bool flocked = false;  // a BSD lock was asked for through it: gone with the last close

  // Owners of POSIX locks taken through it and not flushed since. Those that are left at the last close are
  // of the open file itself (F_OFD_SETLK): the kernel says nothing when those should go.
  std::mutex mutex;
  std::set<uint64_t> lock_owners;
};
inline OpenFile& FileOf(const fuse_file_info& info) { return *reinterpret_cast<OpenFile*>(info.fh); }
inline client::HandlePtr HandleOf(const fuse_file_info& info) { return FileOf(info).handle; }

// The locks that the last close of a file gives back, as unlocks (locks.cc).
std::vector<proto::LockRange> UnlocksAtRelease(OpenFile& file, const fuse_file_info& info);

// Registration of the operations, one function per group (one file each).
void AddNamespace(fuse_lowlevel_ops* ops);
void AddAttributes(fuse_lowlevel_ops* ops);
void AddDirectories(fuse_lowlevel_ops* ops);
void AddFiles(fuse_lowlevel_ops* ops);
void AddIo(fuse_lowlevel_ops* ops);
void AddLocks(fuse_lowlevel_ops* ops);
void AddXattrs(fuse_lowlevel_ops* ops);

}  // namespace nacre::fuse
