// A caller's extents, checked: which file, which pieces of which buffer. Stateless.
#pragma once

#include <nacre/nacre.h>

#include <memory>
#include <vector>

#include "api/objects.h"
#include "common/status.h"

namespace nacre::api {

struct CheckedExtent {
  std::shared_ptr<File> file;
  std::shared_ptr<Buffer> buffer;
  nacre_extent raw = NACRE_EXTENT_INIT;  // rows and strides made explicit

  uint64_t bytes() const { return raw.length * raw.rows; }
  // Adds the rows, in order.
  void AppendPieces(std::vector<client::ReadPiece>* pieces) const;
};

// EBADF, EINVAL, EFAULT with what is wrong. `before` is another extent of the same call, whose file and
// buffer need not be looked up once more if they are named again; null: there is none.
StatusOr<CheckedExtent> CheckExtent(const nacre_extent& raw, const CheckedExtent* before);

// Of a read: the buffer's bytes may be written to.
Status CheckTarget(const CheckedExtent& extent);

}  // namespace nacre::api
