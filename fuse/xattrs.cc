// Extended attributes, those of the file system itself (nacre.*) included.
#include <cerrno>

#include "fuse/request.h"

namespace nacre::fuse {
namespace {

// A value, its length where the caller asks for that (size 0), or ERANGE.
void AnswerSized(Request& request, std::string_view value, size_t size) {
  if (size == 0) {
    request.Reply(fuse_reply_xattr, value.size());
  } else if (value.size() > size) {
    request.Error(ERANGE);
  } else {
    request.Text(value);
  }
}

Task<void> GetXattr(Request request, Fid fid, std::string name, size_t size) {
  StatusOr<std::string> value =
      co_await request.filesystem().GetXattr(request.caller(), fid, std::move(name));
  if (!value.ok()) co_return request.Done(value.status());
  AnswerSized(request, *value, size);
}

Task<void> ListXattr(Request request, Fid fid, size_t size) {
  StatusOr<std::vector<std::string>> names = co_await request.filesystem().ListXattr(request.caller(), fid);
  if (!names.ok()) co_return request.Done(names.status());
  std::string list;
  for (const std::string& name : *names) {
    list += name;
    list.push_back('\0');
  }
  AnswerSized(request, list, size);
}

Task<void> SetXattr(Request request, Fid fid, std::string name, std::string value, int flags) {
  request.Done(co_await request.filesystem().SetXattr(request.caller(), fid, std::move(name),
                                                      std::move(value), flags));
}

Task<void> RemoveXattr(Request request, Fid fid, std::string name) {
  request.Done(co_await request.filesystem().RemoveXattr(request.caller(), fid, std::move(name)));
}

}  // namespace

void AddXattrs(fuse_lowlevel_ops* ops) {
  ops->getxattr = [](fuse_req_t raw, fuse_ino_t node, const char* name, size_t size) {
    Start(raw, GetXattr, FidOf(raw, node), std::string(name), size);
  };
  ops->listxattr = [](fuse_req_t raw, fuse_ino_t node, size_t size) {
    Start(raw, ListXattr, FidOf(raw, node), size);
  };
  ops->setxattr = [](fuse_req_t raw, fuse_ino_t node, const char* name, const char* value, size_t size,
                     int flags) {
    Start(raw, SetXattr, FidOf(raw, node), std::string(name), std::string(value, size), flags);
  };
  ops->removexattr = [](fuse_req_t raw, fuse_ino_t node, const char* name) {
    Start(raw, RemoveXattr, FidOf(raw, node), std::string(name));
  };
}

}  // namespace nacre::fuse
