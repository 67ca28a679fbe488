// Reads much more at once than a server's pool holds, and says how fast: bench/pool runs it against servers
// with a small pool and with a large one.
//   pool_read MDS PATH      makes the file if it is not there; prints MB/s of one read of 1 GiB, and of 64
//   readers
//                           of 64 MiB each, every byte compared
#include <fcntl.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nacre/nacre.hpp>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr uint64_t kMiB = 1 << 20, kFileBytes = 1024 * kMiB;
constexpr uint64_t kReaders = 64, kOfEach = 64 * kMiB, kStep = 64 * kMiB;

[[noreturn]] void Die(const std::string& why) {
  std::fprintf(stderr, "pool_read: %s\n", why.c_str());
  std::exit(1);
}

// The bytes of the file at an offset: no two blocks of it are the same.
uint64_t Word(uint64_t offset) { return (offset + 1) * 0x9e3779b97f4a7c15u; }

void Fill(std::vector<uint64_t>* words, uint64_t offset) {
  for (uint64_t& word : *words) {
    word = Word(offset);
    offset += sizeof word;
  }
}

void Compare(const std::vector<uint64_t>& words, uint64_t offset) {
  for (uint64_t word : words) {
    if (word != Word(offset)) Die("wrong bytes at " + std::to_string(offset));
    offset += sizeof word;
  }
}

nacre::Client Open(const std::string& mds) {
  auto client = nacre::Client::open(mds);
  if (!client) Die("cannot reach " + mds + ": " + client.error().message());
  return *std::move(client);
}

// A buffer that is registered, and the file that is read into it.
struct Reader {
  Reader(const std::string& mds, const std::string& path, uint64_t bytes)
      : client(Open(mds)), words(bytes / sizeof(uint64_t)) {
    auto opened = client.open_file(path);
    if (!opened) Die("cannot open " + path + ": " + opened.error().message());
    file = *std::move(opened);
    auto registered = client.register_buffer(words.data(), bytes);
    if (!registered) Die("cannot register memory: " + registered.error().message());
    buffer = *std::move(registered);
  }
  void Read(uint64_t offset) {
    const nacre::Result read = file.read(offset, buffer.span());
    if (!read || read.bytes() != buffer.size())
      Die("reading at " + std::to_string(offset) + ": " + read.error().message());
  }

  nacre::Client client;
  std::vector<uint64_t> words;
  nacre::File file;
  nacre::Buffer buffer;
};

void Make(const std::string& mds, const std::string& path) {
  nacre::Client client = Open(mds);
  auto file = client.open_file(path, O_RDWR | O_CREAT);
  if (!file) Die("cannot make " + path + ": " + file.error().message());
  if (auto size = file->size(); size && *size == kFileBytes) return;
  std::vector<uint64_t> words(kStep / sizeof(uint64_t));
  auto buffer = client.register_buffer(words.data(), kStep);
  for (uint64_t at = 0; at < kFileBytes; at += kStep) {
    Fill(&words, at);
    const nacre::Result written = file->write(at, buffer->span());
    if (!written) Die("writing " + path + " at " + std::to_string(at) + ": " + written.error().message());
    if (written.bytes() != kStep) Die("writing " + path + " at " + std::to_string(at) + " ends early");
  }
  if (file->sync()) Die("cannot sync " + path);
}

double Seconds(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) Die("usage: pool_read MDS PATH");
  const std::string mds = argv[1], path = argv[2];
  Make(mds, path);
  {
    Reader reader(mds, path, kFileBytes);
    const auto begin = std::chrono::steady_clock::now();
    reader.Read(0);
    const double took = Seconds(begin);
    Compare(reader.words, 0);
    std::printf("one %.0f\n", static_cast<double>(kFileBytes) / 1e6 / took);
  }
  std::vector<std::unique_ptr<Reader>> readers;
  for (uint64_t i = 0; i < kReaders; ++i) readers.push_back(std::make_unique<Reader>(mds, path, kOfEach));
  std::vector<std::thread> threads;
  const auto begin = std::chrono::steady_clock::now();
  for (uint64_t i = 0; i < kReaders; ++i) {
    threads.emplace_back([&, i] { readers[i]->Read(i * kOfEach % kFileBytes); });
  }
  for (std::thread& thread : threads) thread.join();
  const double took = Seconds(begin);
  for (uint64_t i = 0; i < kReaders; ++i) Compare(readers[i]->words, i * kOfEach % kFileBytes);
  std::printf("many %.0f\n", static_cast<double>(kReaders * kOfEach) / 1e6 / took);
  return 0;
}
