// Two mounts and a directory of which one may hold a READ lease.
#pragma once

#include "client/inode.h"
#include "tests/client/harness.h"

namespace nacre::client {

using namespace std::chrono_literals;

class Scopes : public testing::Test {
 protected:
  Scopes() : harness_(), a_(harness_.Mount()), b_(harness_.Mount()) {
    directory_ = b_->Mkdir("d");
    HandlePtr file = b_->Create("f", O_RDWR, directory_);
    b_->Write(file, 0, "first");
    EXPECT_TRUE(b_->Close(file).ok());
    harness_.world.RunUntil([] { return false; }, 7s);  // a directory that was just changed has no leases
  }

  // As a kernel that keeps nothing: each component, and the attributes of each.
  uint64_t StatTree() {
    (void)a_->Stat(kRootFid);
    (void)a_->Lookup("d");
    (void)a_->Stat(directory_);
    return a_->Lookup("f", directory_)->attr.size();
  }

  // The size that `a` sees while its change of `f` has been carried out and is not answered, and `b` writes.
  template <typename T>
  uint64_t SizeSeenDuring(Task<T> change) {
    (void)StatTree();
    const Fid fid = FromProto(a_->Lookup("f", directory_)->attr.fid());
    HandlePtr writer = b_->Open(fid);
    uint64_t size = 0;
    a_->before_reply = [&, once = false](const proto::MetadataRequest& request) mutable -> Task<Status> {
      if (once || (!request.has_rename() && !request.has_link())) co_return OkStatus();
      once = true;
      const std::string more = Pattern(1, 1000);
      const std::span<const std::byte> piece = std::as_bytes(std::span(more));
      (void)co_await b_->fs().Write(writer, 0, std::span(&piece, 1));
      auto known = co_await a_->fs().Getattr(a_->caller, fid, nullptr);
      if (known.ok()) size = known->attr.size();
      co_return OkStatus();
    };
    EXPECT_TRUE(a_->Await(std::move(change)).ok());
    return size;
  }

  int Asked(const std::function<void()>& what) {
    const int before = a_->total();
    what();
    return a_->total() - before;
  }

  Harness harness_;
  std::unique_ptr<Mounted> a_, b_;
  Fid directory_;
};

}  // namespace nacre::client
