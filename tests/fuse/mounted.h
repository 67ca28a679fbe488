// A MemoryFileSystem mounted on a temporary directory, for tests that talk to it through the kernel.
//
// Skips loudly where there is no /dev/fuse. A watchdog cuts the connection of a mount that has been there for
// a minute, so that a bug fails a test instead of hanging the run.
#pragma once

#include <gtest/gtest.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "fuse/mount.h"
#include "tests/fuse/memory_filesystem.h"

namespace nacre::fuse {

class MountedTest : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  // Mounts; called by SetUp with the usual options.
  void StartMount(MountOptions options);
  void StopMount();

  std::string Path(const std::string& name) const { return mountpoint_ + "/" + name; }
  void WriteFile(const std::string& name, std::string_view data);
  std::string ReadFile(const std::string& name);

  asio::io_context context_;
  client::MemoryFileSystem filesystem_{context_.get_executor()};
  std::string mountpoint_;
  std::unique_ptr<Mount> mount_;

 private:
  void Watch();

  asio::executor_work_guard<asio::io_context::executor_type> work_{context_.get_executor()};
  std::thread runner_, watchdog_;
  std::mutex mutex_;
  std::condition_variable over_changed_;
  bool over_ = false;
};

}  // namespace nacre::fuse
