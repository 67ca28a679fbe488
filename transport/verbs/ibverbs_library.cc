#include "transport/verbs/ibverbs_library.h"

#include <absl/strings/str_format.h>
#include <dlfcn.h>

#include <atomic>

namespace nacre::verbs {
namespace {

constexpr char kLibrary[] = "libibverbs.so.1";

std::atomic<const Ibverbs*> g_other = nullptr;

StatusOr<Ibverbs> Open() {
  void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);  // for the life of the process
  if (library == nullptr) {
    return absl::UnavailableError(
        absl::StrFormat("%s cannot be loaded: %s; Debian has it in libibverbs1 and ibverbs-providers",
                        kLibrary, ::dlerror()));
  }
  const char* missing = nullptr;
  auto find = [&](auto* function, const char* name) {
    *function = reinterpret_cast<std::remove_reference_t<decltype(*function)>>(::dlsym(library, name));
    if (*function == nullptr) missing = name;
  };
  Ibverbs table;
  find(&table.get_device_list, "ibv_get_device_list");
  find(&table.free_device_list, "ibv_free_device_list");
  find(&table.get_device_name, "ibv_get_device_name");
  find(&table.open_device, "ibv_open_device");
  find(&table.close_device, "ibv_close_device");
  find(&table.query_device, "ibv_query_device");
  find(&table.query_port, "ibv_query_port");
  find(&table.query_gid_ex, "_ibv_query_gid_ex");
  find(&table.query_gid_table, "_ibv_query_gid_table");
  find(&table.alloc_pd, "ibv_alloc_pd");
  find(&table.dealloc_pd, "ibv_dealloc_pd");
  find(&table.reg_mr, "ibv_reg_mr");
  find(&table.dereg_mr, "ibv_dereg_mr");
  find(&table.create_comp_channel, "ibv_create_comp_channel");
  find(&table.destroy_comp_channel, "ibv_destroy_comp_channel");
  find(&table.create_cq, "ibv_create_cq");
  find(&table.destroy_cq, "ibv_destroy_cq");
  find(&table.get_cq_event, "ibv_get_cq_event");
  find(&table.ack_cq_events, "ibv_ack_cq_events");
  find(&table.create_srq, "ibv_create_srq");
  find(&table.destroy_srq, "ibv_destroy_srq");
  find(&table.create_qp, "ibv_create_qp");
  find(&table.modify_qp, "ibv_modify_qp");
  find(&table.destroy_qp, "ibv_destroy_qp");
  find(&table.get_async_event, "ibv_get_async_event");
  find(&table.ack_async_event, "ibv_ack_async_event");
  find(&table.event_type_str, "ibv_event_type_str");
  find(&table.wc_status_str, "ibv_wc_status_str");
  table.reg_dmabuf_mr =
      reinterpret_cast<decltype(table.reg_dmabuf_mr)>(::dlsym(library, "ibv_reg_dmabuf_mr"));
  if (missing == nullptr) return table;
  return absl::UnavailableError(
      absl::StrFormat("%s has no %s: it is too old (rdma-core 32 or later is needed)", kLibrary, missing));
}

}  // namespace

StatusOr<const Ibverbs*> LoadIbverbs() {
  if (const Ibverbs* other = g_other.load()) return other;
  static const StatusOr<Ibverbs> table = Open();
  if (!table.ok()) return table.status();
  return &*table;
}

void UseIbverbs(const Ibverbs* table) { g_other.store(table); }

}  // namespace nacre::verbs
