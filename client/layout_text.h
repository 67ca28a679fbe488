// Layouts as text: what setstripe takes, what the xattrs nacre.layout and nacre.stripes hold. Stateless.
//
// A template (kLayoutXattr, read and set on files and directories) is a list of components in Lustre's
// options:
//   -E END     begins a component that ends at this byte of the file; -1 or eof: its end. Without any -E
//   there
//              is one component
//   -c COUNT   stripes; -1: one on every OST
//   -S SIZE    bytes of a stripe, a multiple of 64 KiB; 0: the file system's default
//   -N COPIES  1 to 3: on OSTs with so many members; 0, the default: with as few as there are
// -c, -S and -N hold for the components behind as well, until they are given again. "-E 1M -c 1 -E 64M -c 4
// -E -1 -c -1 -N 2".
#pragma once

#include <string>
#include <string_view>

#include "common/ids.h"
#include "common/status.h"
#include "proto/types.pb.h"

namespace nacre {

inline constexpr char kLayoutXattr[] = "nacre.layout";    // a template; set to "" a directory inherits again
inline constexpr char kStripesXattr[] = "nacre.stripes";  // what is there, as JSON; read only

// INVALID_ARGUMENT names the option and what is allowed. "" has no components.
StatusOr<proto::LayoutTemplate> ParseLayout(std::string_view text);

std::string FormatLayout(const proto::LayoutTemplate& layout);
// The template that asks for the same again (on whatever OSTs).
std::string FormatLayout(const proto::Layout& layout);

// {"fid": "[0x..]", "generation": 1, "objects": "1f", "inline": false, "components":
//  [{"start": 0, "end": 1048576, "stripe_size": 1048576, "osts": [3]}, ...]}; end is null for the end of the
//  file.
std::string DescribeFile(const Fid& fid, const proto::Layout& layout, bool inline_data);
// {"fid": "[0x..]", "layout": "-c 1 -S 1M", "inherited": true}
std::string DescribeDirectory(const Fid& fid, const proto::LayoutTemplate& layout, bool inherited);

}  // namespace nacre
