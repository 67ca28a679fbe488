// The functions of libibverbs, and those that a context points to, over the fake device.
#include <sys/mman.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>

#include "tests/transport/verbs/fake_rdma_state.h"

namespace nacre::verbs::fake {
namespace {

// --- the operations of a context, as verbs.h calls them ---

int PostSend(ibv_qp* qp, ibv_send_wr* request, ibv_send_wr** bad) {
  FakeRdma::State& device = Devices();
  std::lock_guard lock(device.mutex);
  auto* pair = static_cast<QueuePair*>(qp);
  Require(device.pairs.contains(qp->qp_num), "a work request for a queue pair that is not there");
  *bad = request;
  if (pair->work.size() >= pair->room) return ENOMEM;
  if (static_cast<uint32_t>(request->num_sge) > pair->pieces) return EINVAL;
  Work work;
  work.request = *request;
  constexpr uint64_t kLongestBinding = uint64_t{2} << 30;  // as mlx5
  if (request->opcode == IBV_WR_BIND_MW && request->bind_mw.bind_info.length > kLongestBinding)
    return EOPNOTSUPP;
  if (request->opcode == IBV_WR_BIND_MW && device.binding_error != 0 &&
      request->bind_mw.bind_info.length > device.longest_binding)
    return device.binding_error;
  if (request->opcode == IBV_WR_BIND_MW) work.window_key = request->bind_mw.mw->rkey;
  work.pieces.assign(request->sg_list, request->sg_list + request->num_sge);
  if ((request->send_flags & IBV_SEND_INLINE) != 0) {
    for (const ibv_sge& piece : work.pieces) {
      work.inlined.append(reinterpret_cast<const char*>(piece.addr), piece.length);
    }
    if (work.inlined.size() > pair->inline_bytes) return EINVAL;
  }
  if (pair->state != IBV_QPS_RTS && pair->state != IBV_QPS_ERR) return EINVAL;
  device.under_way += FakeRdma::State::BytesOf(work);
  device.most_under_way = std::max(device.most_under_way, device.under_way);
  if (pair->state == IBV_QPS_ERR) {
    device.Complete(pair, work, IBV_WC_WR_FLUSH_ERR);
    return 0;
  }
  pair->work.push_back(std::move(work));
  device.Drain(pair);
  return 0;
}

int PostReceive(ibv_srq* queue, ibv_recv_wr* request, ibv_recv_wr** bad) {
  FakeRdma::State& device = Devices();
  std::lock_guard lock(device.mutex);
  auto* receives = static_cast<Receives*>(queue);
  *bad = request;
  if (receives->posted.size() >= kMaxReceives) return ENOMEM;
  receives->posted.push_back({request->wr_id, request->sg_list[0]});
  device.DrainAll();
  return 0;
}

int PollCompletions(ibv_cq* queue, int most, ibv_wc* out) {
  FakeRdma::State& device = Devices();
  std::lock_guard lock(device.mutex);
  auto* completions = static_cast<Completions*>(queue);
  int count = 0;
  for (; count < most && !completions->done.empty(); ++count) {
    out[count] = completions->done.front();
    if (out[count].opcode != IBV_WC_RECV) device.under_way -= out[count].byte_len;
    completions->done.pop_front();
  }
  return count;
}

int RequestNotice(ibv_cq* queue, int) {
  FakeRdma::State& device = Devices();
  std::lock_guard lock(device.mutex);
  static_cast<Completions*>(queue)->armed = true;
  return 0;
}

ibv_mw* AllocateWindow(ibv_pd* pd, ibv_mw_type type) {
  FakeRdma::State& device = Devices();
  std::lock_guard lock(device.mutex);
  if (!device.traits.windows || type != IBV_MW_TYPE_2 || device.windows.size() >= kMaxWindows) {
    errno = ENOMEM;
    return nullptr;
  }
  auto* window = new Window{};
  window->context = pd->context;
  window->pd = pd;
  window->type = type;
  window->key = window->rkey = kWindowKey | device.next_key++ << 8;
  device.windows[window->rkey & ~0xffu] = window;
  return window;
}

int FreeWindow(ibv_mw* mw) {
  FakeRdma::State& device = Devices();
  std::lock_guard lock(device.mutex);
  auto* window = static_cast<Window*>(mw);
  if (device.window_error != 0) {
    window->left = true;
    ++device.refusals;
    return device.window_error;
  }
  device.Unbind(window);
  device.windows.erase(window->key & ~0xffu);
  delete window;
  return 0;
}

// --- the functions of the library ---

ibv_device** GetDeviceList(int* count) {
  FakeRdma::State& device = Devices();
  std::lock_guard lock(device.mutex);
  auto** list = new ibv_device* [device.devices.size() + 1] {};
  *count = 0;
  for (Device& listed : device.devices) {
    if (!listed.removed) list[(*count)++] = &listed.listed;
  }
  return list;
}

void FreeDeviceList(ibv_device** list) { delete[] list; }

const char* GetDeviceName(ibv_device* device) { return device->name; }

ibv_context* OpenDevice(ibv_device* listed) {
  FakeRdma::State& device = Devices();
  std::lock_guard lock(device.mutex);
  auto* context = new Context{};
  while (&device.devices[context->number].listed != listed) ++context->number;
  context->own = *listed;
  context->device = &context->own;
  context->async_fd = MakeEvents();
  context->ops.alloc_mw = AllocateWindow;
  context->ops.dealloc_mw = FreeWindow;
  context->ops.poll_cq = PollCompletions;
  context->ops.req_notify_cq = RequestNotice;
  context->ops.post_srq_recv = PostReceive;
  context->ops.post_send = PostSend;
  device.devices[context->number].open.insert(context);
  ++device.opened;
  return context;
}

int CloseDevice(ibv_context* ibv) {
  FakeRdma::State& device = Devices();
  std::lock_guard lock(device.mutex);
  auto* context = static_cast<Context*>(ibv);
  if (device.refusals > 0) device.CloseAllOf(context);
  device.devices[context->number].open.erase(context);
  ::close(context->async_fd);
  delete context;
  return 0;
}

int QueryDevice(ibv_context*, ibv_device_attr* attr) {
  *attr = {};
  attr->phys_port_cnt = 1;
  attr->max_sge = attr->max_sge_rd = 4;
  attr->max_cqe = kMaxCompletions;
  attr->max_srq_wr = kMaxReceives;
  attr->max_qp_rd_atom = attr->max_qp_init_rd_atom = 8;
  if (!Devices().traits.windows) return 0;
  attr->device_cap_flags = IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
  attr->max_mw = kMaxWindows;
  return 0;
}

int QueryPort(ibv_context*, uint8_t, _compat_ibv_port_attr* out) {
  auto* attr = reinterpret_cast<ibv_port_attr*>(out);
  attr->state = IBV_PORT_ACTIVE;
  attr->active_mtu = IBV_MTU_4096;
  attr->max_msg_sz = 256 << 10;  // so that transfers are cut
  attr->link_layer = IBV_LINK_LAYER_ETHERNET;
  return 0;
}

int QueryGid(ibv_context* context, uint32_t port, uint32_t index, ibv_gid_entry* entry, uint32_t, size_t) {
  if (port != 1 || index != 0) return ENODATA;
  *entry = {};
  entry->gid = GidOf(DeviceOf(context));
  entry->port_num = 1;
  entry->gid_type = IBV_GID_TYPE_ROCE_V2;
  return 0;
}

ssize_t QueryGids(ibv_context* context, ibv_gid_entry* entries, size_t most, uint32_t, size_t size) {
  return most > 0 && QueryGid(context, 1, 0, entries, 0, size) == 0 ? 1 : 0;
}

ibv_pd* AllocateDomain(ibv_context* context) {
  FakeRdma::State& device = Devices();
  std::lock_guard lock(device.mutex);
  auto* pd = new ibv_pd{};
  pd->context = context;
  device.domains.insert(pd);
  return pd;
}

int FreeDomain(ibv_pd* pd) {
  FakeRdma::State& device = Devices();
  std::lock_guard lock(device.mutex);
  device.domains.erase(pd);
  delete pd;
  return 0;
}

// Under the device's mutex.
Region* AddRegion(FakeRdma::State& device, ibv_pd* pd, uint64_t start, std::byte* memory, size_t size,
                  int access) {
  auto* region = new Region{};
  region->context = pd->context;
  region->pd = pd;
  region->addr = memory;
  region->length = size;
  region->access = static_cast<unsigned>(access);
  region->start = start;
  region->memory = memory;
  region->lkey = region->rkey = device.next_key++ << 8;
  device.regions[region->lkey] = region;
  return region;
}

// Whether the CPU could read there: the kernel looks at the address before it refuses the rest.
bool IsMapped(const void* address) {
  constexpr int kNoSuchWay = -1;
  syscall(SYS_rt_sigprocmask, kNoSuchWay, reinterpret_cast<uintptr_t>(address) & ~uintptr_t{7}, nullptr, 8);
  return errno != EFAULT;
}

void WaitIfHeld(FakeRdma::State& device, const void* data) {
  std::unique_lock lock(device.join_mutex);
  if (data != device.held_memory) return;
  device.holding = true;
  device.join_change.wait(lock, [&] { return data != device.held_memory; });
  device.holding = false;
}

ibv_mr* Register(ibv_pd* pd, void* data, size_t size, int access) {
  FakeRdma::State& device = Devices();
  WaitIfHeld(device, data);
  std::lock_guard lock(device.mutex);
  const bool refused = device.refused_memory == nullptr || device.refused_memory == data;
  errno = refused ? device.memory_error : 0;
  if (errno != 0) return nullptr;
  auto* memory = static_cast<std::byte*>(data);
  if (size > 0 && !IsMapped(data)) memory = device.peer_memory ? device.peer_memory(memory, size) : nullptr;
  if (memory == nullptr) {
    errno = EFAULT;
    return nullptr;
  }
  return AddRegion(device, pd, reinterpret_cast<uint64_t>(data), memory, size, access);
}

// The kernel takes these flags and no others.
ibv_mr* RegisterDmaBuf(ibv_pd* pd, uint64_t offset, size_t size, uint64_t address, int fd, int access) {
  FakeRdma::State& device = Devices();
  WaitIfHeld(device, reinterpret_cast<const void*>(address));
  std::lock_guard lock(device.mutex);
  constexpr int kAllowed = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                           IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_RELAXED_ORDERING;
  constexpr uint64_t kPage = 4096;
  const int number = static_cast<int>(DeviceOf(pd->context));
  errno = device.dma_buf_device < 0 || device.dma_buf_device == number ? device.dma_buf_error : 0;
  if (errno == 0 && ((access & ~kAllowed) != 0 || address % kPage != offset % kPage)) errno = EINVAL;
  if (errno != 0) return nullptr;
  const off_t begin = ::lseek(fd, 0, SEEK_CUR);
  const size_t mapped = (offset + size + kPage - 1) / kPage * kPage;
  void* memory = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, begin);
  if (begin < 0 || memory == MAP_FAILED) return nullptr;
  auto* bytes = static_cast<std::byte*>(memory);
  Region* region = AddRegion(device, pd, address, bytes + offset, size, access);
  region->mapped = {bytes, mapped};
  return region;
}

int Deregister(ibv_mr* mr) {
  FakeRdma::State& device = Devices();
  std::lock_guard lock(device.mutex);
  auto* region = static_cast<Region*>(mr);
  Require(region->windows == 0, "memory is taken back that a window is bound to");
  device.regions.erase(region->lkey);
  if (!region->mapped.empty()) ::munmap(region->mapped.data(), region->mapped.size());
  delete region;
  return 0;
}

ibv_comp_channel* CreateChannel(ibv_context* context) {
  FakeRdma::State& device = Devices();
  std::lock_guard lock(device.mutex);
  auto* channel = new Events{};
  device.channels.insert(channel);
  channel->context = context;
  channel->fd = MakeEvents();
  return channel;
}

int DestroyChannel(ibv_comp_channel* channel) {
  FakeRdma::State& device = Devices();
  std::lock_guard lock(device.mutex);
  device.channels.erase(static_cast<Events*>(channel));
  ::close(channel->fd);
  delete static_cast<Events*>(channel);
  return 0;
}

ibv_cq* CreateCompletions(ibv_context* context, int size, void*, ibv_comp_channel* channel, int) {
  FakeRdma::State& device = Devices();
  std::lock_guard lock(device.mutex);
  auto* queue = new Completions{};
  device.completions.insert(queue);
  queue->context = context;
  queue->channel = channel;
  queue->cqe = size;
  return queue;
}

int DestroyCompletions(ibv_cq* queue) {
  FakeRdma::State& device = Devices();
  std::lock_guard lock(device.mutex);
  device.completions.erase(static_cast<Completions*>(queue));
  Require(static_cast<Completions*>(queue)->users == 0, "a completion queue goes before its queue pairs");
  delete static_cast<Completions*>(queue);
  return 0;
}

int GetCompletionEvent(ibv_comp_channel* channel, ibv_cq** queue, void** context) {
  FakeRdma::State& device = Devices();
  std::lock_guard lock(device.mutex);
  auto* events = static_cast<Events*>(channel);
  if (!TakeSignal(channel->fd)) return -1;
  *queue = events->ready.front();
  *context = nullptr;
  events->ready.pop_front();
  return 0;
}

void AcknowledgeCompletionEvents(ibv_cq*, unsigned) {}

ibv_srq* CreateReceives(ibv_pd* pd, ibv_srq_init_attr*) {
  FakeRdma::State& device = Devices();
  std::lock_guard lock(device.mutex);
  auto* queue = new Receives{};
  queue->context = pd->context;
  queue->pd = pd;
  device.receives.insert(queue);
  return queue;
}

int DestroyReceives(ibv_srq* queue) {
  FakeRdma::State& device = Devices();
  std::lock_guard lock(device.mutex);
  device.receives.erase(static_cast<Receives*>(queue));
  Require(static_cast<Receives*>(queue)->users == 0, "a receive queue goes before its queue pairs");
  delete static_cast<Receives*>(queue);
  return 0;
}

ibv_qp* CreatePair(ibv_pd* pd, ibv_qp_init_attr* attr) {
  FakeRdma::State& device = Devices();
  std::lock_guard lock(device.mutex);
  auto* pair = new QueuePair{};
  pair->context = pd->context;
  pair->pd = pd;
  pair->send_cq = attr->send_cq;
  pair->recv_cq = attr->recv_cq;
  pair->srq = attr->srq;
  pair->room = attr->cap.max_send_wr;
  pair->pieces = attr->cap.max_send_sge;
  pair->inline_bytes = attr->cap.max_inline_data;
  pair->qp_num = device.next_number++;
  ++static_cast<Completions*>(pair->send_cq)->users;
  ++static_cast<Receives*>(pair->srq)->users;
  device.pairs[pair->qp_num] = pair;
  return pair;
}

int Join(FakeRdma::State& device, const ibv_gid& gid) {
  for (size_t i = 0; i < device.devices.size(); ++i) {
    if (IsAt(gid, i)) return 0;
  }
  std::unique_lock lock(device.join_mutex);
  ++device.waiting;
  device.join_change.wait(lock, [&] { return device.fail_joins; });
  --device.waiting;
  return ETIMEDOUT;
}

int ModifyPair(ibv_qp* qp, ibv_qp_attr* attr, int mask) {
  FakeRdma::State& device = Devices();
  if (attr->qp_state == IBV_QPS_RTR) {
    if (int error = Join(device, attr->ah_attr.grh.dgid); error != 0) return error;
  }
  std::lock_guard lock(device.mutex);
  auto* pair = static_cast<QueuePair*>(qp);
  if (attr->qp_state == IBV_QPS_ERR) {
    if (device.destroy_error != 0) return device.destroy_error;
    device.Fail(pair);
    return 0;
  }
  if (pair->state == IBV_QPS_ERR) return EINVAL;
  if ((mask & IBV_QP_ACCESS_FLAGS) != 0) pair->access = attr->qp_access_flags;
  if (attr->qp_state == IBV_QPS_RTR) pair->peer = attr->dest_qp_num;
  if (attr->qp_state == IBV_QPS_RTR) pair->peer_gid = attr->ah_attr.grh.dgid;
  pair->state = attr->qp_state;
  return 0;
}

int DestroyPair(ibv_qp* qp) {
  FakeRdma::State& device = Devices();
  std::lock_guard lock(device.mutex);
  auto* pair = static_cast<QueuePair*>(qp);
  Require(device.pairs.contains(pair->qp_num), "a queue pair is destroyed twice");
  for (const auto& [key, window] : device.windows) {
    if (window->bound_by != pair || !window->left) continue;
    pair->left = true;
    return EBUSY;
  }
  if (device.destroy_error != 0) {
    pair->left = true;
    ++device.refusals;
    return device.destroy_error;
  }
  for (const auto& [key, window] : device.windows) {
    Require(window->bound_by != pair, "a queue pair goes before the windows that are bound through it");
  }
  auto* receives = static_cast<Receives*>(pair->srq);
  device.Forget(pair);
  if (device.traits.loses_receives && !receives->posted.empty()) receives->posted.pop_front();
  return 0;
}

int GetAsyncEvent(ibv_context* ibv, ibv_async_event* event) {
  FakeRdma::State& device = Devices();
  std::lock_guard lock(device.mutex);
  auto* context = static_cast<Context*>(ibv);
  // A queue pair that was destroyed meanwhile has left a signal without an event.
  while (TakeSignal(context->async_fd)) {
    if (context->events.empty()) continue;
    *event = context->events.front();
    context->events.pop_front();
    return 0;
  }
  return -1;
}

void AcknowledgeAsyncEvent(ibv_async_event*) {}
const char* EventName(ibv_event_type) { return "an event of the fake device"; }
const char* StatusName(ibv_wc_status status) {
  return status == IBV_WC_REM_ACCESS_ERR ? "remote access error" : "an error of the fake device";
}

}  // namespace

