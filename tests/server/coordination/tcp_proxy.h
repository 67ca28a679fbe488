// A TCP port that passes on to another one on this machine, and loses what it is told to. Thread-safe; ends
// its connections with itself.
#pragma once

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace nacre::coordination {

class TcpProxy {
 public:
  // `target`: 127.0.0.1:PORT.
  explicit TcpProxy(const std::string& target);
  ~TcpProxy();
  TcpProxy(const TcpProxy&) = delete;
  TcpProxy& operator=(const TcpProxy&) = delete;

  std::string address() const;

  // From now on nothing that the target says is passed on, and nobody is told.
  void LoseAnswers() { lose_answers_ = true; }
  // Bytes that were passed on to the target.
  uint64_t asked() const { return asked_; }
  // Ends all connections; those that come afterwards are whole.
  void BreakConnections() { break_ = true; }

 private:
  struct Pair {
    int client = -1, target = -1;
  };

  void Run();
  bool PassOn(Pair& pair, bool from_client);

  int port_ = 0, target_port_ = 0;
  int listener_ = -1;
  std::vector<Pair> pairs_;  // the thread's
  std::atomic<bool> stop_ = false, lose_answers_ = false, break_ = false;
  std::atomic<uint64_t> asked_ = 0;
  std::thread thread_;
};

}  // namespace nacre::coordination
