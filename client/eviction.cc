// The end of a session: the MDS has evicted this client.
//
// From the moment at which it is known (OnEvicted) no call of the old epoch is sent any more, wherever its
// caller waits: the session, the targets and the queue refuse the epoch, and calls under way end. So
// everybody inside the gate comes to its end soon, with EIO. Then, with the gate closed and nothing on its
// way, what belonged to the old session is dropped and the new epoch begins (StartAnew).
#include "client/core.h"
#include "common/log.h"

namespace nacre::client {

void Core::OnEvicted(uint64_t epoch) {
  targets_->Reset(0, epoch);
  early_->EndBefore(epoch);
  entrance_.Wake();  // who waits for good leases inside the gate
  background_.Start(StartAnew(epoch));
}

// Data that was held back is sent in vain, so that each file has its error: first for those inside the gate
// who wait for room in the cache, then for what they have left there.
Task<void> Core::StartAnew(uint64_t epoch) {
  (void)co_await write_behind_->SendEverything();
  co_await entrance_.gate().Close();
  (void)co_await write_behind_->SendEverything();
  co_await queue_->Drain();
  std::vector<Fid> paged = pages_->Files();
  for (const InodePtr& inode : inodes_->All()) {
    data_->Discard(*inode);
    std::lock_guard lock(inode->mutex);
    inode->Reset();
  }
  inodes_->Forget();
  durability_->Reset();
  entrance_.BeginEpoch(epoch);
  own_data_.ForgetAll();
  handles_->Forget();
  entrance_.gate().Open();
  entrance_.Wake();
  co_await kernel_.ForgetAll(std::move(paged));
}

}  // namespace nacre::client
