#include "transport/shm/pieces.h"

#include <gtest/gtest.h>

namespace nacre::shm {
namespace {

class PiecesTest : public ::testing::Test {
 protected:
  PiecesTest() {
    for (size_t size : {4096, 8192}) {
      memories_.push_back(SharedMemory::Create("nacre-test", size).value());
      views_.push_back(SharedView::Map(memories_.back()->fd(), size).value());
    }
  }

  static std::string Text(const std::vector<Piece>& pieces) {
    std::string text;
    for (const Piece& piece : pieces) AppendPiece(piece, &text);
    return text;
  }

  std::vector<std::shared_ptr<SharedMemory>> memories_;
  Views views_;
};

TEST_F(PiecesTest, AreFoundAgain) {
  auto found = ParsePieces(Text({{1, 100, 8092}, {0, 0, 4096}, {0, 4096, 0}}), views_, 8092 + 4096).value();
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].iov_base, views_[1]->bytes().data() + 100);
  EXPECT_EQ(found[0].iov_len, 8092u);
  EXPECT_EQ(found[1].iov_base, views_[0]->bytes().data());
  EXPECT_TRUE(ParsePieces("", views_, 0).ok());
}

TEST_F(PiecesTest, LieInside) {
  for (const Piece& piece : std::vector<Piece>{
           {2, 0, 1}, {~0u, 0, 1}, {0, 4096, 1}, {0, 4097, 0}, {0, UINT64_MAX, 1}, {0, 1, UINT64_MAX}}) {
    EXPECT_EQ(ToErrno(ParsePieces(Text({piece}), views_, piece.length).status()), EPROTO) << piece.region;
  }
  EXPECT_FALSE(ParsePieces(Text({{0, 0, 1}}), {}, 1).ok());
}

TEST_F(PiecesTest, AreAsLongAsTheySay) {
  const std::string text = Text({{0, 0, 10}, {0, 0, 20}});
  EXPECT_TRUE(ParsePieces(text, views_, 30).ok());
  EXPECT_FALSE(ParsePieces(text, views_, 29).ok());
  EXPECT_FALSE(ParsePieces(text, views_, 31).ok());
  EXPECT_FALSE(ParsePieces(text + "x", views_, 30).ok());
  std::string reserved = text;
  reserved[4] = 1;
  EXPECT_FALSE(ParsePieces(reserved, views_, 30).ok());
}

TEST_F(PiecesTest, CountedOnesLeaveTheRest) {
  std::string text = CountedPieces(Text({{0, 0, 10}})) + "the request";
  EXPECT_EQ(TakeCountedPieces(&text, views_, 10).value().size(), 1u);
  EXPECT_EQ(text, "the request");
  std::string little = "abc", many = "\xff\xff\xff\xff and more", fewer = CountedPieces(Text({{0, 0, 10}}));
  fewer.pop_back();
  EXPECT_FALSE(TakeCountedPieces(&little, views_, 0).ok());
  EXPECT_FALSE(TakeCountedPieces(&many, views_, 0).ok());
  EXPECT_FALSE(TakeCountedPieces(&fewer, views_, 10).ok());
}

}  // namespace
}  // namespace nacre::shm
