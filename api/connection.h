// A session with one filesystem and the threads that serve it. Clients of one process that open the same
// address with the same options share one: two sessions would take each other's leases.
//
// Thread-safe. Open, Run, Leave and the destructor block: not for the connection's own threads. Errors name
// the address.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>

#include "client/filesystem.h"
#include "common/runtime.h"
#include "transport/transport.h"

namespace nacre::api {

struct ConnectionOptions {
  std::string mds;
  std::string name;  // part of what nacre status calls it
  std::string transport = "auto";
  unsigned threads = 0;
  client::Options client;

  bool operator==(const ConnectionOptions& other) const;
};

class Connection {
 public:
  // The one that is there, or a new one.
  static StatusOr<std::shared_ptr<Connection>> Open(ConnectionOptions options);
  // Every connection of the process, at its end: sends what was written, but waits no longer than this.
  static void CloseAll(Duration patience);

  ~Connection();

  const std::string& mds() const { return options_.mds; }
  const ConnectionOptions& options() const { return options_; }
  client::FileSystem& filesystem() { return *filesystem_; }
  Transport& transport() { return *transport_; }
  Executor executor() { return runtime_.executor(); }

  template <typename T>
  T Run(Task<T> task) {
    return runtime_.Run(std::move(task));
  }
  // Nobody waits for it but Close.
  void Start(Task<void> task);

  // One user less; the last one ends the session. The error is of what could not be sent.
  Status Leave();

 private:
  explicit Connection(ConnectionOptions options);
  static std::shared_ptr<Connection> Join(ConnectionOptions options);
  bool Drop();
  // On another thread than its own, one of which may be the last user.
  static void Destroy(Connection* connection);
  Status Connect();
  Status Close();

  const ConnectionOptions options_;
  Runtime runtime_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<client::FileSystem> filesystem_;
  int users_ = 0;  // guarded by the list of connections
  std::mutex connecting_;
  std::atomic<bool> connected_{false};  // once connecting_ has been held

  std::mutex mutex_;
  int started_ = 0;
  std::condition_variable none_started_;
  bool closed_ = false;
};

}  // namespace nacre::api
