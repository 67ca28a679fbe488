#include "tests/sim/kernel.h"

#include <algorithm>
#include <cerrno>
#include <optional>

#include "common/ids.h"
#include "rpc/convert.h"
#include "tests/sim/workload.h"

namespace nacre::sim {

Kernel::Kernel(client::FileSystem* filesystem, Clock* clock) : filesystem_(filesystem), clock_(clock) {
  client::Invalidation invalidation;
  invalidation.data_and_attributes = [this](Fid fid, uint64_t begin, uint64_t end) -> Task<void> {
    attributes_.erase(fid);
    return Forget(fid, begin, end);
  };
  invalidation.attributes = [this](Fid fid) { attributes_.erase(fid); };
  filesystem_->SetInvalidation(std::move(invalidation));
}

Task<void> Kernel::Opened(client::HandlePtr handle, Fid fid) {
  const client::KernelPages pages = filesystem_->PagesFor(handle);
  if (pages != client::KernelPages::kNone) cached_.insert(handle.get());
  if (pages != client::KernelPages::kKept) co_await Forget(fid);
}

// --- pages ---

Task<Kernel::PagePtr> Kernel::Lock(Fid fid, uint64_t index) {
  for (;;) {
    PagePtr& page = pages_[fid][index];
    if (page == nullptr) page = std::make_shared<Page>();
    if (!page->locked) {
      page->locked = true;
      co_return page;
    }
    OneShot<Unit> free = page->waiters.emplace_back();
    co_await free.Wait();
  }
}

void Kernel::Unlock(Page& page) {
  page.locked = false;
  for (const OneShot<Unit>& waiter : page.waiters) waiter.Set({});
  page.waiters.clear();
}

// Page by page, each one when it is not locked any more (invalidate_inode_pages2).
Task<void> Kernel::Forget(Fid fid, uint64_t begin, uint64_t end) {
  uint64_t next = begin / kBlockSize;
  for (;;) {
    auto file = pages_.find(fid);
    if (file == pages_.end()) co_return;
    auto it = file->second.lower_bound(next);
    if (it == file->second.end() || it->first > (end - 1) / kBlockSize) co_return;
    next = it->first;
    if (it->second->locked) {
      OneShot<Unit> free = it->second->waiters.emplace_back();
      co_await free.Wait();
      continue;
    }
    file->second.erase(it);
  }
}

// The page is locked.
Task<Status> Kernel::Fill(client::HandlePtr handle, PagePtr page, uint64_t index) {
  CO_ASSIGN_OR_RETURN(
      client::LockedPages locked,
      co_await filesystem_->HoldPages(handle, index * kBlockSize, kBlockSize, client::PageUse::kFill));
  auto read = co_await filesystem_->Read(handle, index * kBlockSize, kBlockSize);
  CO_RETURN_IF_ERROR(read.status());
  page->data.clear();
  for (auto piece : read->pieces) page->data.insert(page->data.end(), piece.begin(), piece.end());
  page->data.resize(kBlockSize);
  page->good = true;
  co_return OkStatus();
}

Task<StatusOr<Bytes>> Kernel::Read(client::HandlePtr handle, Fid fid, uint64_t offset, uint64_t length,
                                   bool mapped) {
  Bytes got;
  if (!mapped && !cached_.contains(handle.get())) {
    auto read = co_await filesystem_->Read(handle, offset, length);
    CO_RETURN_IF_ERROR(read.status());
    for (auto piece : read->pieces) got.insert(got.end(), piece.begin(), piece.end());
    if (got.size() != read->size) co_return ErrnoError(EUCLEAN, "the pieces are not of the size told");
    co_return got;
  }
  CO_ASSIGN_OR_RETURN(proto::Attr attr, co_await Stat(handle, fid));
  const uint64_t end = std::min<uint64_t>(offset + length, attr.size());
  for (uint64_t at = offset; at < end;) {
    const uint64_t index = at / kBlockSize;
    PagePtr page = co_await Lock(fid, index);
    Status filled;
    if (!page->good) filled = co_await Fill(handle, page, index);
    if (filled.ok()) {
      const uint64_t until = std::min(end, (index + 1) * kBlockSize);
      got.insert(got.end(), page->data.begin() + static_cast<ptrdiff_t>(at % kBlockSize),
                 page->data.begin() + static_cast<ptrdiff_t>(until - index * kBlockSize));
      at = until;
    }
    Unlock(*page);
    CO_RETURN_IF_ERROR(filled);
  }
  co_return got;
}

std::map<uint64_t, Bytes> Kernel::Resident(Fid fid) const {
  std::map<uint64_t, Bytes> resident;
  auto file = pages_.find(fid);
  if (file == pages_.end()) return resident;
  for (const auto& [index, page] : file->second) {
    if (page->good && !page->locked) resident[index] = page->data;
  }
  return resident;
}

// --- changes ---

Task<StatusOr<size_t>> Kernel::Write(client::HandlePtr handle, Fid fid, uint64_t offset,
                                     std::vector<std::span<const std::byte>> pieces) {
  if (cached_.contains(handle.get())) {
    Bytes bytes;
    for (auto piece : pieces) bytes.insert(bytes.end(), piece.begin(), piece.end());
    co_return co_await WriteCached(handle, fid, offset, std::move(bytes));
  }
  co_await Forget(fid);
  auto written = co_await filesystem_->Write(handle, offset, pieces);
  attributes_.erase(fid);
  if (filesystem_->MayHavePages(handle)) co_await Forget(fid);
  co_return written;
}

// Whole pages are good, and not locked, before the filesystem has heard of the write; a page that it fills in
// part stays locked until then, and is not good afterwards unless it was before.
Task<StatusOr<size_t>> Kernel::WriteCached(client::HandlePtr handle, Fid fid, uint64_t offset, Bytes bytes) {
  std::vector<PagePtr> locked;
  const uint64_t end = offset + bytes.size();
  for (uint64_t at = offset; at < end;) {
    const uint64_t index = at / kBlockSize, until = std::min(end, (index + 1) * kBlockSize);
    PagePtr page = co_await Lock(fid, index);
    if (until - at == kBlockSize) page->good = true;
    if (page->good) {
      page->data.resize(kBlockSize);
      std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(at - offset), until - at,
                  page->data.begin() + static_cast<ptrdiff_t>(at % kBlockSize));
      Unlock(*page);
    } else {
      locked.push_back(std::move(page));
    }
    at = until;
  }
  StatusOr<client::LockedPages> held =
      co_await filesystem_->HoldPages(handle, offset, bytes.size(), client::PageUse::kWrite);
  StatusOr<size_t> written = ErrnoError(EIO, "nothing written");
  if (!held.ok()) written = held.status();
  if (held.ok()) {
    const std::span<const std::byte> piece(bytes);
    written = co_await filesystem_->Write(handle, offset, std::span(&piece, 1));
  }
  attributes_.erase(fid);
  for (const PagePtr& page : locked) Unlock(*page);
  co_return written;
}

