// Fetches blocks of a KV cache that is kept in a file on a Nacre mount: many small reads at random places,
// each batch of them one call.
//   nacre_example_kv_fetch make FILE BLOCK-SIZE BLOCKS          writes a cache whose words are their own
//   offsets nacre_example_kv_fetch fetch FILE BLOCK-SIZE COUNT [--gpu]  fetches COUNT blocks, 256 a call, and
//   checks them
#include <fcntl.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <nacre/nacre.hpp>
#include <random>

#include "examples/memory.h"

namespace {

constexpr size_t kBatch = 256;

nacre::Error Make(const std::string& path, uint64_t block_size, uint64_t blocks) {
  const std::string directory = path.substr(0, path.find_last_of('/') + 1);
  auto client = nacre::Client::from_path(directory.empty() ? "." : directory);
  if (!client) return client.error();
  auto file = client->open_file(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (!file) return file.error();
  std::vector<uint64_t> block(block_size / sizeof(uint64_t));
  auto buffer = client->register_buffer(block.data(), block_size);
  if (!buffer) return buffer.error();
  for (uint64_t i = 0; i < blocks; ++i) {
    for (size_t word = 0; word < block.size(); ++word) block[word] = i * block_size + word * sizeof(uint64_t);
    if (const nacre::Result written = file->write(i * block_size, buffer->span()); !written)
      return written.error();
  }
  if (const nacre::Error error = file->close()) return error;
  return client->close();
}

// Whether the bytes are those of this block.
bool IsBlock(const std::vector<unsigned char>& bytes, uint64_t offset) {
  for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, sizeof word);
    if (word != offset + at) return false;
  }
  return true;
}

nacre::Error Fetch(const std::string& path, uint64_t block_size, uint64_t count, bool on_gpu) {
  auto client = nacre::Client::from_path(path);
  if (!client) return client.error();
  auto file = client->open_file(path);
  if (!file) return file.error();
  const auto size = file->size();
  if (!size) return size.error();
  if (*size < block_size) return nacre::Error(EINVAL, path + " has no block of this size");
  example::Memory memory(kBatch * block_size, on_gpu);
  auto buffer = client->register_buffer(memory.data(), memory.size());
  if (!buffer) return buffer.error();
  std::mt19937_64 random(1);
  for (uint64_t done = 0; done < count;) {
    const size_t batch = std::min<uint64_t>(kBatch, count - done);
    std::vector<uint64_t> offsets;
    std::vector<nacre::Extent> extents;
    for (size_t i = 0; i < batch; ++i) {
      offsets.push_back(random() % (*size / block_size) * block_size);
      extents.push_back(file->extent(offsets.back(), buffer->span(i * block_size, block_size)));
    }
    const std::vector<nacre::Result> results = nacre::readv(extents);
    for (size_t i = 0; i < batch; ++i) {
      if (!results[i]) return results[i].error();
      if (!IsBlock(memory.Bytes(i * block_size, block_size), offsets[i]))
        return nacre::Error(EIO, "the block at " + std::to_string(offsets[i]) + " is another one");
    }
    done += batch;
  }
  std::printf("%llu blocks are what they should be\n", static_cast<unsigned long long>(count));
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  const bool on_gpu = example::TakeGpuFlag(&argc, argv);
  const std::string what = argc == 5 ? argv[1] : "";
  const uint64_t block_size = argc == 5 ? std::strtoull(argv[3], nullptr, 10) : 0;
  const uint64_t count = argc == 5 ? std::strtoull(argv[4], nullptr, 10) : 0;
  if ((what != "make" && what != "fetch") || block_size == 0 || block_size % sizeof(uint64_t) != 0) {
    std::fprintf(stderr, "usage: %s make|fetch FILE BLOCK-SIZE COUNT [--gpu]\n", argv[0]);
    return 2;
  }
  const nacre::Error error =
      what == "make" ? Make(argv[2], block_size, count) : Fetch(argv[2], block_size, count, on_gpu);
  if (error) std::fprintf(stderr, "%s\n", error.message().c_str());
  return error ? 1 : 0;
}
