#include "transport/verbs/domain.h"

#include <absl/strings/str_format.h>

#include <cerrno>
#include <cstring>

namespace nacre::verbs {
namespace {

// What a device says of itself and what its driver does are two things.
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
  std::shared_ptr<Domain> domain(new Domain(ibverbs, std::move(context), pd));
  if (ibverbs.query_device(domain->context(), &domain->limits_) != 0) {
    return absl::UnavailableError(absl::StrFormat("RDMA device %s cannot be queried", device));
  }
  domain->windows_ = HasWindows(pd, domain->limits_);
  return domain;
}

Registration::Registration(std::shared_ptr<Domain> domain, ibv_mr* mr) : domain_(std::move(domain)), mr_(mr) {
  domain_->registrations()->Add();
}

Registration::~Registration() {
  domain_->ibverbs().dereg_mr(mr_);
  domain_->registrations()->Add(-1);
}

StatusOr<std::unique_ptr<Registration>> Registration::Make(std::shared_ptr<Domain> domain, std::byte* data,
                                                           size_t size, int access) {
  // The symbol, not the macro: the constant flags need nothing of what that adds.
  ibv_mr* mr = domain->ibverbs().reg_mr(domain->pd(), data, size, access);
  if (mr != nullptr) return std::unique_ptr<Registration>(new Registration(std::move(domain), mr));
  const int error = errno;
  const char* hint =
      error == ENOMEM || error == EPERM ? " (raise the limit of locked memory: ulimit -l)" : "";
  return ErrnoError(ENOTSUP,
                    absl::StrFormat("%d bytes of memory cannot be registered with RDMA device %s: %s%s", size,
                                    domain->context()->device->name, std::strerror(error), hint));
}

StatusOr<std::unique_ptr<Registration>> Registration::MakeDmaBuf(std::shared_ptr<Domain> domain,
                                                                 const DmaBuf& exported, int access) {
  ibv_mr* mr = domain->ibverbs().reg_dmabuf_mr(domain->pd(), exported.offset(), exported.size(),
                                               exported.address(), exported.fd(), access);
  if (mr != nullptr) return std::unique_ptr<Registration>(new Registration(std::move(domain), mr));
  const int error = errno;
  const char* device = domain->context()->device->name;
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
