#include "transport/tcp/hello.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "transport/tcp/frame.h"

namespace nacre {
namespace {

using ::testing::HasSubstr;

TEST(HelloTest, SurvivesTheWire) {
  for (const Hello& hello :
       {Hello{}, Hello{"host, pid 7"}, Hello{"a b", {{"shm", "@x y=1"}, {"rdma", ""}}}}) {
    StatusOr<Hello> parsed = ParseHello(EncodeHello(hello));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, hello);
  }
}

TEST(HelloTest, TheLargestFitsIntoItsFrame) {
  Hello hello{std::string(kMaxIdentitySize, 'i')};
  for (size_t i = 0; i < kMaxOffers; ++i)
    hello.offers.push_back({"shm", std::string(kMaxOfferSize - 4, 'w')});
  const std::string text = EncodeHello(hello);
  EXPECT_LE(text.size(), kMaxHelloSize);
  EXPECT_EQ(ParseHello(text).value(), hello);
}

TEST(HelloTest, WhatCannotBeSaidIsLeftOut) {
  Hello hello{"two\nlines" + std::string(2000, 'x')};
  hello.offers = {{"", "nothing"},
                  {"SHM", "capital"},
                  {"shm", "two\nlines"},
                  {"shm", std::string(500, 'w')},
                  {"tcp", "right"}};
  const Hello parsed = ParseHello(EncodeHello(hello)).value();
  EXPECT_EQ(parsed.identity.size(), kMaxIdentitySize);
  EXPECT_EQ(parsed.identity.substr(0, 9), "two?lines");
  EXPECT_EQ(parsed.offers, (std::vector<PathOffer>{{"tcp", "right"}}));
}

TEST(HelloTest, MalformedOnesAreRefusedByName) {
  for (const std::string& text : {std::string("who\n"), std::string("who\nSHM x"),
                                  std::string("who\nshm \x01"), "who\nshm " + std::string(500, 'w')}) {
    StatusOr<Hello> parsed = ParseHello(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(ToErrno(parsed.status()), EPROTO);
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("malformed offer"));
  }
  EXPECT_FALSE(ParseHello(std::string(kMaxIdentitySize + 1, 'i')).ok());
  std::string many = "who";
  for (size_t i = 0; i <= kMaxOffers; ++i) many += "\nshm x";
  EXPECT_FALSE(ParseHello(many).ok());
}

}  // namespace
}  // namespace nacre