const Ibverbs kTable = {
    .get_device_list = GetDeviceList,
    .free_device_list = FreeDeviceList,
    .get_device_name = GetDeviceName,
    .open_device = OpenDevice,
    .close_device = CloseDevice,
    .query_device = QueryDevice,
    .query_port = QueryPort,
    .query_gid_ex = QueryGid,
    .query_gid_table = QueryGids,
    .alloc_pd = AllocateDomain,
    .dealloc_pd = FreeDomain,
    .reg_mr = Register,
    .reg_dmabuf_mr = RegisterDmaBuf,
    .dereg_mr = Deregister,
    .create_comp_channel = CreateChannel,
    .destroy_comp_channel = DestroyChannel,
    .create_cq = CreateCompletions,
    .destroy_cq = DestroyCompletions,
    .get_cq_event = GetCompletionEvent,
    .ack_cq_events = AcknowledgeCompletionEvents,
    .create_srq = CreateReceives,
    .destroy_srq = DestroyReceives,
    .create_qp = CreatePair,
    .modify_qp = ModifyPair,
    .destroy_qp = DestroyPair,
    .get_async_event = GetAsyncEvent,
    .ack_async_event = AcknowledgeAsyncEvent,
    .event_type_str = EventName,
    .wc_status_str = StatusName,
};

const Ibverbs kOldTable = [] {
  Ibverbs table = kTable;
  table.reg_dmabuf_mr = nullptr;
  return table;
}();

}  // namespace nacre::verbs::fake
