#include "api/objects.h"

#include <absl/strings/str_format.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "api/call.h"
#include "api/operation.h"
#include "api/queue.h"
#include "api/small_reads.h"

namespace nacre::api {
namespace {

template <typename T>
StatusOr<std::shared_ptr<T>> FindIn(const Handles<T>& handles, uint64_t id, const char* what) {
  RETURN_IF_ERROR(CheckProcess());
  if (id == 0) return ErrnoError(EBADF, absl::StrFormat("no %s: the handle is zero", what));
  std::shared_ptr<T> found = handles.Find(id);
  if (found != nullptr) return found;
  return ErrnoError(
      EBADF, absl::StrFormat("%s %d is not open: it was closed, or is a handle of another kind", what, id));
}

}  // namespace

// --- clients ---

Client::Client(std::shared_ptr<Connection> connection, bool by_mount)
    : connection_(std::move(connection)), by_mount_(by_mount), small_reads_(SmallReads::Make(connection_)) {}

Client::~Client() = default;

bool Client::Begin(Operation* operation) {
  std::lock_guard lock(mutex_);
  if (closed_) return false;
  operations_.insert(operation);
  return true;
}

void Client::End(Operation* operation) {
  std::lock_guard lock(mutex_);
  operations_.erase(operation);
  if (operations_.empty()) idle_.notify_all();
}

bool Client::Attach(std::shared_ptr<Queue> queue) {
  std::lock_guard lock(mutex_);
  if (!closed_) queues_.push_back(std::move(queue));
  return !closed_;
}

void Client::Detach(const Queue& queue) {
  std::lock_guard lock(mutex_);
  std::erase_if(queues_, [&](const std::shared_ptr<Queue>& open) { return open.get() == &queue; });
}

void Client::Finish() {
  std::unique_lock lock(mutex_);
  closed_ = true;
  const std::vector<std::shared_ptr<Queue>> queues = queues_;
  std::vector<std::shared_ptr<Operation>> under_way;
  for (Operation* operation : operations_) under_way.push_back(operation->Share());
  lock.unlock();
  for (const auto& operation : under_way) {
    if (operation != nullptr && !operation->writes())
      operation->Cancel(ErrnoError(ECANCELED, "the client was closed"));
  }
  for (const std::shared_ptr<Queue>& queue : queues) queue->Close();
  lock.lock();
  idle_.wait(lock, [this] { return operations_.empty(); });
  loose_memory_.Clear();
}

// --- files ---

File::~File() {
  client_->connection().Start([](client::FileSystem* filesystem, client::HandlePtr handle) -> Task<void> {
    (void)co_await filesystem->Release(std::move(handle));  // its errors were told by nacre_file_close
  }(&client_->filesystem(), handle_));
}

// --- buffers ---

bool Buffer::Begin() {
  std::lock_guard lock(mutex_);
  if (released_) return false;
  ++users_;
  return true;
}

void Buffer::End() {
  std::lock_guard lock(mutex_);
  if (--users_ == 0) idle_.notify_all();
}

void Buffer::Release() {
  std::unique_lock lock(mutex_);
  released_ = true;
  idle_.wait(lock, [this] { return users_ == 0; });
}

// --- handles ---

Tables& AllTables() {
  static auto& tables = *new Tables;  // threads may outlive static objects
  return tables;
}

StatusOr<std::shared_ptr<Client>> FindClient(nacre_client client) {
  return FindIn(AllTables().clients, client.id, "client");
}
StatusOr<std::shared_ptr<File>> FindFile(nacre_file file) {
  return FindIn(AllTables().files, file.id, "file");
}
StatusOr<std::shared_ptr<Buffer>> FindBuffer(nacre_buffer buffer) {
  return FindIn(AllTables().buffers, buffer.id, "buffer");
}

client::Caller CallingUser() {
  client::Caller caller;
  caller.uid = ::geteuid();
  caller.gid = ::getegid();
  caller.pid = static_cast<uint32_t>(::getpid());
  std::vector<gid_t> groups(static_cast<size_t>(std::max(::getgroups(0, nullptr), 0)));
  const int count = ::getgroups(static_cast<int>(groups.size()), groups.data());
  if (count > 0) caller.groups.assign(groups.begin(), groups.begin() + count);
  return caller;
}

}  // namespace nacre::api
