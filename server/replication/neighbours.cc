#include "server/replication/neighbours.h"

#include <absl/strings/str_format.h>

#include "common/log.h"

namespace nacre::replication {

Task<Status> Neighbours::Refresh() {
  auto addresses = co_await judge_.Addresses();
  CO_RETURN_IF_ERROR(addresses.status());
  std::lock_guard lock(mutex_);
  for (const auto& [name, address] : *addresses) {
    if (name == self_ || (channels_.contains(name) && addresses_[name] == address)) continue;
    StatusOr<std::shared_ptr<CopyChannel>> channel = connector_.Open(address);
    if (channel.ok()) {
      channels_[name] = *std::move(channel);
    } else {
      LogWarning("the MDS %s says that it is at \"%s\": %s", name, address, channel.status().message());
    }
  }
  std::erase_if(channels_, [&](const auto& entry) { return !addresses->contains(entry.first); });
  addresses_ = *std::move(addresses);
  co_return OkStatus();
}

std::vector<std::string> Neighbours::names() const {
  std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [name, channel] : channels_) names.push_back(name);
  return names;
}

std::string Neighbours::address(const std::string& name) const {
  std::lock_guard lock(mutex_);
  auto it = addresses_.find(name);
  return it == addresses_.end() ? std::string() : it->second;
}

Task<StatusOr<proto::CopyReply>> Neighbours::Exchange(proto::CopyRequest request, Duration timeout) {
  std::shared_ptr<CopyChannel> channel;
  {
    std::lock_guard lock(mutex_);
    auto it = channels_.find(request.to());
    if (it != channels_.end()) channel = it->second;
  }
  if (channel == nullptr) {
    co_return absl::UnavailableError(absl::StrFormat("it is not known where the MDS %s is", request.to()));
  }
  co_return co_await channel->Exchange(std::move(request), timeout);
}

}  // namespace nacre::replication
