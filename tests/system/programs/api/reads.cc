// As reads.c, in C++ over nacre.hpp, found by CMake:  reads_cc FILE OUT [--gpu]
#include <nacre/nacre.hpp>

#include "device.h"

namespace {

constexpr uint64_t kPiece = 77777;

template <typename T>
T OrEnd(nacre::Expected<T> got) {
  if (got) return *std::move(got);
  std::fprintf(stderr, "%s\n", got.error().message().c_str());
  std::exit(1);
}

nacre::Result OrEnd(const nacre::Result& result) {
  if (result) return result;
  std::fprintf(stderr, "%s\n", result.error().message().c_str());
  std::exit(1);
}

nacre::Result Read(const nacre::File& file, const nacre::Buffer& buffer, int way) {
  if (way == 0) return OrEnd(file.read(0, buffer.span()));
  if (way == 1) return OrEnd(file.read_async(0, buffer.span(), {.timeout = std::chrono::minutes(1)}).get());
  std::vector<nacre::Extent> extents;
  for (uint64_t at = 0; at < buffer.size(); at += kPiece)
    extents.push_back(file.extent(at, buffer.span(at, std::min<uint64_t>(kPiece, buffer.size() - at))));
  nacre::Result last;
  for (const nacre::Result& result : nacre::readv(extents)) last = OrEnd(result);
  return last;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 4 && std::string_view(argv[3]) == "--gpu") device_open();
  const nacre::Client client = OrEnd(nacre::Client::from_path(argv[1]));
  const nacre::File file = OrEnd(client.open_file(argv[1]));
  const uint64_t size = OrEnd(file.size());
  std::vector<std::string> read;
  nacre::Result result;
  for (int way = 0; way < 3; ++way) {
    void* memory = device_allocate(size);
    {
      const nacre::Buffer buffer = OrEnd(client.register_buffer(memory, size));
      result = Read(file, buffer, way);
    }
    read.emplace_back(size, '\0');
    device_copy_out(read.back().data(), memory, size);
    device_free(memory);
    if (read.back() != read.front()) return std::fprintf(stderr, "way %d reads something else\n", way), 1;
  }
  std::FILE* out = std::fopen(argv[2], "wb");
  if (out == nullptr || std::fwrite(read.front().data(), 1, size, out) != size || std::fclose(out) != 0)
    return std::perror(argv[2]), 1;
  std::printf("%llu bytes over %s, verified by %d\n", static_cast<unsigned long long>(size),
              std::string(result.path()).c_str(), static_cast<int>(result.verification()));
  return 0;
}
