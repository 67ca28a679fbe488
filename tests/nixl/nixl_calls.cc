// Does with our NIXL plugin what NIXL's agent does: loads it, makes an engine, registers segments, transfers.
// nixl_calls PLUGIN DIRECTORY ELSEWHERE: a directory on a mount and one that is on none; with the driver that
// NACRE_CUDA_LIBRARY names. Says "done", or what was wrong.
#include <backend/backend_plugin.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/nixl/lists.h"
#include "tests/system/programs/api/device.h"

namespace {

constexpr size_t kPart = 100'000, kParts = 64;
constexpr char kCanary = '\xA5';

#define CHECK(condition)                                                       \
  do {                                                                         \
    if (!(condition)) {                                                        \
      std::fprintf(stderr, "%s:%d: not %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                            \
    }                                                                          \
  } while (false)

std::string Random(size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

std::string ReadWhole(const std::string& path) {
  std::string bytes;
  char some[65536];
  const int fd = ::open(path.c_str(), O_RDONLY);
  CHECK(fd >= 0);
  for (ssize_t got; (got = ::read(fd, some, sizeof some)) > 0;) bytes.append(some, static_cast<size_t>(got));
  ::close(fd);
  return bytes;
}

nixlBackendPlugin* Load(const char* path) {
  void* library = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) std::fprintf(stderr, "%s\n", ::dlerror());
  CHECK(library != nullptr);
  auto* init = reinterpret_cast<nixlBackendPlugin* (*)()>(::dlsym(library, "nixl_plugin_init"));
  CHECK(init != nullptr);
  return init();
}

// One engine, as the agent has it.
class Backend {
 public:
  Backend(const nixlBackendPlugin& plugin, nixl_b_params_t parameters)
      : plugin_(plugin), parameters_(std::move(parameters)) {
    init_.localAgent = "test";
    init_.type = "NACRE";
    init_.customParams = &parameters_;
    engine_ = plugin_.create_engine(&init_);
    CHECK(engine_ != nullptr);
  }
  ~Backend() { plugin_.destroy_engine(engine_); }

  nixlBackendEngine* operator->() const { return engine_; }

  nixlBackendMD* Register(nixl_mem_t type, uintptr_t address, size_t length, uint64_t device,
                          const std::string& meta, nixl_status_t expected = NIXL_SUCCESS) const {
    nixlBlobDesc place;
    static_cast<nixlBasicDesc&>(place) = MakePlace(address, length, device);
    place.metaInfo = meta;
    nixlBackendMD* segment = nullptr;
    const nixl_status_t status = engine_->registerMem(place, type, segment);
    if (status != expected) std::fprintf(stderr, "registered: %d instead of %d\n", status, expected);
    CHECK(status == expected);
    return segment;
  }
  nixlBackendMD* RegisterFile(int fd) const {
    return Register(FILE_SEG, 0, 0, static_cast<uint64_t>(fd), "");
  }
  nixlBackendMD* RegisterMemory(void* memory, size_t size) const {
    return Register(DRAM_SEG, reinterpret_cast<uintptr_t>(memory), size, 0, "");
  }

  nixl_status_t Wait(nixlBackendReqH* request) const {
    nixl_status_t status = NIXL_IN_PROG;
    while ((status = engine_->checkXfer(request)) == NIXL_IN_PROG) std::this_thread::yield();
    return status;
  }

 private:
  const nixlBackendPlugin& plugin_;
  nixl_b_params_t parameters_;
  nixlBackendInitParams init_;
  nixlBackendEngine* engine_ = nullptr;
};

// Parts of memory and of a file, of equal length, in a shuffled order.
struct Pairs {
  Pairs(nixl_mem_t type, const void* memory, nixlBackendMD* memory_segment, nixlBackendMD* file, size_t parts,
        size_t length, uint64_t device = 0)
      : local(type, static_cast<int>(parts)), remote(FILE_SEG, static_cast<int>(parts)) {
    for (size_t i = 0; i < parts; ++i) {
      const size_t at = (i * 37 % parts) * length;
      static_cast<nixlBasicDesc&>(local[i]) =
          MakePlace(reinterpret_cast<uintptr_t>(memory) + at, length, device);
      local[i].metadataP = memory_segment;
      static_cast<nixlBasicDesc&>(remote[i]) = MakePlace(at, length, 0);
      remote[i].metadataP = file;
    }
  }

  nixl_meta_dlist_t local, remote;
};

nixl_status_t Prepare(const Backend& backend, nixl_xfer_op_t operation, const Pairs& pairs,
                      nixlBackendReqH** request) {
  return backend->prepXfer(operation, pairs.local, pairs.remote, "test", *request, nullptr);
}

nixl_status_t Post(const Backend& backend, nixl_xfer_op_t operation, const Pairs& pairs,
                   nixlBackendReqH* request) {
  return backend->postXfer(operation, pairs.local, pairs.remote, "test", request, nullptr);
}

nixl_status_t Transfer(const Backend& backend, nixl_xfer_op_t operation, const Pairs& pairs) {
  nixlBackendReqH* request = nullptr;
  CHECK(Prepare(backend, operation, pairs, &request) == NIXL_SUCCESS);
  CHECK(Post(backend, operation, pairs, request) == NIXL_IN_PROG);
  const nixl_status_t status = backend.Wait(request);
  CHECK(backend->releaseReqH(request) == NIXL_SUCCESS);
  return status;
}

int OpenAt(const std::string& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_CREAT, 0644);
  CHECK(fd >= 0);
  return fd;
}

void HostMemory(const Backend& backend, const std::string& path) {
  const std::string content = Random(kParts * kPart, 1);
  std::string memory = content, seen(content.size(), kCanary);
  const int fd = OpenAt(path, O_RDWR);
  nixlBackendMD* file = backend.RegisterFile(fd);
  ::close(fd);  // the segment has the file open by itself
  nixlBackendMD* from = backend.RegisterMemory(memory.data(), memory.size());
  nixlBackendMD* to = backend.RegisterMemory(seen.data(), seen.size());
  CHECK(Transfer(backend, NIXL_WRITE, Pairs(DRAM_SEG, memory.data(), from, file, kParts, kPart)) ==
        NIXL_SUCCESS);
  CHECK(ReadWhole(path) == content);
  const Pairs back(DRAM_SEG, seen.data(), to, file, kParts, kPart);
  nixlBackendReqH* request = nullptr;
  CHECK(Prepare(backend, NIXL_READ, back, &request) == NIXL_SUCCESS);
  for (int round = 0; round < 3; ++round) {
    std::fill(seen.begin(), seen.end(), kCanary);
    CHECK(Post(backend, NIXL_READ, back, request) == NIXL_IN_PROG);
    CHECK(Post(backend, NIXL_READ, back, request) == NIXL_ERR_REPOST_ACTIVE);
    CHECK(backend.Wait(request) == NIXL_SUCCESS);
    CHECK(seen == content);
  }
  CHECK(backend->releaseReqH(request) == NIXL_SUCCESS);

  // Released before its end: nothing arrives afterwards.
  CHECK(Prepare(backend, NIXL_READ, back, &request) == NIXL_SUCCESS);
  CHECK(Post(backend, NIXL_READ, back, request) == NIXL_IN_PROG);
  CHECK(backend->releaseReqH(request) == NIXL_SUCCESS);
  std::fill(seen.begin(), seen.end(), kCanary);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  CHECK(seen == std::string(seen.size(), kCanary));

  // Behind the end of the file.
  const Pairs beyond(DRAM_SEG, seen.data(), to, file, 1, content.size());
  CHECK(::truncate(path.c_str(), 1000) == 0);
  CHECK(Transfer(backend, NIXL_READ, beyond) == NIXL_ERR_BACKEND);
  for (nixlBackendMD* segment : {file, from, to}) CHECK(backend->deregisterMem(segment) == NIXL_SUCCESS);
}

// More parts than may be under way at once.
void ManyParts(const Backend& backend, const std::string& path) {
  constexpr size_t kMany = 10'000, kLength = 512;
  std::string content = Random(kMany * kLength, 2), seen(content.size(), kCanary);
  const int fd = OpenAt(path, O_RDWR);
  CHECK(::write(fd, content.data(), content.size()) == static_cast<ssize_t>(content.size()));
  nixlBackendMD* file = backend.RegisterFile(fd);
  nixlBackendMD* to = backend.RegisterMemory(seen.data(), seen.size());
  CHECK(Transfer(backend, NIXL_READ, Pairs(DRAM_SEG, seen.data(), to, file, kMany, kLength)) == NIXL_SUCCESS);
  CHECK(seen == content);
  ::close(fd);
  for (nixlBackendMD* segment : {file, to}) CHECK(backend->deregisterMem(segment) == NIXL_SUCCESS);
}

void FilesByPath(const Backend& backend, const std::string& path, const std::string& elsewhere) {
  std::string memory = Random(kPart, 3);
  nixlBackendMD* from = backend.RegisterMemory(memory.data(), memory.size());
  nixlBackendMD* file = backend.Register(FILE_SEG, 0, 0, 4711, "rw,create,sync:" + path);
  CHECK(Transfer(backend, NIXL_WRITE, Pairs(DRAM_SEG, memory.data(), from, file, 1, kPart)) == NIXL_SUCCESS);
  CHECK(ReadWhole(path) == memory);
  (void)backend.Register(FILE_SEG, 0, 0, 4711, "ro:" + path, NIXL_ERR_INVALID_PARAM);
  CHECK(backend->deregisterMem(file) == NIXL_SUCCESS);
  file = backend.Register(FILE_SEG, 0, 0, 4711, "ro,direct:" + path);
  CHECK(Transfer(backend, NIXL_WRITE, Pairs(DRAM_SEG, memory.data(), from, file, 1, kPart)) ==
        NIXL_ERR_INVALID_PARAM);
  for (nixlBackendMD* segment : {file, from}) CHECK(backend->deregisterMem(segment) == NIXL_SUCCESS);
  (void)backend.Register(FILE_SEG, 0, 0, 1, "ro:" + path + ".nowhere", NIXL_ERR_NOT_FOUND);
  const int fd = OpenAt(elsewhere + "/file", O_RDWR);
  (void)backend.Register(FILE_SEG, 0, 0, static_cast<uint64_t>(fd), "", NIXL_ERR_NOT_SUPPORTED);
  ::close(fd);

  nixl_reg_dlist_t asked(FILE_SEG, 2);
  asked[0].metaInfo = path;
  asked[1].metaInfo = path + ".nowhere";
  std::vector<nixl_query_resp_t> answers;
  CHECK(backend->queryMem(asked, answers) == NIXL_SUCCESS);
  CHECK(answers.size() == 2 && answers[0] && answers[0]->at("size") == std::to_string(kPart) && !answers[1]);
}

void GpuMemory(const Backend& backend, const std::string& path) {
  device_open();
  const std::string content = Random(kParts * kPart, 4);
  const int fd = OpenAt(path, O_RDWR);
  CHECK(::write(fd, content.data(), content.size()) == static_cast<ssize_t>(content.size()));
  const int copy_fd = OpenAt(path + ".copy", O_RDWR);
  void* memory = device_allocate(content.size());
  nixlBackendMD* file = backend.RegisterFile(fd);
  nixlBackendMD* copy = backend.RegisterFile(copy_fd);
  const auto address = reinterpret_cast<uintptr_t>(memory);
  (void)backend.Register(DRAM_SEG, address, content.size(), 0, "", NIXL_ERR_INVALID_PARAM);
  (void)backend.Register(VRAM_SEG, address, content.size(), 5, "", NIXL_ERR_INVALID_PARAM);
  nixlBackendMD* segment = backend.Register(VRAM_SEG, address, content.size(), 0, "");
  CHECK(Transfer(backend, NIXL_READ, Pairs(VRAM_SEG, memory, segment, file, kParts, kPart)) == NIXL_SUCCESS);
  std::string seen(content.size(), kCanary);
  device_copy_out(seen.data(), memory, seen.size());
  CHECK(seen == content);
  CHECK(Transfer(backend, NIXL_WRITE, Pairs(VRAM_SEG, memory, segment, copy, kParts, kPart)) == NIXL_SUCCESS);
  CHECK(ReadWhole(path + ".copy") == content);
  for (nixlBackendMD* one : {file, copy, segment}) CHECK(backend->deregisterMem(one) == NIXL_SUCCESS);
  device_free(memory);
  ::close(fd);
  ::close(copy_fd);
}

void WhatIsWrong(const Backend& backend, const std::string& path) {
  std::string memory(kPart, kCanary);
  const int fd = OpenAt(path, O_RDWR);
  nixlBackendMD* file = backend.RegisterFile(fd);
  nixlBackendMD* to = backend.RegisterMemory(memory.data(), memory.size());
  nixlBackendReqH* request = nullptr;
  const Pairs outside(DRAM_SEG, memory.data() + 1, to, file, 1, kPart);
  CHECK(Prepare(backend, NIXL_READ, outside, &request) == NIXL_ERR_INVALID_PARAM);
  const Pairs swapped(DRAM_SEG, memory.data(), file, to, 1, kPart);
  CHECK(Prepare(backend, NIXL_READ, swapped, &request) == NIXL_ERR_INVALID_PARAM);
  Pairs unequal(DRAM_SEG, memory.data(), to, file, 1, kPart);
  unequal.remote[0].len -= 1;
  CHECK(Prepare(backend, NIXL_READ, unequal, &request) == NIXL_ERR_INVALID_PARAM);
  for (nixlBackendMD* segment : {file, to}) CHECK(backend->deregisterMem(segment) == NIXL_SUCCESS);
  ::close(fd);
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc == 4);
  const std::string directory = argv[2], elsewhere = argv[3];
  const nixlBackendPlugin& plugin = *Load(argv[1]);
  CHECK(plugin.api_version == NIXL_PLUGIN_API_VERSION && std::string(plugin.get_plugin_name()) == "NACRE");
  CHECK(plugin.get_backend_mems().size() == 3 && plugin.get_backend_options().count("mount") == 1);
  {
    const Backend none(plugin, {{"mount", elsewhere}});
    CHECK(none->getInitErr());
  }
  {
    // Memory that is registered before any filesystem is known.
    const Backend late(plugin, {});
    CHECK(!late->getInitErr() && late->supportsLocal() && !late->supportsRemote());
    HostMemory(late, directory + "/host");
  }
  const Backend backend(plugin, {{"mount", directory}});
  CHECK(!backend->getInitErr());
  ManyParts(backend, directory + "/many");
  FilesByPath(backend, directory + "/named", elsewhere);
  WhatIsWrong(backend, directory + "/wrong");
  GpuMemory(backend, directory + "/gpu");
  std::puts("done");
}
