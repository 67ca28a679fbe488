// Reads a file while another one takes its name, on a mount:  replaced FILE OLD NEW
// OLD and NEW have the contents before and after. Says "reading" once it reads, and goes on until a line
// comes on standard input; what was opened before must stay what it was, and the name must lead to the new
// file.
#include <atomic>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nacre/nacre.hpp>
#include <thread>

namespace {

template <typename T>
T ValueOf(nacre::Expected<T> got) {
  if (got) return *std::move(got);
  std::fprintf(stderr, "%s\n", got.error().message().c_str());
  std::exit(1);
}

std::string Content(const char* path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Whether the file is this, read once.
void Compare(const nacre::File& file, const nacre::Buffer& buffer, const std::string& memory,
             const std::string& expected) {
  const nacre::Result read = file.read(0, buffer.span());
  if (!read) std::fprintf(stderr, "%s\n", read.error().message().c_str());
  const bool same =
      read && read.bytes() == expected.size() && memory.compare(0, expected.size(), expected) == 0;
  if (same) return;
  std::fprintf(stderr, "%llu bytes, or others than expected\n",
               static_cast<unsigned long long>(read.bytes()));
  std::exit(1);
}

}  // namespace

int main(int, char** argv) {
  const std::string before = Content(argv[2]), after = Content(argv[3]);
  const nacre::Client client = ValueOf(nacre::Client::from_path(argv[1]));
  const nacre::File file = ValueOf(client.open_file(argv[1]));
  std::string memory(std::max(before.size(), after.size()) + 1, '\0');
  const nacre::Buffer buffer = ValueOf(client.register_buffer(memory.data(), memory.size()));
  std::atomic<bool> replaced = false;
  std::thread waits([&] {
    std::string line;
    std::getline(std::cin, line);
    replaced = true;
  });
  int reads = 0, reads_after = 0;
  while (reads_after < 20) {
    reads_after += replaced ? 1 : 0;
    Compare(file, buffer, memory, before);
    if (++reads == 1) std::printf("reading\n"), std::fflush(stdout);
  }
  waits.join();
  Compare(ValueOf(client.open_file(argv[1])), buffer, memory, after);
  std::printf("the old file %d times, then the new one by its name\n", reads);
  return 0;
}
