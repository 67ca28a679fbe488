#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

#include "tests/transport/verbs/fake_rdma_state.h"

namespace nacre::verbs {

using namespace fake;

namespace {

std::mutex g_mutex;
std::shared_ptr<FakeRdma::State> g_state;
FakeRdma* g_device = nullptr;

}  // namespace

FakeRdma::State& fake::Devices() {
  std::lock_guard lock(g_mutex);
  Require(g_state != nullptr, "there is no device");
  return *g_state;
}

FakeRdma::State::State(Traits traits) : traits(traits), devices(static_cast<size_t>(traits.devices)) {
  char name[] = "/tmp/nacre-fake-rdma.XXXXXX";
  Require(::mkdtemp(name) != nullptr, "no directory to stand for the devices");
  directory = name;
  for (size_t i = 0; i < devices.size(); ++i) {
    Device& device = devices[i];
    const std::string own = "fake" + std::to_string(i);
    device.path = directory + "/" + own;
    std::filesystem::create_directories(device.path + "/device");
    std::ofstream(device.path + "/device/numa_node") << (traits.nodes ? static_cast<int>(i) : -1);
    device.listed.transport_type = IBV_TRANSPORT_IB;
    device.listed.node_type = IBV_NODE_CA;
    std::snprintf(device.listed.name, sizeof device.listed.name, "%s", own.c_str());
    std::snprintf(device.listed.dev_path, sizeof device.listed.dev_path, "%s", device.path.c_str());
    std::snprintf(device.listed.ibdev_path, sizeof device.listed.ibdev_path, "%s", device.path.c_str());
  }
}

FakeRdma::State::~State() { std::filesystem::remove_all(directory); }

// --- what work requests do ---

void FakeRdma::State::Push(ibv_cq* queue, const ibv_wc& completion) {
  auto* completions = static_cast<Completions*>(queue);
  completions->done.push_back(completion);
  Require(static_cast<int>(completions->done.size()) <= queue->cqe, "a completion queue runs over");
  if (!std::exchange(completions->armed, false)) return;
  static_cast<Events*>(queue->channel)->ready.push_back(queue);
  Signal(queue->channel->fd);
}

uint64_t FakeRdma::State::BytesOf(const Work& work) {
  const ibv_wr_opcode opcode = work.request.opcode;
  uint64_t bytes = 0;
  if (opcode != IBV_WR_RDMA_READ && opcode != IBV_WR_RDMA_WRITE) return bytes;
  for (const ibv_sge& piece : work.pieces) bytes += piece.length;
  return bytes;
}

void FakeRdma::State::Complete(QueuePair* pair, const Work& work, ibv_wc_status status) {
  ibv_wc completion{};
  completion.wr_id = work.request.wr_id;
  completion.status = status;
  completion.qp_num = pair->qp_num;
  completion.byte_len = static_cast<uint32_t>(BytesOf(work));
  Push(pair->send_cq, completion);
}

void FakeRdma::State::Tell(Context* context, ibv_event_type type, ibv_qp* pair) {
  ibv_async_event event{};
  event.event_type = type;
  event.element.qp = pair;
  context->events.push_back(event);
  Signal(context->async_fd);
}

void FakeRdma::State::Fail(QueuePair* pair) {
  if (pair->state == IBV_QPS_ERR) return;
  pair->state = IBV_QPS_ERR;
  for (const Work& work : std::exchange(pair->work, {})) Complete(pair, work, IBV_WC_WR_FLUSH_ERR);
  if (traits.last_receive_events) {
    Tell(static_cast<Context*>(pair->context), IBV_EVENT_QP_LAST_WQE_REACHED, pair);
  }
}

bool FakeRdma::State::LocalIsFine(const QueuePair& pair, const ibv_sge& piece, unsigned access) {
  auto found = regions.find(piece.lkey);
  if (found == regions.end()) return false;
  const Region& region = *found->second;
  return region.pd == pair.pd && (region.access & access) == access &&
         region.Contains(piece.addr, piece.length);
}

// Returns the region that a peer of `at` may access under the key that it names; null: it may not.
const Region* FakeRdma::State::FindRemote(const QueuePair& at, uint32_t key, uint64_t address,
                                          uint64_t length, unsigned access) {
  if ((key & kWindowKey) != 0) {
    auto found = windows.find(key & ~0xffu);
    if (found == windows.end()) return nullptr;
    const Window& window = *found->second;
    const bool may = window.region != nullptr && window.key == key && window.bound_by == &at &&
                     (window.access & access) == access && address >= window.address &&
                     length <= window.length - std::min(window.length, address - window.address);
    return may ? window.region : nullptr;
  }
  auto found = regions.find(key);
  if (found == regions.end()) return nullptr;
  const Region& region = *found->second;
  const bool may =
      region.pd == at.pd && (region.access & access) == access && region.Contains(address, length);
  return may ? &region : nullptr;
}

std::string FakeRdma::State::Gather(const Work& work) {
  if ((work.request.send_flags & IBV_SEND_INLINE) != 0) return work.inlined;
  std::string bytes;
  for (const ibv_sge& piece : work.pieces) {
    bytes.append(reinterpret_cast<const char*>(piece.addr), piece.length);
  }
  return bytes;
}

ibv_wc_status FakeRdma::State::SendTo(QueuePair* to, const Work& work) {
  auto* receives = static_cast<Receives*>(to->srq);
  const std::string bytes = Gather(work);
  const Receive receive = receives->posted.front();
  receives->posted.pop_front();
  Require(LocalIsFine(*to, receive.piece, IBV_ACCESS_LOCAL_WRITE),
          "a receive into memory that is not registered");
  ibv_wc completion{};
  completion.wr_id = receive.id;
  completion.opcode = IBV_WC_RECV;
  completion.qp_num = to->qp_num;
  completion.byte_len = static_cast<uint32_t>(bytes.size());
  if (bytes.size() > receive.piece.length) {
    completion.status = IBV_WC_LOC_LEN_ERR;
    Push(to->recv_cq, completion);
    Fail(to);
    return IBV_WC_REM_INV_REQ_ERR;
  }
  std::memcpy(reinterpret_cast<void*>(receive.piece.addr), bytes.data(), bytes.size());
  Push(to->recv_cq, completion);
  return IBV_WC_SUCCESS;
}

void FakeRdma::State::Unbind(Window* window) {
  if (window->region != nullptr) --window->region->windows;
  window->region = nullptr;
  window->bound_by = nullptr;
}

void FakeRdma::State::Forget(QueuePair* pair) {
  pairs.erase(pair->qp_num);
  --static_cast<Completions*>(pair->send_cq)->users;
  --static_cast<Receives*>(pair->srq)->users;
  std::erase_if(static_cast<Context*>(pair->context)->events,
                [&](const ibv_async_event& event) { return event.element.qp == pair; });
  delete pair;
}

namespace {

template <typename Objects>
void DeleteAllOf(const Context* context, Objects* objects) {
  std::erase_if(*objects, [&](auto* object) {
    if (object->context != context) return false;
    delete object;
    return true;
  });
}

}  // namespace

// The order is that of what needs what.
void FakeRdma::State::CloseAllOf(const Context* context) {
  std::erase_if(windows, [&](const auto& known) {
    if (known.second->context != context) return false;
    Unbind(known.second);
    delete known.second;
    return true;
  });
  for (auto pair = pairs.begin(); pair != pairs.end();) {
    QueuePair* const own = (pair++)->second;
    if (own->context == context) Forget(own);
  }
  std::erase_if(regions, [&](const auto& known) {
    if (known.second->context != context) return false;
    delete known.second;
    return true;
  });
  DeleteAllOf(context, &receives);
  DeleteAllOf(context, &completions);
  DeleteAllOf(context, &channels);
  DeleteAllOf(context, &domains);
}

ibv_wc_status FakeRdma::State::Bind(QueuePair* pair, const Work& work) {
  const auto& bind = work.request.bind_mw;
  auto found = windows.find(bind.rkey & ~0xffu);
  if (found == windows.end() || found->second != bind.mw || bind.mw->pd != pair->pd)
    return IBV_WC_MW_BIND_ERR;
  if (!traits.binds) return IBV_WC_MW_BIND_ERR;
  Window* window = found->second;
  auto* region = static_cast<Region*>(bind.bind_info.mr);
  const bool inside =
      bind.bind_info.length > 0 && region->Contains(bind.bind_info.addr, bind.bind_info.length);
  const bool writes = (bind.bind_info.mw_access_flags & IBV_ACCESS_REMOTE_WRITE) != 0;
  if (window->region != nullptr || bind.rkey == window->key || work.window_key != window->key || !inside ||
      (region->access & IBV_ACCESS_MW_BIND) == 0 ||
      (writes && (region->access & IBV_ACCESS_LOCAL_WRITE) == 0)) {
    return IBV_WC_MW_BIND_ERR;
  }
  window->key = bind.rkey;
  window->region = region;
  window->bound_by = pair;
  window->address = bind.bind_info.addr;
  window->length = bind.bind_info.length;
  window->access = bind.bind_info.mw_access_flags;
  ++region->windows;
  return IBV_WC_SUCCESS;
}

ibv_wc_status FakeRdma::State::Invalidate(QueuePair* pair, uint32_t key) {
  auto found = windows.find(key & ~0xffu);
  if (found == windows.end() || found->second->key != key || found->second->bound_by != pair) {
    return IBV_WC_MW_BIND_ERR;
  }
  Unbind(found->second);
  return IBV_WC_SUCCESS;
}

// GENERAL_ERR stands for "not yet".
ibv_wc_status FakeRdma::State::Carry(QueuePair* from, const Work& work) {
  if (work.request.opcode == IBV_WR_BIND_MW) return Bind(from, work);
  if (work.request.opcode == IBV_WR_LOCAL_INV) return Invalidate(from, work.request.invalidate_rkey);
  const bool read = work.request.opcode == IBV_WR_RDMA_READ;
  uint64_t length = work.inlined.size();
  for (const ibv_sge& piece : work.pieces) {
    if ((work.request.send_flags & IBV_SEND_INLINE) != 0) break;
    if (!LocalIsFine(*from, piece, read ? IBV_ACCESS_LOCAL_WRITE : 0)) return IBV_WC_LOC_PROT_ERR;
    length += piece.length;
  }
  auto found = pairs.find(from->peer);
  if (found == pairs.end() || (found->second->state != IBV_QPS_RTR && found->second->state != IBV_QPS_RTS) ||
      found->second->peer != from->qp_num) {
    return IBV_WC_RETRY_EXC_ERR;
  }
  QueuePair* to = found->second;
  const size_t here = DeviceOf(from->context), there_device = DeviceOf(to->context);
  if (!IsAt(from->peer_gid, there_device) || (traits.isolated && here != there_device)) {
    return IBV_WC_RETRY_EXC_ERR;
  }
  if (work.request.opcode == IBV_WR_SEND) {
    if (static_cast<Receives*>(to->srq)->posted.empty() || deaf.contains(to->qp_num))
      return IBV_WC_GENERAL_ERR;
    return SendTo(to, work);
  }
  const unsigned access = read ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
  const auto& remote = work.request.wr.rdma;
  const Region* region = FindRemote(*to, remote.rkey, remote.remote_addr, length, access);
  if ((to->access & access) == 0 || (length > 0 && region == nullptr)) {
    Fail(to);
    return IBV_WC_REM_ACCESS_ERR;
  }
  if (length == 0) return IBV_WC_SUCCESS;
  const std::byte* there = region->At(remote.remote_addr);
  if (!read) {
    const std::string bytes = Gather(work);
    std::memcpy(region->At(remote.remote_addr), bytes.data(), bytes.size());
    return IBV_WC_SUCCESS;
  }
  for (const ibv_sge& piece : work.pieces) {
    std::memcpy(reinterpret_cast<void*>(piece.addr), there, piece.length);
    there += piece.length;
  }
  return IBV_WC_SUCCESS;
}

void FakeRdma::State::Drain(QueuePair* pair) {
  while (!pair->work.empty()) {
    const ibv_wc_status status = Carry(pair, pair->work.front());
    if (status == IBV_WC_GENERAL_ERR) return;
    const Work work = std::move(pair->work.front());
    pair->work.pop_front();
    Complete(pair, work, status);
    if (status != IBV_WC_SUCCESS) Fail(pair);
  }
}

void FakeRdma::State::DrainAll() {
  for (const auto& [number, pair] : pairs) Drain(pair);
}

FakeRdma::FakeRdma(Traits traits) : state_(std::make_shared<State>(traits)) {
  std::lock_guard lock(g_mutex);
  Require(g_device == nullptr, "there can be only one");
  g_device = this;
  g_state = state_;
  UseIbverbs(traits.dma_bufs ? &kTable : &kOldTable);
}

FakeRdma::~FakeRdma() {
  LetJoinsFail();
  std::lock_guard lock(g_mutex);
  g_device = nullptr;
  UseIbverbs(nullptr);
}

FakeRdma* FakeRdma::Current() {
  std::lock_guard lock(g_mutex);
  return g_device;
}

void FakeRdma::Remove(int number) {
  std::lock_guard lock(state_->mutex);
  Device& device = state_->devices[static_cast<size_t>(number)];
  if (!std::exchange(device.removed, true)) std::filesystem::rename(device.path, device.path + ".removed");
}

void FakeRdma::Restore(int number) {
  std::lock_guard lock(state_->mutex);
  Device& device = state_->devices[static_cast<size_t>(number)];
  if (std::exchange(device.removed, false)) std::filesystem::rename(device.path + ".removed", device.path);
}

void FakeRdma::BreakDown(int number) {
  std::lock_guard lock(state_->mutex);
  for (const auto& [queue_pair, pair] : state_->pairs) {
    if (DeviceOf(pair->context) == static_cast<size_t>(number)) state_->Fail(pair);
  }
  for (Context* context : state_->devices[static_cast<size_t>(number)].open) {
    state_->Tell(context, IBV_EVENT_DEVICE_FATAL, nullptr);
  }
}

void FakeRdma::LetJoinsFail() {
  std::lock_guard lock(state_->join_mutex);
  state_->fail_joins = true;
  state_->join_change.notify_all();
}

int FakeRdma::waiting_joins() const {
  std::lock_guard lock(state_->join_mutex);
  return state_->waiting;
}

void FakeRdma::MakeDeaf(uint32_t queue_pair) {
  std::lock_guard lock(state_->mutex);
  state_->deaf.insert(queue_pair);
}

void FakeRdma::MakeAllDeaf(std::optional<int> device) {
  std::lock_guard lock(state_->mutex);
  for (const auto& [number, pair] : state_->pairs) {
    if (!device || DeviceOf(pair->context) == static_cast<size_t>(*device)) state_->deaf.insert(number);
  }
}

void FakeRdma::RefuseDmaBufs(int error, int device) {
  std::lock_guard lock(state_->mutex);
  state_->dma_buf_error = error;
  state_->dma_buf_device = device;
}

void FakeRdma::RefuseMemory(int error, const void* address) {
  std::lock_guard lock(state_->mutex);
  state_->refused_memory = address;
  state_->memory_error = error;
}

void FakeRdma::UsePeerMemory(PeerMemory peer_memory) {
  std::lock_guard lock(state_->mutex);
  state_->peer_memory = std::move(peer_memory);
}

void FakeRdma::RefuseToDestroy(int error) {
  std::lock_guard lock(state_->mutex);
  state_->destroy_error = error;
}

void FakeRdma::RefuseToFreeWindows(int error) {
  std::lock_guard lock(state_->mutex);
  state_->window_error = error;
}

void FakeRdma::RefuseBindings(int error, uint64_t longest) {
  std::lock_guard lock(state_->mutex);
  state_->binding_error = error;
  state_->longest_binding = longest;
}

void FakeRdma::HoldRegistration(const void* address) {
  std::lock_guard lock(state_->join_mutex);
  state_->held_memory = address;
  state_->join_change.notify_all();
}

bool FakeRdma::holds() const {
  std::lock_guard lock(state_->join_mutex);
  return state_->holding;
}

int FakeRdma::refusals() const {
  std::lock_guard lock(state_->mutex);
  return state_->refusals;
}

int FakeRdma::left() const {
  std::lock_guard lock(state_->mutex);
  const auto is_left = [](const auto& known) { return known.second->left; };
  return static_cast<int>(std::count_if(state_->pairs.begin(), state_->pairs.end(), is_left) +
                          std::count_if(state_->windows.begin(), state_->windows.end(), is_left));
}

int FakeRdma::regions() const {
  std::lock_guard lock(state_->mutex);
  return static_cast<int>(state_->regions.size());
}

int FakeRdma::queue_pairs() const {
  std::lock_guard lock(state_->mutex);
  return static_cast<int>(state_->pairs.size());
}

int FakeRdma::queue_pairs(int device) const {
  std::lock_guard lock(state_->mutex);
  return static_cast<int>(std::count_if(state_->pairs.begin(), state_->pairs.end(), [&](const auto& pair) {
    return DeviceOf(pair.second->context) == static_cast<size_t>(device);
  }));
}

int FakeRdma::opened() const {
  std::lock_guard lock(state_->mutex);
  return state_->opened;
}

int FakeRdma::open_contexts() const {
  std::lock_guard lock(state_->mutex);
  int open = 0;
  for (const Device& device : state_->devices) open += static_cast<int>(device.open.size());
  return open;
}

uint64_t FakeRdma::most_bytes_under_way() const {
  std::lock_guard lock(state_->mutex);
  return state_->most_under_way;
}

int FakeRdma::bound_windows() const {
  std::lock_guard lock(state_->mutex);
  int bound = 0;
  for (const auto& [key, window] : state_->windows) bound += window->region != nullptr ? 1 : 0;
  return bound;
}

int FakeRdma::receives() const {
  std::lock_guard lock(state_->mutex);
  int posted = 0;
  for (const Receives* queue : state_->receives) posted += static_cast<int>(queue->posted.size());
  return posted;
}

}  // namespace nacre::verbs
