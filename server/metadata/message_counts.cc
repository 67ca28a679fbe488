#include "server/metadata/message_counts.h"

namespace nacre::mds {

void MessageCounts::CountRequest(const proto::MetadataRequest& request) {
  const size_t operation = request.op_case();
  if (operation < requests_.size()) requests_[operation].fetch_add(1, std::memory_order_relaxed);
}

void MessageCounts::Show(proto::ClusterStatus* status) const {
  const google::protobuf::Descriptor* names = proto::MetadataRequest::descriptor();
  for (size_t operation = 1; operation < requests_.size(); ++operation) {
    const uint64_t count = requests_[operation].load(std::memory_order_relaxed);
    if (count == 0) continue;
    const auto* field = names->FindFieldByNumber(static_cast<int>(operation));
    (*status->mutable_requests())[std::string(field->name())] = count;
  }
  status->set_revocations(revocations_.load(std::memory_order_relaxed));
  status->set_conflicts(conflicts_.load(std::memory_order_relaxed));
}

}  // namespace nacre::mds
