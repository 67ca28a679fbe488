#include "api/reader.h"

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

namespace nacre::api {
namespace {

// How an extent went whose pieces begin at `first` among those that were read together.
ExtentOutcome Describe(const CheckedExtent& extent, const client::PiecesRead& read, size_t first,
                       std::string_view path) {
  ExtentOutcome outcome{.path = path};
  for (uint64_t row = 0; row < extent.raw.rows; ++row) outcome.bytes += read.sizes[first + row];
  if (outcome.bytes > 0 && read.verified) outcome.verification = extent.buffer->traits().verified;
  return outcome;
}

}  // namespace

Task<Outcome> ReadTogether(std::span<const CheckedExtent> extents, CancellationPtr cancellation) {
  std::vector<client::ReadPiece> pieces;
  pieces.reserve(extents.size());
  for (const CheckedExtent& extent : extents) extent.AppendPieces(&pieces);
  const std::shared_ptr<File> file = extents.front().file;
  auto read = co_await file->client()->filesystem().ReadInto(file->handle(), std::move(pieces), cancellation);
  if (!read.ok()) co_return Outcome(extents.size(), Failed(read.status()));
  const std::string_view path = KeepPath(read->path);
  Outcome outcomes;
  outcomes.reserve(extents.size());
  size_t first = 0;
  for (const CheckedExtent& extent : extents) {
    outcomes.push_back(Describe(extent, *read, first, path));
    first += extent.raw.rows;
  }
  co_return outcomes;
}

Task<Outcome> ReadEach(std::span<const CheckedExtent> extents, CancellationPtr cancellation) {
  std::vector<Task<Outcome>> reads;
  for (const CheckedExtent& extent : extents) reads.push_back(ReadTogether({&extent, 1}, cancellation));
  const std::vector<Outcome> outcomes = co_await WhenAll(std::move(reads));
  Outcome all;
  for (const Outcome& outcome : outcomes) all.push_back(outcome.front());
  co_return all;
}

}  // namespace nacre::api
