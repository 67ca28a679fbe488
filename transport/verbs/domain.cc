#include "transport/verbs/domain.h"

#include <absl/strings/str_format.h>

#include <cerrno>
#include <cstring>

namespace nacre::verbs {
namespace {

// A device may announce windows that its driver cannot make, so one is made.
bool HasWindows(ibv_pd* pd, const ibv_device_attr& limits) {
  if ((limits.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B) == 0) return false;
  ibv_mw* window = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
  return window != nullptr && ibv_dealloc_mw(window) == 0;
}

}  // namespace

StatusOr<std::shared_ptr<Domain>> Domain::Open(const Ibverbs& ibverbs, const std::string& device) {
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceContext> context, DeviceContext::Open(ibverbs, device));
  ibv_pd* pd = ibverbs.alloc_pd(context->get());
  if (pd == nullptr) {
    return absl::UnavailableError(
        absl::StrFormat("RDMA device %s has no protection domain left: %s", device, std::strerror(errno)));
  }
  std::shared_ptr<Domain> domain(new Domain(ibverbs, device, std::move(context), pd));
  if (ibverbs.query_device(domain->context(), &domain->limits_) != 0) {
    return absl::UnavailableError(absl::StrFormat("RDMA device %s cannot be queried", device));
  }
  domain->windows_ = HasWindows(pd, domain->limits_);
  return domain;
}

Domain::~Domain() {
  if (stranded()) {
    Close();
  } else {
    ibverbs_.dealloc_pd(pd_);
  }
}

std::shared_lock<std::shared_mutex> Domain::Use() const {
  std::shared_lock use(life_);
  if (context_ == nullptr) use.unlock();
  return use;
}

void Domain::AfterClose(absl::AnyInvocable<void()> function) {
  {
    std::lock_guard lock(mutex_);
    if (!closed_) return after_close_.push_back(std::move(function));
  }
  function();
}

bool Domain::Close() {
  {
    std::unique_lock closing(life_);
    if (context_ == nullptr) return false;
    context_.reset();
  }
  std::vector<absl::AnyInvocable<void()>> functions;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    functions.swap(after_close_);
  }
  for (auto& function : functions) function();
  return true;
}

Registration::Registration(std::shared_ptr<Domain> domain, ibv_mr* mr)
    : domain_(std::move(domain)), mr_(mr), local_key_(mr->lkey), remote_key_(mr->rkey) {
  domain_->registrations()->Add();
}

Registration::~Registration() {
  const auto use = domain_->Use();
  if (use && !domain_->stranded()) domain_->ibverbs().dereg_mr(mr_);
  domain_->registrations()->Add(-1);
}

StatusOr<std::unique_ptr<Registration>> Registration::Make(std::shared_ptr<Domain> domain, std::byte* data,
                                                           size_t size, int access) {
  const auto use = domain->Use();
  if (!use) return absl::UnavailableError("the RDMA device has failed");
  // The symbol, not the macro: the constant flags need nothing of what that adds.
  ibv_mr* mr = domain->ibverbs().reg_mr(domain->pd(), data, size, access);
  if (mr != nullptr) return std::unique_ptr<Registration>(new Registration(domain, mr));
  const int error = errno;
  const char* hint =
      error == ENOMEM || error == EPERM ? " (raise the limit of locked memory: ulimit -l)" : "";
  return ErrnoError(ENOTSUP,
                    absl::StrFormat("%d bytes of memory cannot be registered with RDMA device %s: %s%s", size,
                                    domain->device(), std::strerror(error), hint));
}

StatusOr<std::unique_ptr<Registration>> Registration::MakeDmaBuf(std::shared_ptr<Domain> domain,
                                                                 const DmaBuf& exported, int access) {
  const auto use = domain->Use();
  if (!use) return absl::UnavailableError("the RDMA device has failed");
  ibv_mr* mr = domain->ibverbs().reg_dmabuf_mr(domain->pd(), exported.offset(), exported.size(),
                                               exported.address(), exported.fd(), access);
  if (mr != nullptr) return std::unique_ptr<Registration>(new Registration(domain, mr));
  const int error = errno;
  const std::string& device = domain->device();
  if (error == EOPNOTSUPP || error == EPROTONOSUPPORT || error == ENOSYS) {
    return ErrnoError(ENOTSUP, absl::StrFormat("the driver of RDMA device %s registers no dma-bufs; mlx5's "
                                               "does since Linux 5.12 and rdma-core 34",
                                               device));
  }
  return ErrnoError(error, absl::StrFormat("%d bytes of a dma-buf cannot be registered with RDMA device %s: "
                                           "%s",
                                           exported.size(), device, std::strerror(error)));
}

}  // namespace nacre::verbs
