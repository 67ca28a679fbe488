// libnacre's writes of many extents, and how a program hears of the end of what it has begun.
#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "tests/api/api_fixture.h"

namespace nacre::test {
namespace {

class ApiWrite : public ApiTest {};

TEST_F(ApiWrite, ManyExtentsAreWrittenInOneGo) {
  const std::string content = Pattern(41, 20 * kMiB);
  File file = Make("");
  Memory memory(client_, content);
  std::vector<Extent> extents;
  for (uint64_t at = 0; at < content.size(); at += 5 * kMiB)
    extents.push_back(file.extent(at, memory.buffer.span(at, 5 * kMiB)));
  nacre::Rows rows;
  rows.offset = 30 * kMiB;
  rows.length = 10;
  rows.count = 3;
  rows.stride = 100;
  extents.push_back(file.extent(rows, memory.buffer.span(0, 30)));
  for (const Result& result : nacre::writev(extents)) ASSERT_TRUE(result) << result.error().message();
  EXPECT_EQ(*file.size(), 30 * kMiB + 210);
  Memory seen(client_, 31 * kMiB);
  ASSERT_TRUE(file.read(0, seen.buffer.span()));
  EXPECT_TRUE(seen.bytes.substr(0, content.size()) == content);
  EXPECT_EQ(seen.bytes.substr(30 * kMiB + 100, 10), content.substr(10, 10));
}

TEST_F(ApiWrite, AppendsOfOneCallKeepTheirOrder) {
  (void)Make("begin ");
  auto file = client_.open_file(name_, O_RDWR | O_APPEND);
  ASSERT_TRUE(file);
  const std::string words = Pattern(42, 6 * kMiB);
  Memory memory(client_, words);
  std::vector<Extent> extents;
  for (uint64_t at = 0; at < words.size(); at += kMiB)
    extents.push_back(file->extent(0, memory.buffer.span(at, kMiB)));
  for (const Result& result : nacre::writev(extents)) ASSERT_TRUE(result) << result.error().message();
  Memory seen(client_, 6 + words.size());
  ASSERT_TRUE(file->read(0, seen.buffer.span()));
  EXPECT_TRUE(seen.bytes == "begin " + words);
}

TEST_F(ApiWrite, AWriteWithoutTheRightIsRefusedInItsResult) {
  (void)Make("bytes");
  auto file = client_.open_file(name_, O_RDONLY);
  ASSERT_TRUE(file);
  Memory memory(client_, std::string("other"));
  const Extent extents[] = {file->extent(0, memory.buffer.span()), file->extent(9, memory.buffer.span(1, 9))};
  const std::vector<Result> results = nacre::writev(extents);
  EXPECT_THAT(results[0], IsError(EBADF));
  EXPECT_THAT(results[1], IsError(EINVAL));
  EXPECT_EQ(results[0].bytes(), 0u);
}

TEST_F(ApiWrite, AnEventFdSaysThatAFutureIsDone) {
  File file = Make(Pattern(43, kMiB));
  Memory memory(client_, 2 * kMiB);
  const int event = ::eventfd(0, EFD_CLOEXEC);
  Future first = file.read_async(0, memory.buffer.span(0, kMiB));
  Future second = file.read_async(0, memory.buffer.span(kMiB, kMiB));
  EXPECT_FALSE(first.notify(event));
  EXPECT_FALSE(second.notify(event));
  uint64_t count = 0, sum = 0;
  while (sum < 2 && ::read(event, &count, sizeof count) == sizeof count) sum += count;
  EXPECT_TRUE(first.ready() && second.ready());
  EXPECT_FALSE(first.notify(event)) << "it is done already";
  EXPECT_EQ(::read(event, &count, sizeof count), static_cast<ssize_t>(sizeof count));
  EXPECT_EQ(first.notify(0).code(), EINVAL) << "no eventfd";
  EXPECT_EQ(first.notify(-1).code(), EBADF);
  ::close(event);
}

}  // namespace
}  // namespace nacre::test
