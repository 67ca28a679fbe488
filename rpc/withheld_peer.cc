#include "rpc/withheld_peer.h"

#include <utility>

namespace nacre {

class WithheldPeers::WithheldPeer : public MetadataPeer {
 public:
  WithheldPeer(std::shared_ptr<MetadataPeer> peer, std::shared_ptr<Authority> authority,
               std::shared_ptr<WithheldPeers> all)
      : peer_(std::move(peer)), authority_(std::move(authority)), all_(std::move(all)) {}
  ~WithheldPeer() override { all_->Forget(peer_.get()); }

  void Send(proto::Push push) override {
    authority_->WhenKept([peer = peer_, push = std::move(push)](bool kept) mutable {
      if (kept) peer->Send(std::move(push));
    });
  }
  void Close() override {
    authority_->WhenKept([peer = peer_](bool) { peer->Close(); });
  }
  std::string name() const override { return peer_->name(); }

 private:
  const std::shared_ptr<MetadataPeer> peer_;
  const std::shared_ptr<Authority> authority_;
  const std::shared_ptr<WithheldPeers> all_;
};

std::shared_ptr<MetadataPeer> WithheldPeers::Of(const std::shared_ptr<MetadataPeer>& peer,
                                                const std::shared_ptr<Authority>& authority) {
  std::lock_guard lock(mutex_);
  std::weak_ptr<WithheldPeer>& known = peers_[peer.get()];
  std::shared_ptr<WithheldPeer> withheld = known.lock();
  if (withheld == nullptr) {
    withheld = std::make_shared<WithheldPeer>(peer, authority, shared_from_this());
    known = withheld;
  }
  return withheld;
}

// Another one may have taken its place since nobody had it any more.
void WithheldPeers::Forget(const MetadataPeer* peer) {
  std::lock_guard lock(mutex_);
  const auto it = peers_.find(peer);
  if (it != peers_.end() && it->second.expired()) peers_.erase(it);
}

}  // namespace nacre
