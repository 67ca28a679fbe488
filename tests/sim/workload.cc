#include "tests/sim/workload.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

namespace nacre::sim {
namespace {

constexpr int kOnlookers = 3;

}  // namespace

const client::Caller& Root() {
  static const client::Caller root;
  return root;
}

// --- one operation ---

Operation::Operation(Workload& workload, ClientState& client)
    : workload_(workload),
      client_(client),
      id_(workload.next_operation_++),
      began_(client.filesystem->Look()) {}

// Runs after the coroutine has applied the change to the model.
Operation::~Operation() {
  client_.under_way -= taken_ ? 1 : 0;
  if (!over_ && taken_) return;  // unanswered: its claims and its change stay until Settle
  workload_.model().End(id_);
  workload_.model().Release(id_);
  if (workload_.options().sequential && changes_) workload_.model().Remember(workload_.world().clock().Now());
}

bool Operation::Take(std::vector<Claim> claims) {
  taken_ = workload_.model().Take(id_, std::move(claims));
  client_.under_way += taken_ ? 1 : 0;
  return taken_;
}

void Operation::Pending(Unanswered change) {
  const uint64_t after = client_.failing ? 0 : began_.early_answered;  // as Model::MayGoOnWithout
  workload_.model().Begin(id_, client_.index, after, std::move(change));
  changes_ = true;
}

// A change that the MDS itself has made came behind all that was answered early before it, unless that was in
// a session which has ended since.
void Operation::Change(std::function<void()> change) {
  workload_.NoteDone();
  const uint64_t early = client_.filesystem->Look().early_answered;
  const bool is_early = std::exchange(client_.early_seen, early) != early;
  if (!is_early && !client_.failing) workload_.model().EarlyDone(client_.index, began_.early_answered);
  workload_.model().Change(id_, client_.index, is_early ? early : 0, std::move(change));
}

bool Operation::Expect(const std::string& what, const Status& status, int error) {
  const int got = ToErrno(status);
  workload_.world().Trace("%s #%d %s: %s", client_.process->name(), id_, what,
                          got == 0 ? "ok" : ErrnoName(got));
  if (client_.failing && client_.filesystem->Look().epoch != began_.epoch) return false;
  if (workload_.model().Doubtful(id_)) return false;
  if (got == error) {
    over_ = true;
    ++workload_.done_;
    return true;
  }
  if (client_.failing && got != 0) return false;
  if (workload_.flush_may_fail() && got == EIO && error == 0) return false;  // done or not: Settle finds out
  workload_.world().Fail(absl::StrFormat(
      "%s #%d %s: %s instead of %s (%s)", client_.process->name(), id_, what,
      got == 0 ? "ok" : ErrnoName(got), error == 0 ? "ok" : ErrnoName(error), std::string(status.message())));
  return false;
}

void Operation::Wrong(const std::string& what) {
  if (!client_.Compared() || workload_.model().Doubtful(id_)) return;
  workload_.world().Fail(absl::StrFormat("%s #%d %s", client_.process->name(), id_, what));
}

// --- workers ---

struct Workload::Running {
  explicit Running(Workload& workload) : workload(workload) { ++workload.running_; }
  ~Running() { --workload.running_; }
  Workload& workload;
};

void Workload::Start(int index) {
  auto client = std::make_shared<ClientState>();
  client->index = index;
  client->filesystem = &cluster_.filesystem(index);
  client->early_seen = client->filesystem->Look().early_answered;  // it may have worked before
  client->process = cluster_.process(cluster_.client(index));
  client->kernel = std::make_unique<Kernel>(client->filesystem, &client->process->clock());
  client->process->Own(client);
  clients_.resize(std::max(clients_.size(), static_cast<size_t>(index) + 1));
  clients_[static_cast<size_t>(index)] = client;
  for (int i = 0; i < options_.workers; ++i) Spawn(client->process->executor(), Worker(this, client.get()));
}

// Of a worker between two operations.
Duration Workload::Rest() {
  if (hurries_) return std::chrono::microseconds(random().Below(300));
  return std::chrono::microseconds(random().OneIn(20) ? random().Below(400'000) : random().Below(3000));
}

Task<void> Workload::Worker(Workload* workload, ClientState* client) {
  Running running(*workload);
  Random& random = workload->random();
  while (workload->world_.failure().empty()) {
    co_await workload->world_.clock().Sleep(workload->Rest());
    if (workload->paused_ || client->failing) co_return;
    if (workload->options_.sequential && workload->busy_ != nullptr) continue;
    workload->busy_ = client;
    const bool names = client->files.empty() || random.OneIn(3);
    if (workload->only_bytes_ && !client->files.empty()) {
      (void)co_await ByteOperation(workload, client);
    } else if (client->only_reads && names) {
      (void)co_await ReadNames(workload, client);
    } else if (client->only_reads) {
      (void)co_await ReadData(workload, client);
    } else if (names) {
      (void)co_await NamespaceOperation(workload, client);
    } else {
      (void)co_await DataOperation(workload, client);
    }
    workload->busy_ = nullptr;
  }
}

// Beside other clients (`asks` is false) it does not: what it asks the servers for would only wait, and keep
// others from changing what it has claimed.
Task<void> Workload::Onlooker(Workload* workload, ClientState* client, bool asks) {
  Running running(*workload);
  Random& random = workload->random();
  while (workload->world_.failure().empty() && client->Compared()) {
    co_await workload->world_.clock().Sleep(std::chrono::milliseconds(1 + random.Below(100)));
    if (!client->Compared()) co_return;
    LoadResident(workload, client);
    if (!asks) continue;
    if (client->files.empty() || random.OneIn(2)) {
      (void)co_await ReadNames(workload, client);
    } else {
      (void)co_await ReadData(workload, client);
    }
  }
}

void Workload::OnlyReads(int index, bool only) {
  if (auto client = clients_[static_cast<size_t>(index)].lock()) client->only_reads = only;
}

void Workload::Dies(int index) {
  auto client = clients_[static_cast<size_t>(index)].lock();
  clients_[static_cast<size_t>(index)].reset();
  if (!client) return;
  if (busy_ == client.get()) busy_ = nullptr;
  if (!client->failing) model_.EarlyDone(index, client->filesystem->Look().early_done);
  if (cluster_.options().clients > 1) model_.Doubt(index);
  CloseAll(*client);
}

void Workload::NoteDone() {
  for (const std::weak_ptr<ClientState>& weak : clients_) {
    auto client = weak.lock();
    if (client && !client->failing) model_.EarlyDone(client->index, client->filesystem->Look().early_done);
  }
}

std::set<InodeId> Workload::Home(int client) const {
  std::set<InodeId> home;
  for (const auto& [id, inode] : model_.inodes()) {
    if (!inode.directory() || id % static_cast<InodeId>(options_.homes) != static_cast<InodeId>(client))
      continue;
    home.insert(id);
    for (const auto& [name, child] : inode.children) home.insert(child);
  }
  return home;
}

bool Workload::MayWrite(InodeId file, int client) const {
  if (!options_.own_files) return true;
  auto maker = makers_.find(file);
  return maker == makers_.end() || maker->second == client;
}

bool Workload::OthersWork(int than) const {
  return std::any_of(clients_.begin(), clients_.end(), [than](const std::weak_ptr<ClientState>& weak) {
    auto client = weak.lock();
    return client && client->index != than && client->under_way > 0;
  });
}

void Workload::Failing(int index) {
  NoteDone();
  if (auto client = clients_[static_cast<size_t>(index)].lock()) client->failing = true;
  model_.MayGoOnWithout(index);
  if (cluster_.options().clients > 1) model_.Doubt(index);
}

void Workload::CutOff(int index) {
  Failing(index);
  auto client = clients_[static_cast<size_t>(index)].lock();
  if (!client) return;
  client->cut_epoch = client->filesystem->Look().epoch;
  const bool asks = cluster_.options().clients == 1;
  for (int i = 0; i < kOnlookers; ++i) Spawn(client->process->executor(), Onlooker(this, client.get(), asks));
}

void Workload::CloseAll(ClientState& client) {
  for (const OpenFile& file : client.files) model_.Closed(file.inode);
}

Task<void> ReleaseAll(Workload* workload, ClientState* client) {
  while (!client->files.empty()) {
    OpenFile file = std::move(client->files.back());
    client->files.pop_back();
    Status released = co_await client->filesystem->Release(file.handle);
    workload->model().Closed(file.inode);
    if (!released.ok()) workload->world().Fail("release: " + released.ToString());
  }
}

Task<Status> GiveUpHandles(Workload* workload, ClientState* client) {
  for (OpenFile& file : std::exchange(client->files, {})) {
    client->kernel->Closed(file.handle);
    (void)co_await client->filesystem->Flush(file.handle, 0);
    (void)co_await client->filesystem->Release(file.handle);
    workload->model().Closed(file.inode);
  }
  co_return OkStatus();
}

Task<Status> SyncAll(Workload* workload, ClientState* client) {
  const std::vector<OpenFile> files = client->files;
  for (const OpenFile& file : files) {
    Status synced = co_await client->filesystem->Fsync(file.handle, false);
    workload->world().Trace("%s fsync %s: %s", client->process->name(), workload->model().PathOf(file.inode),
                            ErrnoName(ToErrno(synced)));
    if (!synced.ok() && ToErrno(synced) != EIO) co_return synced;
    if (!synced.ok()) continue;
    workload->model().file(file.inode).MakeDurable([client](const FileChange& change) {
      return change.client == client->index;
    });
  }
  co_return OkStatus();
}

Task<Status> TakeErrors(Workload* workload, ClientState* client) {
  constexpr int kMostErrors = 3;
  std::vector<Fid> files;
  for (const auto& [id, inode] : workload->model().inodes()) {
    if (inode.regular() && inode.nlink > 0) files.push_back(inode.fid);
  }
  if (files.empty()) files.push_back(kRootFid);  // those of the mount wait for whatever is opened next
  for (Fid fid : files) {
    const int flags = fid == kRootFid ? O_RDONLY | O_DIRECTORY : O_RDONLY;
    auto opened = co_await client->filesystem->Open(Root(), fid, flags);
    CO_RETURN_IF_ERROR(opened.status());
    client::HandlePtr handle = *std::move(opened);
    for (int errors = 0; errors < kMostErrors; ++errors) {  // the file's, and then those of the mount
      Status synced = co_await client->filesystem->Fsync(handle, false);
      if (synced.ok()) break;
      if (ToErrno(synced) != EIO) co_return synced;
    }
    (void)co_await client->filesystem->Release(handle);
  }
  co_return OkStatus();
}

// --- walk ---

namespace {

Task<Status> WalkFile(client::FileSystem* filesystem, Fid fid, ObservedInode* found) {
  client::HandlePtr none;
  auto opened = co_await filesystem->Open(Root(), fid, O_RDONLY);
  CO_RETURN_IF_ERROR(opened.status());
  client::HandlePtr handle = *std::move(opened);
  while (true) {
    constexpr size_t kStep = 128 << 10;
    auto read = co_await filesystem->Read(handle, found->bytes.size(), kStep);
    CO_RETURN_IF_ERROR(read.status());
    for (auto piece : read->pieces) found->bytes.insert(found->bytes.end(), piece.begin(), piece.end());
    if (read->size < kStep) break;
  }
  co_return co_await filesystem->Release(handle);
}

Task<Status> WalkDirectory(client::FileSystem* filesystem, Fid fid, ObservedInode* found) {
  auto opened = co_await filesystem->Opendir(Root(), fid);
  CO_RETURN_IF_ERROR(opened.status());
  client::HandlePtr handle = *std::move(opened);
  uint64_t cookie = 0;
  while (true) {
    auto entries = co_await filesystem->Readdir(Root(), handle, cookie, 4, false);
    CO_RETURN_IF_ERROR(entries.status());
    if (entries->empty()) break;
    for (auto& entry : *entries) {
      if (!found->children.emplace(entry.name, entry.fid).second) {
        co_return ErrnoError(EUCLEAN, absl::StrFormat("readdir names %s twice", entry.name));
      }
    }
    cookie = entries->back().cookie;
  }
  co_return co_await filesystem->Release(handle);
}

Task<Status> WalkXattrs(client::FileSystem* filesystem, Fid fid, ObservedInode* found) {
  auto names = co_await filesystem->ListXattr(Root(), fid);
  CO_RETURN_IF_ERROR(names.status());
  for (const std::string& name : *names) {
    if (!name.starts_with("user.")) continue;
    auto value = co_await filesystem->GetXattr(Root(), fid, name);
    CO_RETURN_IF_ERROR(value.status());
    found->xattrs[name] = *std::move(value);
  }
  co_return OkStatus();
}

}  // namespace

Task<Status> Walk(client::FileSystem* filesystem, ObservedTree* tree) {
  std::vector<Fid> todo = {kRootFid};
  while (!todo.empty()) {
    const Fid fid = todo.back();
    todo.pop_back();
    if (tree->contains(fid)) continue;
    ObservedInode& found = (*tree)[fid];
    client::HandlePtr none;
    auto known = co_await filesystem->Getattr(Root(), fid, none);
    CO_RETURN_IF_ERROR(known.status());
    found.attr = known->attr;
    CO_RETURN_IF_ERROR(co_await WalkXattrs(filesystem, fid, &found));
    if (S_ISREG(found.attr.mode())) CO_RETURN_IF_ERROR(co_await WalkFile(filesystem, fid, &found));
    if (S_ISLNK(found.attr.mode())) {
      auto target = co_await filesystem->Readlink(Root(), fid);
      CO_RETURN_IF_ERROR(target.status());
      found.target = *std::move(target);
    }
    if (!S_ISDIR(found.attr.mode())) continue;
    CO_RETURN_IF_ERROR(co_await WalkDirectory(filesystem, fid, &found));
    for (const auto& [name, child] : found.children) todo.push_back(child);
  }
  co_return OkStatus();
}

}  // namespace nacre::sim