Task<void> Kernel::Changed(Fid fid) {
  attributes_.erase(fid);
  co_await Forget(fid);
}

Task<StatusOr<proto::Attr>> Kernel::Stat(client::HandlePtr handle, Fid fid) {
  auto kept = attributes_.find(fid);
  if (kept != attributes_.end() && clock_->Now() < kept->second.until) co_return kept->second.attr;
  auto known = co_await filesystem_->Getattr(Root(), fid, handle);
  CO_RETURN_IF_ERROR(known.status());
  Learn(*known);
  co_return known->attr;
}

// --- names ---

Task<StatusOr<proto::Attr>> Kernel::Lookup(Fid parent, std::string name) {
  const auto kept = names_.find({parent, name});
  if (kept != names_.end() && clock_->Now() < kept->second.until) {
    const Fid fid = kept->second.fid;
    if (!fid) co_return ErrnoError(ENOENT, "a name that the kernel knows not to be there");
    co_return co_await Stat(nullptr, fid);
  }
  Duration negative{0};
  auto found = co_await filesystem_->Lookup(Root(), parent, name, &negative);
  if (found.ok()) {
    names_[{parent, name}] = {FromProto(found->attr.fid()), found->name_until};
    Learn(*found);
    co_return found->attr;
  }
  names_.erase({parent, name});
  if (ToErrno(found.status()) == ENOENT) names_[{parent, name}] = {Fid{}, negative};
  co_return found.status();
}

Task<StatusOr<std::map<std::string, Fid>>> Kernel::List(Fid directory, bool plus) {
  CO_ASSIGN_OR_RETURN(client::HandlePtr handle, co_await filesystem_->Opendir(Root(), directory));
  std::map<std::string, Fid> found;
  StatusOr<std::vector<client::DirEntry>> entries;
  uint64_t cookie = 0;
  do {
    entries = co_await filesystem_->Readdir(Root(), handle, cookie, 3, plus);
    if (!entries.ok()) break;
    for (const client::DirEntry& entry : *entries) {
      if (entry.known) {
        names_[{directory, entry.name}] = {entry.fid, entry.known->name_until};
        Learn(*entry.known);
      }
      cookie = entry.cookie;
      if (found.emplace(entry.name, entry.fid).second) continue;
      (void)co_await filesystem_->Release(handle);
      co_return ErrnoError(EUCLEAN, "the listing has twice the name " + entry.name);
    }
  } while (!entries->empty());
  (void)co_await filesystem_->Release(handle);
  CO_RETURN_IF_ERROR(entries.status());
  co_return found;
}

void Kernel::Made(Fid parent, const std::string& name, const client::Known& known) {
  attributes_.erase(parent);
  names_[{parent, name}] = {FromProto(known.attr.fid()), known.name_until};
  Learn(known);
}

void Kernel::Removed(Fid parent, const std::string& name, Fid fid) {
  attributes_.erase(parent);
  attributes_.erase(fid);
  names_.erase({parent, name});
}

// The entry moves, and is good for as long as it was (d_move).
void Kernel::Renamed(Fid from, const std::string& name, Fid to, const std::string& new_name, Fid changed,
                     bool exchange) {
  std::optional<Name> moved, other;
  if (auto it = names_.find({from, name}); it != names_.end()) moved = it->second;
  if (auto it = names_.find({to, new_name}); it != names_.end() && exchange) other = it->second;
  for (const Fid& fid : {from, to, changed}) attributes_.erase(fid);
  for (const auto& one : {moved, other}) {
    if (one) attributes_.erase(one->fid);
  }
  names_.erase({from, name});
  names_.erase({to, new_name});
  if (moved) names_[{to, new_name}] = *moved;
  if (other) names_[{from, name}] = *other;
}

void Kernel::Learn(const client::Known& known) {
  const bool current = known.until > Duration(0) && filesystem_->IsCurrent(known.attr);
  attributes_[FromProto(known.attr.fid())] = {known.attr, current ? known.until : 0s};
}

}  // namespace nacre::sim
