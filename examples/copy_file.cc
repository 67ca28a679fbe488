// Copies a file into a Nacre filesystem or out of it through the client library, without a mount:
//   nacre_example_copy_file MDS in LOCAL PATH       e.g. nacre_example_copy_file 127.0.0.1:7100 in photo.jpg
//   photos/1.jpg nacre_example_copy_file MDS out PATH LOCAL
// What was copied in is on stable storage when the program ends with status 0.
#include <fcntl.h>
#include <sys/stat.h>

#include <cstdio>
#include <fstream>

#include "examples/connection.h"

namespace nacre::example {
namespace {

constexpr size_t kStep = 4 << 20;  // several stripes: all their OSTs work at once

Task<Status> CopyIn(client::FileSystem& filesystem, std::string local, std::string path) {
  std::ifstream in(local, std::ios::binary);
  if (!in) co_return ErrnoError(ENOENT, "cannot read " + local);
  client::Caller caller;
  size_t slash = path.rfind('/');
  std::string parent = slash == std::string::npos ? "" : path.substr(0, slash);
  std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
  CO_ASSIGN_OR_RETURN(Fid directory, co_await Resolve(filesystem, caller, parent));
  CO_ASSIGN_OR_RETURN(
      client::Created created,
      co_await filesystem.Create(caller, directory, name, S_IFREG | 0644, O_CREAT | O_WRONLY | O_TRUNC));
  std::vector<char> buffer(kStep);
  uint64_t offset = 0;
  while (in.read(buffer.data(), static_cast<std::streamsize>(buffer.size())) || in.gcount() > 0) {
    std::span<const std::byte> piece =
        std::as_bytes(std::span(buffer.data(), static_cast<size_t>(in.gcount())));
    // Returns when the data is in the cache; errors of the writing behind it come with a later call, Fsync at
    // the latest.
    CO_ASSIGN_OR_RETURN(size_t written,
                        co_await filesystem.Write(created.handle, offset, std::span(&piece, 1)));
    offset += written;
  }
  CO_RETURN_IF_ERROR(co_await filesystem.Fsync(created.handle, false));
  co_return co_await filesystem.Release(created.handle);
}

Task<Status> CopyOut(client::FileSystem& filesystem, std::string path, std::string local) {
  std::ofstream out(local, std::ios::binary | std::ios::trunc);
  if (!out) co_return ErrnoError(EIO, "cannot write " + local);
  client::Caller caller;
  CO_ASSIGN_OR_RETURN(Fid fid, co_await Resolve(filesystem, caller, path));
  CO_ASSIGN_OR_RETURN(client::HandlePtr handle, co_await filesystem.Open(caller, fid, O_RDONLY));
  for (uint64_t offset = 0;;) {
    // The pieces point into the client's cache; they stay where they are while `data` lives.
    CO_ASSIGN_OR_RETURN(client::ReadResult data, co_await filesystem.Read(handle, offset, kStep));
    if (data.size == 0) break;
    for (std::span<const std::byte> piece : data.pieces) {
      out.write(reinterpret_cast<const char*>(piece.data()), static_cast<std::streamsize>(piece.size()));
    }
    offset += data.size;
  }
  CO_RETURN_IF_ERROR(co_await filesystem.Release(handle));
  out.close();
  co_return out ? OkStatus() : ErrnoError(EIO, "cannot write " + local);
}

int Main(int argc, char** argv) {
  const std::string direction = argc == 5 ? argv[2] : "";
  if (direction != "in" && direction != "out") {
    std::fprintf(stderr, "usage: %s MDS in LOCAL PATH\n       %s MDS out PATH LOCAL\n", argv[0], argv[0]);
    return 2;
  }
  auto connection = Connection::Open(argv[1], "example copy_file");
  if (!connection.ok()) {
    std::fprintf(stderr, "%s\n", std::string(connection.status().message()).c_str());
    return 1;
  }
  client::FileSystem& filesystem = (*connection)->filesystem();
  Status copied = direction == "in" ? (*connection)->Run(CopyIn(filesystem, argv[3], argv[4]))
                                    : (*connection)->Run(CopyOut(filesystem, argv[3], argv[4]));
  Status closed = (*connection)->Close();
  for (const Status& status : {copied, closed}) {
    if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  }
  return copied.ok() && closed.ok() ? 0 : 1;
}

}  // namespace
}  // namespace nacre::example

int main(int argc, char** argv) { return nacre::example::Main(argc, argv); }
