// A duplicate of an eventfd(2) of the caller's. Thread-safe.
#pragma once

#include <memory>

#include "common/status.h"

namespace nacre::api {

class EventFd {
 public:
  // EBADF; EINVAL: it is another kind of descriptor, whose bytes nobody wants to have written.
  static StatusOr<std::shared_ptr<EventFd>> Duplicate(int fd);
  ~EventFd();
  EventFd(const EventFd&) = delete;
  EventFd& operator=(const EventFd&) = delete;

  void Add() const;

 private:
  explicit EventFd(int fd) : fd_(fd) {}
  const int fd_;
};

}  // namespace nacre::api
