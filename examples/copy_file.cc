// Copies a file into a Nacre filesystem or out of it through libnacre, without a mount:
//   nacre_example_copy_file MDS in LOCAL PATH
//   nacre_example_copy_file MDS out PATH LOCAL
//   e.g. nacre_example_copy_file 127.0.0.1:7710 in photo.jpg 1.jpg
// Data that was copied in is on stable storage when the program ends with status 0.
#include <fcntl.h>

#include <cstdio>
#include <fstream>
#include <nacre/nacre.hpp>

namespace {

constexpr size_t kStep = 4 << 20;  // several stripes: all their OSTs work at once

nacre::Error CopyIn(const nacre::Client& client, const std::string& local, const std::string& path) {
  std::ifstream in(local, std::ios::binary);
  if (!in) return nacre::Error(ENOENT, "cannot read " + local);
  auto file = client.open_file(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (!file) return file.error();
  std::vector<char> memory(kStep);
  auto buffer = client.register_buffer(memory.data(), memory.size());
  if (!buffer) return buffer.error();
  uint64_t offset = 0;
  while (in.read(memory.data(), static_cast<std::streamsize>(memory.size())) || in.gcount() > 0) {
    // Returns when the data is in the client's cache; errors of the writing behind it come with a later call,
    // sync at the latest.
    const nacre::Result written = file->write(offset, buffer->span(0, static_cast<uint64_t>(in.gcount())));
    if (!written) return written.error();
    offset += written.bytes();
  }
  if (const nacre::Error error = file->sync()) return error;
  return file->close();
}

nacre::Error CopyOut(const nacre::Client& client, const std::string& path, const std::string& local) {
  std::ofstream out(local, std::ios::binary | std::ios::trunc);
  if (!out) return nacre::Error(EIO, "cannot write " + local);
  auto file = client.open_file(path);
  if (!file) return file.error();
  std::vector<char> memory(kStep);
  auto buffer = client.register_buffer(memory.data(), memory.size());
  if (!buffer) return buffer.error();
  for (uint64_t offset = 0;;) {
    const nacre::Result read = file->read(offset, buffer->span());
    if (!read) return read.error();
    if (read.bytes() == 0) break;
    out.write(memory.data(), static_cast<std::streamsize>(read.bytes()));
    offset += read.bytes();
  }
  out.close();
  return out ? nacre::Error() : nacre::Error(EIO, "cannot write " + local);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string direction = argc == 5 ? argv[2] : "";
  if (direction != "in" && direction != "out") {
    std::fprintf(stderr, "usage: %s MDS in LOCAL PATH\n       %s MDS out PATH LOCAL\n", argv[0], argv[0]);
    return 2;
  }
  auto client = nacre::Client::open(argv[1]);
  nacre::Error error = client.error();
  if (!error)
    error = direction == "in" ? CopyIn(*client, argv[3], argv[4]) : CopyOut(*client, argv[3], argv[4]);
  const nacre::Error closed = client ? client->close() : nacre::Error();
  for (const nacre::Error& each : {error, closed}) {
    if (each) std::fprintf(stderr, "%s\n", each.message().c_str());
  }
  return error || closed ? 1 : 0;
}
