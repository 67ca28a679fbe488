#include "server/coordination/etcd_coordinator.h"

#include <absl/strings/str_format.h>

#include <cerrno>

#include "server/coordination/etcd_client.h"
#include "server/coordination/etcd_watch.h"
#include "server/kv/kv_store.h"

namespace nacre::coordination {
namespace {

constexpr int32_t kEqual = 0;
constexpr int32_t kModRevision = 2;

Entry ToEntry(etcdserverpb::KeyValue&& from) {
  return {std::move(*from.mutable_key()), std::move(*from.mutable_value()), from.mod_revision()};
}

etcdserverpb::TxnRequest ToRequest(const Transaction& transaction) {
  etcdserverpb::TxnRequest request;
  for (const Condition& condition : transaction.conditions) {
    etcdserverpb::Compare* compare = request.add_compare();
    compare->set_result(kEqual);
    compare->set_target(kModRevision);
    compare->set_key(condition.key);
    compare->set_mod_revision(condition.mod_revision);
  }
  for (const Put& put : transaction.puts) {
    etcdserverpb::PutRequest* request_put = request.add_success()->mutable_request_put();
    request_put->set_key(put.key);
    request_put->set_value(put.value);
  }
  for (const std::string& key : transaction.erases) {
    request.add_success()->mutable_request_delete_range()->set_key(key);
  }
  for (std::string& key : NamedKeys(transaction)) {
    request.add_failure()->mutable_request_range()->set_key(std::move(key));
  }
  return request;
}

// Checks a member's answer before it is used: another program may listen at that address.
StatusOr<Outcome> ToOutcome(const Transaction& transaction, etcdserverpb::TxnResponse response) {
  Outcome outcome;
  outcome.succeeded = response.succeeded();
  outcome.revision = response.header().revision();
  if (outcome.succeeded) return outcome;
  const std::vector<std::string> keys = NamedKeys(transaction);
  if (response.responses_size() != static_cast<int>(keys.size())) {
    return ErrnoError(ENOTCONN, absl::StrFormat("etcd answers a transaction on %d keys with %d entries",
                                                keys.size(), response.responses_size()));
  }
  for (size_t i = 0; i < keys.size(); ++i) {
    auto* kvs = response.mutable_responses(static_cast<int>(i))->mutable_response_range()->mutable_kvs();
    outcome.present.push_back(kvs->empty() ? Entry{keys[i], "", 0} : ToEntry(std::move(*kvs->Mutable(0))));
  }
  return outcome;
}

class EtcdCoordinator : public Coordinator {
 public:
  explicit EtcdCoordinator(EtcdAccess access) : client_(std::move(access)) {}

  Task<StatusOr<Entry>> Get(std::string key, Duration timeout) override {
    CO_RETURN_IF_ERROR(CheckKey(key));
    etcdserverpb::RangeRequest request;
    request.set_key(key);
    std::string what = absl::StrFormat("reading key '%s'", ShownKey(key));
    CO_ASSIGN_OR_RETURN(etcdserverpb::RangeResponse response,
                        co_await client_.Range(std::move(what), std::move(request), timeout));
    Entry entry;
    if (response.kvs_size() > 0) {
      entry = ToEntry(std::move(*response.mutable_kvs(0)));
    } else {
      entry.key = std::move(key);
    }
    co_return entry;
  }

  Task<StatusOr<Listing>> List(std::string prefix, Duration timeout) override {
    etcdserverpb::RangeRequest request;
    const std::string end = PrefixEnd(prefix);
    request.set_key(prefix.empty() ? std::string(1, '\0') : prefix);
    request.set_range_end(end.empty() ? std::string(1, '\0') : end);
    request.set_limit(kMaxListEntries);
    std::string what = absl::StrFormat("reading keys '%s...'", ShownKey(prefix));
    CO_ASSIGN_OR_RETURN(etcdserverpb::RangeResponse response,
                        co_await client_.Range(std::move(what), std::move(request), timeout));
    if (response.more()) {
      co_return ErrnoError(
          EINVAL, absl::StrFormat("there are more than %d keys '%s...'", kMaxListEntries, ShownKey(prefix)));
    }
    Listing listing;
    listing.revision = response.header().revision();
    for (etcdserverpb::KeyValue& kv : *response.mutable_kvs()) {
      listing.entries.push_back(ToEntry(std::move(kv)));
    }
    co_return listing;
  }

  Task<StatusOr<Outcome>> Transact(Transaction transaction, Duration timeout) override {
    CO_RETURN_IF_ERROR(CheckTransaction(transaction));
    etcdserverpb::TxnRequest request = ToRequest(transaction);
    std::string what = absl::StrFormat("transaction on key '%s'", ShownKey(NamedKeys(transaction).front()));
    CO_ASSIGN_OR_RETURN(etcdserverpb::TxnResponse response,
                        co_await client_.Txn(std::move(what), std::move(request), timeout));
    co_return ToOutcome(transaction, std::move(response));
  }

  std::unique_ptr<Watch> NewWatch(std::string prefix, int64_t revision) override {
    return std::make_unique<EtcdWatch>(client_, std::move(prefix), revision);
  }

 private:
  EtcdClient client_;
};

}  // namespace

StatusOr<std::unique_ptr<Coordinator>> NewEtcdCoordinator(const EtcdOptions& options) {
  ASSIGN_OR_RETURN(EtcdAccess access, CheckEtcdOptions(options));
  return std::make_unique<EtcdCoordinator>(std::move(access));
}

}  // namespace nacre::coordination
