#include "client/layout_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nacre {
namespace {

using testing::HasSubstr;

TEST(LayoutText, OneComponent) {
  auto layout = ParseLayout("-c 4 -S 1M");
  ASSERT_TRUE(layout.ok()) << layout.status();
  ASSERT_EQ(layout->components_size(), 1);
  EXPECT_EQ(layout->components(0).end(), ~0ull);
  EXPECT_EQ(layout->components(0).stripe_count(), 4);
  EXPECT_EQ(layout->components(0).stripe_size(), 1u << 20);
  EXPECT_EQ(FormatLayout(*layout), "-c 4 -S 1M");
}

TEST(LayoutText, ProgressiveComponentsInheritFromTheOneBefore) {
  auto layout = ParseLayout("-E 1M -c 1 -S 64k -E 64M -c 4 -E -1 -c -1 -S 4M");
  ASSERT_TRUE(layout.ok()) << layout.status();
  ASSERT_EQ(layout->components_size(), 3);
  EXPECT_EQ(layout->components(1).stripe_size(), 64u << 10);
  EXPECT_EQ(layout->components(1).end(), 64u << 20);
  EXPECT_EQ(layout->components(2).stripe_count(), -1);
  EXPECT_EQ(FormatLayout(*layout), "-E 1M -c 1 -S 64K -E 64M -c 4 -S 64K -E -1 -c -1 -S 4M");
}

TEST(LayoutText, CopiesHoldUntilOthersAreNamed) {
  auto layout = ParseLayout("-c 2 -N 3 -S 1M");
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->components(0).copies(), 3u);
  EXPECT_EQ(FormatLayout(*layout), "-c 2 -S 1M -N 3");
  layout = ParseLayout("-E 1M -S 1M -E 2M -N 2 -E 4M -E 8M -N 0 -E -1 -N 1");
  ASSERT_TRUE(layout.ok()) << layout.status();
  std::vector<uint32_t> copies;
  for (const auto& component : layout->components()) copies.push_back(component.copies());
  EXPECT_EQ(copies, (std::vector<uint32_t>{0, 2, 2, 0, 1}));
  EXPECT_EQ(
      FormatLayout(*layout),
      "-E 1M -c 1 -S 1M -E 2M -c 1 -S 1M -N 2 -E 4M -c 1 -S 1M -E 8M -c 1 -S 1M -N 0 -E -1 -c 1 -S 1M -N 1");
  EXPECT_EQ(DescribeDirectory(Fid{1, 2, 0}, *ParseLayout("-S 1M -N 2"), false),
            R"({"fid": "[0x1:0x2:0x0]", "layout": "-c 1 -S 1M -N 2", "inherited": false})");
}

TEST(LayoutText, WhatIsPrintedIsReadBack) {
  for (const char* text : {"", "-N 2", "-E 1M -N 3 -E 2M -N 0 -E -1 -N 2", "-E 1M -E -1 -N 1", "-c 1",
                           "-S 1M", "-E eof -c 2", "-E 1M -E 1G -S 1M -E -1 -c 8"}) {
    auto layout = ParseLayout(text);
    ASSERT_TRUE(layout.ok()) << text << ": " << layout.status();
    auto again = ParseLayout(FormatLayout(*layout));
    ASSERT_TRUE(again.ok()) << text << ": " << again.status();
    EXPECT_EQ(again->SerializeAsString(), layout->SerializeAsString()) << text;
  }
}

TEST(LayoutText, MistakesAreNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"-c", "'-c' without a value"},
      {"-c 0", "-c 0: the stripe count must be"},
      {"-c many", "-c many"},
      {"-c 3000", "1 to 2000"},
      {"-S 100", "multiple of 64K"},
      {"-S 4G", "at most"},
      {"-S x", "'x' is not a size"},
      {"-N 4", "-N 4: the number of copies must be 1 to 3"},
      {"-N -1", "-N -1: the number of copies"},
      {"-N two", "-N two: the number of copies"},
      {"-N 2 -E -1", "must come before the -c, -S and -N"},
      {"-x 1", "'-x' is not an option"},
      {"-E 1M -c 1", "must end at -1"},
      {"-E 1M -E 1M -E -1", "not behind the end"},
      {"-E -1 -E 2M", "nothing can follow"},
      {"-E 1M -S 768K -E -1", "multiple of its stripe size"},
      {"-c 1 -E 1M", "must come before"},
      {"-E 100 -E -1", "multiple of 64K"},
  };
  for (const auto& [text, message] : cases) {
    Status status = ParseLayout(text).status();
    EXPECT_EQ(ToErrno(status), EINVAL) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
}

TEST(LayoutText, DescribesWhatIsThere) {
  proto::Layout layout;
  layout.set_generation(2);
  layout.set_object_sequence(31);
  auto* component = layout.add_components();
  component->set_end(1 << 20);
  component->set_stripe_size(1 << 20);
  component->add_ost_group(3);
  component = layout.add_components();
  component->set_end(~0ull);
  component->set_stripe_size(65536);
  component->add_ost_group(0);
  component->add_ost_group(1);
  EXPECT_EQ(DescribeFile(Fid{1, 2, 0}, layout, false),
            R"({"fid": "[0x1:0x2:0x0]", "generation": 2, "objects": "1f", "inline": false, "components": [)"
            R"({"start": 0, "end": 1048576, "stripe_size": 1048576, "osts": [3]}, )"
            R"({"start": 1048576, "end": null, "stripe_size": 65536, "osts": [0, 1]}]})");
  EXPECT_EQ(FormatLayout(layout), "-E 1M -c 1 -S 1M -E -1 -c 2 -S 64K");
  EXPECT_EQ(DescribeDirectory(Fid{1, 2, 0}, *ParseLayout("-c 2 -S 1M"), true),
            R"({"fid": "[0x1:0x2:0x0]", "layout": "-c 2 -S 1M", "inherited": true})");
}

}  // namespace
}  // namespace nacre
