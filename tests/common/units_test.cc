#include "common/units.h"

#include <gtest/gtest.h>

namespace nacre {
namespace {

TEST(Units, SizesAsPeopleWriteThem) {
  EXPECT_EQ(*ParseSize("0"), 0u);
  EXPECT_EQ(*ParseSize("4096"), 4096u);
  EXPECT_EQ(*ParseSize("64k"), 65536u);
  EXPECT_EQ(*ParseSize("64KiB"), 65536u);
  EXPECT_EQ(*ParseSize(" 1 M "), 1u << 20);
  EXPECT_EQ(*ParseSize("10GiB"), 10ull << 30);
  EXPECT_EQ(*ParseSize("512B"), 512u);
  EXPECT_EQ(*ParseSize("15E"), 15ull << 60);
}

TEST(Units, WhatIsNotASizeIsNamed) {
  for (const char* text :
       {"", "M", "-1", "1X", "1.5G", "1MB", "1Mi", "0x10", "16E", "99999999999999999999"}) {
    auto size = ParseSize(text);
    ASSERT_EQ(ToErrno(size.status()), EINVAL) << text;
    EXPECT_NE(std::string(size.status().message()).find(std::string("'") + text + "'"), std::string::npos)
        << text;
  }
}

TEST(Units, Durations) {
  EXPECT_EQ(*ParseDuration("250ms"), 250ms);
  EXPECT_EQ(*ParseDuration("5s"), 5s);
  EXPECT_EQ(*ParseDuration("1.5 s"), 1500ms);
  EXPECT_EQ(*ParseDuration("2min"), 2min);
  EXPECT_EQ(*ParseDuration("1h"), 1h);
  for (const char* text : {"", "5", "s", "-1s", "5 parsecs", "1..2s", "9999999999h"}) {
    EXPECT_EQ(ToErrno(ParseDuration(text).status()), EINVAL) << text;
  }
}

TEST(Units, WhatIsPrintedExactlyIsReadBack) {
  for (uint64_t size :
       {0ull, 1ull, 1023ull, 1024ull, 65536ull, 3ull << 20, (1ull << 40) + 1, 1ull << 63, ~0ull}) {
    EXPECT_EQ(*ParseSize(ExactSize(size)), size);
  }
  EXPECT_EQ(ExactSize(64 << 20), "64M");
  for (Duration duration :
       {Duration(0), Duration(1ms), Duration(1500ms), Duration(5s), Duration(90s), Duration(1h)}) {
    EXPECT_EQ(*ParseDuration(ExactDuration(duration)), duration);
  }
  EXPECT_EQ(ExactDuration(5s), "5s");
}

TEST(Units, ForPeople) {
  EXPECT_EQ(HumanSize(512), "512 B");
  EXPECT_EQ(HumanSize(1536), "1.50 KiB");
  EXPECT_EQ(HumanSize(300ull << 30), "300 GiB");
}

}  // namespace
}  // namespace nacre
