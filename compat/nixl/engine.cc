#include "compat/nixl/engine.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <climits>
#include <memory>

#include "compat/nixl/answers.h"
#include "compat/nixl/file_name.h"
#include "compat/nixl/segments.h"
#include "compat/nixl/transfer.h"

namespace nacre::nixl {
namespace {

std::string Parameter(const nixl_b_params_t& given, const std::string& name) {
  const auto found = given.find(name);
  return found == given.end() ? "" : found->second;
}

bool IsMemory(nixl_mem_t type) { return type == DRAM_SEG || type == VRAM_SEG; }

// The file's part and the memory's.
Error AddPair(const Client& client, const nixlMetaDesc& memory, const nixlMetaDesc& file,
              Transfer* transfer) {
  auto* segment = dynamic_cast<MemorySegment*>(memory.metadataP);
  const auto* opened = dynamic_cast<const FileSegment*>(file.metadataP);
  if (segment == nullptr || opened == nullptr)
    return Error(EINVAL, "a segment that was not registered with this backend");
  if (memory.len != file.len) {
    return Error(EINVAL, std::to_string(memory.len) + " bytes of memory and " + std::to_string(file.len) +
                             " of a file in one pair");
  }
  auto span = segment->Find(client, memory);
  if (!span) return span.error();
  transfer->Add(*opened, file.addr, *span);
  return {};
}

}  // namespace

nixl_b_params_t Parameters() { return {{"mount", ""}, {"transport", ""}, {"verify", "true"}}; }

nixl_mem_list_t Segments() { return {FILE_SEG, DRAM_SEG, VRAM_SEG}; }

Engine::Engine(const nixlBackendInitParams* parameters) : nixlBackendEngine(parameters) {
  const nixl_b_params_t& given = getCustomParams();
  options_.transport = Parameter(given, "transport");
  const std::string verify = Parameter(given, "verify");
  options_.verify = verify != "false" && verify != "False" && verify != "0";
  const std::string mount = Parameter(given, "mount");
  if (mount.empty()) return;
  if (const Error error = Open(mount)) {
    Say("mount " + mount + ": " + error.message());
    initErr = true;
  }
}

// --- segments ---

// The filesystem that the path is on, if none is known yet.
Error Engine::Open(const std::string& path) {
  std::lock_guard lock(mutex_);
  if (client_) return {};
  auto client = Client::from_path(path, options_);
  if (!client) return client.error();
  client_ = *std::move(client);
  return {};
}

const Client* Engine::OpenClient() const {
  std::lock_guard lock(mutex_);
  return client_ ? &*client_ : nullptr;
}

nixl_status_t Engine::registerMem(const nixlBlobDesc& place, const nixl_mem_t& type, nixlBackendMD*& out) {
  out = nullptr;
  if (type == FILE_SEG) return RegisterFile(place, out);
  if (IsMemory(type)) return RegisterMemory(place, type, out);
  return Fail(NIXL_ERR_NOT_SUPPORTED, "there are FILE, DRAM and VRAM segments");
}

nixl_status_t Engine::RegisterFile(const nixlBlobDesc& place, nixlBackendMD*& out) {
  const std::optional<FileName> name = ParseFileName(place.metaInfo);
  if (!name && place.devId > INT_MAX) return Fail(NIXL_ERR_INVALID_PARAM, "that is no descriptor of a file");
  const std::string path = name ? name->path : "/proc/self/fd/" + std::to_string(place.devId);
  // A file that is yet to be made is on the filesystem of its directory.
  const size_t slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const bool makes = name && (name->flags & O_CREAT) != 0;
  if (const Error error = Open(makes ? directory : path)) return Fail(error, path);
  if (name) {
    std::lock_guard lock(mutex_);
    if (!numbers_.insert(place.devId).second)
      return Fail(NIXL_ERR_INVALID_PARAM,
                  path + ": another file has the number " + std::to_string(place.devId) + " already");
  }
  const Client& client = *OpenClient();
  auto file =
      name ? client.open_file(path, name->flags, 0644) : client.file_from_fd(static_cast<int>(place.devId));
  if (!file) {
    std::lock_guard lock(mutex_);
    if (name) numbers_.erase(place.devId);
    return Fail(file.error(), path);
  }
  out = new FileSegment(*std::move(file), name && name->sync,
                        name ? std::optional<uint64_t>(place.devId) : std::nullopt);
  return NIXL_SUCCESS;
}

nixl_status_t Engine::RegisterMemory(const nixlBlobDesc& place, nixl_mem_t type, nixlBackendMD*& out) {
  auto segment = std::make_unique<MemorySegment>(place, type);
  if (const Client* client = OpenClient(); client != nullptr) {
    if (const Error error = segment->Register(*client)) return Fail(error, "a memory segment");
  }
  out = segment.release();
  return NIXL_SUCCESS;
}

nixl_status_t Engine::deregisterMem(nixlBackendMD* segment) {
  if (const auto* file = dynamic_cast<FileSegment*>(segment); file != nullptr && file->own_number) {
    std::lock_guard lock(mutex_);
    numbers_.erase(*file->own_number);
  }
  delete segment;
  return NIXL_SUCCESS;
}

nixl_status_t Engine::loadLocalMD(nixlBackendMD* input, nixlBackendMD*& output) {
  output = input;
  return NIXL_SUCCESS;
}

nixl_status_t Engine::unloadMD(nixlBackendMD*) { return NIXL_SUCCESS; }

// Only with itself, for which nothing is needed.
nixl_status_t Engine::connect(const std::string&) { return NIXL_SUCCESS; }
nixl_status_t Engine::disconnect(const std::string&) { return NIXL_SUCCESS; }

// --- transfers ---

nixl_status_t Engine::prepXfer(const nixl_xfer_op_t& operation, const nixl_meta_dlist_t& local,
                               const nixl_meta_dlist_t& remote, const std::string&, nixlBackendReqH*& handle,
                               const nixl_opt_b_args_t*) const {
  if (!IsMemory(local.getType()) || remote.getType() != FILE_SEG)
    return Fail(NIXL_ERR_NOT_SUPPORTED, "transfers are between local memory and files as the remote side");
  if (local.descCount() != remote.descCount() || local.descCount() == 0)
    return Fail(NIXL_ERR_INVALID_PARAM, "a transfer pairs each part of memory with one of a file");
  const Client* client = OpenClient();
  if (client == nullptr) return Fail(NIXL_ERR_INVALID_PARAM, "no file was registered");
  auto transfer = std::make_unique<Transfer>(operation);
  for (int i = 0; i < local.descCount(); ++i) {
    const auto at = static_cast<size_t>(i);
    if (const Error error = AddPair(*client, local[at], remote[at], transfer.get()))
      return Fail(error, "pair " + std::to_string(i) + " of a transfer");
  }
  if (const Error error = transfer->Open(*client)) return Fail(error, "a transfer");
  handle = transfer.release();
  return NIXL_SUCCESS;
}

nixl_status_t Engine::postXfer(const nixl_xfer_op_t&, const nixl_meta_dlist_t&, const nixl_meta_dlist_t&,
                               const std::string&, nixlBackendReqH*& handle, const nixl_opt_b_args_t*) const {
  auto* transfer = dynamic_cast<Transfer*>(handle);
  return transfer == nullptr ? NIXL_ERR_INVALID_PARAM : transfer->Post();
}

nixl_status_t Engine::checkXfer(nixlBackendReqH* handle) const {
  auto* transfer = dynamic_cast<Transfer*>(handle);
  return transfer == nullptr ? NIXL_ERR_INVALID_PARAM : transfer->Check();
}

nixl_status_t Engine::releaseReqH(nixlBackendReqH* handle) const {
  delete handle;
  return NIXL_SUCCESS;
}

// --- what files are like ---

nixl_status_t Engine::queryMem(const nixl_reg_dlist_t& files, std::vector<nixl_query_resp_t>& answers) const {
  answers.clear();
  for (int i = 0; i < files.descCount(); ++i) {
    const std::string& meta = files[static_cast<size_t>(i)].metaInfo;
    const std::optional<FileName> name = ParseFileName(meta);
    struct stat known {};
    if (::stat(name ? name->path.c_str() : meta.c_str(), &known) != 0) {
      answers.emplace_back(std::nullopt);
      continue;
    }
    answers.emplace_back(nixl_b_params_t{{"size", std::to_string(known.st_size)},
                                         {"mode", std::to_string(known.st_mode)},
                                         {"mtime", std::to_string(known.st_mtime)}});
  }
  return NIXL_SUCCESS;
}

}  // namespace nacre::nixl
