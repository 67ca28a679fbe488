// On which threads a message is gone on with.
#include <grpcpp/alarm.h>
#include <gtest/gtest.h>

#include <boost/asio/post.hpp>
#include <future>
#include <thread>

#include "common/runtime.h"
#include "rpc/grpc_channel.h"
#include "rpc/grpc_completions.h"
#include "rpc/grpc_server.h"
#include "tests/rpc/test_mds.h"

namespace nacre {
namespace {

// Holds up the thread that a request for a symbolic link runs on, if it is told to.
class SlowMds : public TestMds {
 public:
  Task<proto::MetadataReply> Handle(std::shared_ptr<MetadataPeer> peer,
                                    proto::MetadataRequest request) override {
    if (slow.exchange(false)) {
      held.set_value();
      release.get_future().wait();
    }
    return TestMds::Handle(std::move(peer), std::move(request));
  }

  std::atomic<bool> slow{false};
  std::promise<void> held, release;
};

class LoneMessages : public testing::Test {
 protected:
  LoneMessages() : channel_(Connect()), other_(Connect()) {}
  ~LoneMessages() override {
    channel_->Close();
    other_->Close();
    grpc_->Stop();
  }

  std::shared_ptr<MetadataChannel> Connect() {
    auto connector = *NewGrpcConnector(grpc_->addresses()[0]);
    return client_.Run(connector->Connect({}, 10s)).value();
  }

  // The thread on which the caller goes on.
  static Task<std::thread::id> Call(std::shared_ptr<MetadataChannel> channel) {
    proto::MetadataRequest request;
    request.mutable_readlink();
    EXPECT_TRUE((co_await channel->Call(std::move(request))).ok());
    co_return std::this_thread::get_id();
  }

  SlowMds mds_;
  Runtime server_{1}, client_{1};
  std::unique_ptr<GrpcServer> grpc_ = *GrpcServer::Start(server_.executor(), {&mds_, &mds_}, {"127.0.0.1:0"});
  std::shared_ptr<MetadataChannel> channel_, other_;
};

// Else it would wait for ever.
TEST_F(LoneMessages, ARequestIsAnsweredWithoutTheServersThreads) {
  std::promise<void> held, release;
  asio::post(server_.executor(), [&] {
    held.set_value();
    release.get_future().wait();
  });
  held.get_future().wait();
  client_.Run(Call(channel_));
  release.set_value();
}

TEST_F(LoneMessages, AnAnswerIsGoneOnWithWithoutTheClientsThreads) {
  std::promise<std::thread::id> own;
  asio::post(client_.executor(), [&] { own.set_value(std::this_thread::get_id()); });
  const std::thread::id runtimes = own.get_future().get();
  EXPECT_NE(client_.Run(Call(channel_)), runtimes);
}

TEST_F(LoneMessages, AThreadThatIsHeldUpIsStoodInFor) {
  mds_.slow = true;
  auto first = std::async(std::launch::async, [&] { client_.Run(Call(channel_)); });
  mds_.held.get_future().wait();
  for (int i = 0; i < 100; ++i) {
    client_.Run(Call(other_));
    client_.Run(Call(channel_));
  }
  EXPECT_EQ(first.wait_for(0s), std::future_status::timeout);
  mds_.release.set_value();
  first.get();
  client_.Run(Call(channel_));
}

// Requests of a client whose thread is held up by what one of its own answers led to.
TEST_F(LoneMessages, AClientThatIsHeldUpHearsOfTheOthers) {
  std::promise<void> held, release;
  auto first = std::async(std::launch::async, [&] {
    client_.Run([](std::shared_ptr<MetadataChannel> channel, std::promise<void>& held,
                   std::promise<void>& release) -> Task<Unit> {
      co_await Call(std::move(channel));
      held.set_value();
      release.get_future().wait();
      co_return Unit{};
    }(channel_, held, release));
  });
  held.get_future().wait();
  for (int i = 0; i < 100; ++i) client_.Run(Call(channel_));
  EXPECT_EQ(first.wait_for(0s), std::future_status::timeout);
  release.set_value();
  first.get();
}

// A reaction that is held up while it still uses what it has read: the processor is taken from its thread,
// say.
class HeldUp final : public Completion {
 public:
  HeldUp(const std::shared_ptr<Guests>& guests, const Executor& executor)
      : guests_(guests), executor_(executor) {}

  void Done(bool) override {
    bool read_on = false;
    {
      std::atomic<bool> behind = false;
      const GrpcTurn turn(/*lone=*/true, guests_, executor_, [&behind] { behind = true; });
      std::this_thread::sleep_for(600ms);  // long enough for the second thread to have looked twice
      read_on = behind;
    }
    read_on_within.set_value(read_on);
  }

  std::promise<bool> read_on_within;

 private:
  const std::shared_ptr<Guests> guests_;
  const Executor executor_;
};

TEST_F(LoneMessages, NobodyReadsIntoWhatAReactionStillUses) {
  Completions completions(std::make_unique<grpc::CompletionQueue>());
  HeldUp reaction(Guests::Of(client_.executor()), client_.executor());
  grpc::Alarm alarm;
  alarm.Set(completions.queue(), DeadlineIn(0ms), static_cast<Completion*>(&reaction));
  EXPECT_FALSE(reaction.read_on_within.get_future().get());
}

// A runtime that stops waits for its guest; whose answer still leaves.
TEST_F(LoneMessages, ARuntimeMayStopBeforeItsServer) {
  mds_.slow = true;
  auto call = std::async(std::launch::async, [&] { client_.Run(Call(channel_)); });
  mds_.held.get_future().wait();
  auto stopped = std::async(std::launch::async, [&] { server_.Stop(); });
  EXPECT_EQ(stopped.wait_for(50ms), std::future_status::timeout);
  mds_.release.set_value();
  stopped.get();
  call.get();
}

}  // namespace
}  // namespace nacre
