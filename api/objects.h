// The objects behind the handles of nacre.h: clients, files, buffers. Each lives as long as its handle, or as
// an operation that uses it. Thread-safe.
#pragma once

#include <nacre/nacre.h>

#include <absl/container/flat_hash_set.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "api/connection.h"
#include "api/handles.h"
#include "api/loose_memory.h"
#include "client/filesystem.h"
#include "gpu/device.h"

namespace nacre::api {

class Operation;   // api/operation.h
class Queue;       // api/queue.h
class SmallReads;  // api/small_reads.h
class Turn;        // api/turn.h

class Client {
 public:
  Client(std::shared_ptr<Connection> connection, bool by_mount);
  ~Client();

  Connection& connection() { return *connection_; }
  client::FileSystem& filesystem() { return connection_->filesystem(); }
  bool by_mount() const { return by_mount_; }  // paths are the process's, not the filesystem's
  LooseMemory& loose_memory() { return loose_memory_; }
  SmallReads& small_reads() { return *small_reads_; }

  // The operations under way. False: it is being closed.
  bool Begin(Operation* operation);
  void End(Operation* operation);
  // The queues that are open. False: it is being closed.
  bool Attach(std::shared_ptr<Queue> queue);
  void Detach(const Queue& queue);
  // Closes the queues, cancels the reads under way, and waits for them and for the writes; nothing begins any
  // more.
  void Finish();

 private:
  const std::shared_ptr<Connection> connection_;
  const bool by_mount_;
  const std::shared_ptr<SmallReads> small_reads_;
  LooseMemory loose_memory_;
  std::mutex mutex_;
  std::condition_variable idle_;
  absl::flat_hash_set<Operation*> operations_;
  std::vector<std::shared_ptr<Queue>> queues_;
  bool closed_ = false;
};

class File {
 public:
  File(std::shared_ptr<Client> client, Fid fid, client::HandlePtr handle, std::string path)
      : client_(std::move(client)), fid_(fid), handle_(std::move(handle)), path_(std::move(path)) {}
  // Releases the handle, behind.
  ~File();

  const std::shared_ptr<Client>& client() const { return client_; }
  const Fid& fid() const { return fid_; }
  const client::HandlePtr& handle() const { return handle_; }
  const std::string& path() const { return path_; }  // as it was opened

 private:
  const std::shared_ptr<Client> client_;
  const Fid fid_;
  const client::HandlePtr handle_;
  const std::string path_;
};

struct BufferTraits {
  nacre_memory memory = NACRE_MEMORY_HOST;
  std::shared_ptr<gpu::Device> device;                // whose memory it is
  nacre_verification verified = NACRE_VERIFIED_HOST;  // by whom what arrives there is
  bool writable = true;                               // may be read into
  uint64_t id = 0;  // of a device's allocation: another one at the same place has another
};

class Buffer {
 public:
  Buffer(std::shared_ptr<Client> client, std::shared_ptr<MemoryRegion> region, BufferTraits traits)
      : client_(std::move(client)), region_(std::move(region)), traits_(traits) {}

  const std::shared_ptr<Client>& client() const { return client_; }
  const std::shared_ptr<MemoryRegion>& region() const { return region_; }
  const BufferTraits& traits() const { return traits_; }

  // Somebody uses the memory. False: it was released.
  bool Begin();
  void End();
  // Waits until nobody does; nobody begins any more.
  void Release();

 private:
  const std::shared_ptr<Client> client_;
  const std::shared_ptr<MemoryRegion> region_;
  const BufferTraits traits_;
  std::mutex mutex_;
  std::condition_variable idle_;
  uint64_t users_ = 0;
  bool released_ = false;
};

// Everything that handles name.
struct Tables {
  Handles<Client> clients;
  Handles<File> files;
  Handles<Buffer> buffers;
  Handles<Operation> futures;
  Handles<Queue> queues;
  Handles<Turn> turns;
};
Tables& AllTables();

// EPERM, EBADF.
StatusOr<std::shared_ptr<Client>> FindClient(nacre_client client);
StatusOr<std::shared_ptr<File>> FindFile(nacre_file file);
StatusOr<std::shared_ptr<Buffer>> FindBuffer(nacre_buffer buffer);

// As whom the calling thread's process acts.
client::Caller CallingUser();

}  // namespace nacre::api
