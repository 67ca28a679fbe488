// Lists a directory and everything below it through the client library, without a mount:
//   nacre_example_list_tree MDS [PATH]        e.g. nacre_example_list_tree 127.0.0.1:7100 src
// Each line has mode, owner, size and path. Exit status 1 if anything failed.
#include <sys/stat.h>

#include <cstdio>

#include "examples/connection.h"

namespace nacre::example {
namespace {

Task<Status> List(client::FileSystem& filesystem, const client::Caller& caller, Fid directory,
                  std::string prefix) {
  CO_ASSIGN_OR_RETURN(client::HandlePtr handle, co_await filesystem.Opendir(caller, directory));
  uint64_t cookie = 0;
  for (;;) {
    // With `plus` the attributes come along: no further request for each entry.
    CO_ASSIGN_OR_RETURN(auto entries, co_await filesystem.Readdir(caller, handle, cookie, 1000, true));
    if (entries.empty()) break;
    for (const client::DirEntry& entry : entries) {
      cookie = entry.cookie;
      if (!entry.known) continue;
      const proto::Attr& attr = entry.known->attr;
      std::string path = prefix + entry.name;
      std::printf("%06o %5u:%-5u %12llu %s\n", attr.mode(), attr.uid(), attr.gid(),
                  static_cast<unsigned long long>(attr.size()), path.c_str());
      if (!S_ISDIR(attr.mode())) continue;
      path += '/';
      CO_RETURN_IF_ERROR(co_await List(filesystem, caller, entry.fid, std::move(path)));
    }
  }
  co_return co_await filesystem.Release(handle);
}

Task<Status> ListPath(client::FileSystem& filesystem, std::string path) {
  client::Caller caller;  // who asks: here root
  CO_ASSIGN_OR_RETURN(Fid fid, co_await Resolve(filesystem, caller, path));
  std::string prefix = path.empty() ? path : path + "/";
  co_return co_await List(filesystem, caller, fid, std::move(prefix));
}

int Main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::fprintf(stderr, "usage: %s MDS [PATH]\n", argv[0]);
    return 2;
  }
  auto connection = Connection::Open(argv[1], "example list_tree");
  if (!connection.ok()) {
    std::fprintf(stderr, "%s\n", std::string(connection.status().message()).c_str());
    return 1;
  }
  Status listed = (*connection)->Run(ListPath((*connection)->filesystem(), argc == 3 ? argv[2] : ""));
  Status closed = (*connection)->Close();
  for (const Status& status : {listed, closed}) {
    if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  }
  return listed.ok() && closed.ok() ? 0 : 1;
}

}  // namespace
}  // namespace nacre::example

int main(int argc, char** argv) { return nacre::example::Main(argc, argv); }
