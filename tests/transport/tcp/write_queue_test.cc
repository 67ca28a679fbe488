// Writes that are gathered leave together, in order, and never stay behind.
#include "transport/tcp/write_queue.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

namespace nacre {
namespace {

class TextWrite : public WriteOp {
 public:
  explicit TextWrite(std::string text) : text_(std::move(text)) {
    pieces.push_back({text_.data(), text_.size()});
  }
  std::optional<Status> done;

 protected:
  void Done(const Status& status) override { done = status; }

 private:
  std::string text_;
};

class WriteQueueTest : public ::testing::Test {
 protected:
  WriteQueueTest()
      : socket_(context_.get_executor()), queue_(socket_, {[](Status) {}, [this] { idle_ = true; }}) {
    std::array<int, 2> ends;
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    socket_.assign(asio::generic::stream_protocol(AF_UNIX, 0), ends[0]);
    other_ = ends[1];
    queue_.SetKeepAlive(alive_);
  }
  ~WriteQueueTest() override { ::close(other_); }

  // True: it has gone out already.
  bool Start(TextWrite* write) {
    Status status;
    const bool now = queue_.Start(write, &status);
    EXPECT_EQ(status, OkStatus());
    return now;
  }

  // Returns the bytes that have come by now.
  std::string Received() {
    std::array<char, 256> bytes;
    const ssize_t n = ::recv(other_, bytes.data(), bytes.size(), MSG_DONTWAIT);
    return std::string(bytes.data(), n > 0 ? static_cast<size_t>(n) : 0);
  }

  const std::shared_ptr<int> alive_ = std::make_shared<int>();
  asio::io_context context_{1};
  StreamSocket socket_;
  bool idle_ = false;
  WriteQueue queue_;
  int other_ = -1;
  TextWrite a_{"a"}, b_{"b"}, c_{"c"}, d_{"d"};
};

TEST_F(WriteQueueTest, WritesGoOutAtOnce) {
  EXPECT_TRUE(Start(&a_));
  EXPECT_EQ(Received(), "a");
}

TEST_F(WriteQueueTest, GatheredOnesLeaveBehindWhatIsQueuedInTheExecutor) {
  asio::post(context_, [this] { EXPECT_FALSE(Start(&b_)); });
  queue_.Gather(10);
  EXPECT_FALSE(Start(&a_));
  EXPECT_EQ(Received(), "");
  EXPECT_FALSE(a_.done);
  context_.run();
  EXPECT_EQ(Received(), "ab");
  EXPECT_EQ(a_.done, OkStatus());
  EXPECT_EQ(b_.done, OkStatus());
  EXPECT_TRUE(Start(&c_));
  EXPECT_EQ(Received(), "c");
}

TEST_F(WriteQueueTest, WithNothingToGatherAllGoesOn) {
  queue_.Gather(10);
  queue_.Gather(10);
  context_.run();
  EXPECT_TRUE(Start(&a_));
  EXPECT_EQ(Received(), "a");
}

TEST_F(WriteQueueTest, AsManyAsAreToBeGatheredDoNotWait) {
  queue_.Gather(2);
  EXPECT_FALSE(Start(&a_));
  EXPECT_FALSE(Start(&b_));
  EXPECT_EQ(Received(), "ab");
  EXPECT_EQ(a_.done, OkStatus());
  EXPECT_TRUE(Start(&c_));
  EXPECT_EQ(Received(), "c");
  queue_.Gather(2);  // while the end of the first gathering is still to come
  EXPECT_FALSE(Start(&d_));
  context_.run();
  EXPECT_EQ(Received(), "d");
  EXPECT_EQ(d_.done, OkStatus());
}

TEST_F(WriteQueueTest, GatheredOnesFailWhenTheQueueIsClosed) {
  queue_.Gather(10);
  EXPECT_FALSE(Start(&a_));
  queue_.Close(absl::CancelledError("enough"));
  EXPECT_FALSE(idle_);
  context_.run();
  EXPECT_EQ(a_.done, absl::CancelledError("enough"));
  EXPECT_TRUE(idle_);
  EXPECT_EQ(Received(), "");
}

}  // namespace
}  // namespace nacre
