#include "api/reader.h"

#include <algorithm>
#include <iterator>

#include "api/call.h"

namespace nacre::api {
namespace {

// How an extent went whose pieces begin at `first` among those that were read together.
ExtentOutcome Describe(const CheckedExtent& extent, const client::PiecesRead& read, size_t first) {
  ExtentOutcome outcome;
  nacre_result& result = outcome.result;
  for (uint64_t row = 0; row < extent.raw.rows; ++row) result.bytes += read.sizes[first + row];
  if (result.bytes > 0 && read.verified) result.verification = extent.buffer->traits().verified;
  CopyText(read.path, result.path, sizeof result.path);
  return outcome;
}

}  // namespace

Task<Outcome> ReadTogether(std::vector<CheckedExtent> extents, CancellationPtr cancellation) {
  std::vector<client::ReadPiece> pieces;
  pieces.reserve(extents.size());
  for (const CheckedExtent& extent : extents) extent.AppendPieces(&pieces);
  const std::shared_ptr<File> file = extents.front().file;
  auto read = co_await file->client()->filesystem().ReadInto(file->handle(), std::move(pieces), cancellation);
  if (!read.ok()) co_return Outcome(extents.size(), Failed(read.status()));
  Outcome outcomes;
  outcomes.reserve(extents.size());
  size_t first = 0;
  for (const CheckedExtent& extent : extents) {
    outcomes.push_back(Describe(extent, *read, first));
    first += extent.raw.rows;
  }
  co_return outcomes;
}

}  // namespace nacre::api
