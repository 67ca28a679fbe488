// One end of a queue pair that does what a test wants. Thread-safe as a Channel is.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "transport/verbs/channel.h"

namespace nacre::verbs {

class RawLink : public Channel {
 public:
  // `end` ends the connection that it was set up over.
  RawLink(std::shared_ptr<Rail> rail, Executor executor, std::function<void(const Status&)> end,
          uint32_t calls = 0)
      : Channel(std::move(rail), std::move(executor), RealClock(), calls,
                IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE),
        end_(std::move(end)) {}

  const OneShot<Status> closed;
  const OneShot<std::pair<FragmentHeader, std::string>> message;  // the first

 private:
  Status OnMessage(const FragmentHeader& header, std::string_view text) override {
    if (header.kind != FragmentKind::kPong) message.Set({header, std::string(text)});
    return OkStatus();
  }
  void OnClosed(const Status& why) override {
    end_(why);
    closed.Set(why);
  }

  const std::function<void(const Status&)> end_;
};

}  // namespace nacre::verbs
