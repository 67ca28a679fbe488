// Loads every tensor of a safetensors file on a Nacre mount into memory, the host's or a GPU's, in one call:
//   nacre_example_load_safetensors FILE [--gpu]
// Prints for each tensor its name, type, size and the sum of its bytes, then the way they took.
#include <algorithm>
#include <cstdio>
#include <nacre/nacre.hpp>
#include <nlohmann/json.hpp>
#include <numeric>

#include "examples/memory.h"

namespace {

struct Tensor {
  std::string name, type;
  uint64_t begin = 0, end = 0;  // in the file
};

int Fail(const nacre::Error& error) {
  std::fprintf(stderr, "%s\n", error.message().c_str());
  return 1;
}

// The file begins with the header's length, eight bytes, and the header, JSON; then the tensors' bytes.
nacre::Expected<std::vector<Tensor>> ReadHeader(const nacre::Client& client, const nacre::File& file) {
  const auto size = file.size();
  if (!size) return size.error();
  uint64_t length = 0;
  auto buffer = client.register_buffer(&length, sizeof length);
  if (!buffer) return buffer.error();
  if (const nacre::Result read = file.read(0, buffer->span()); !read) return read.error();
  if (*size < sizeof length || length > *size - sizeof length)
    return nacre::Error(EINVAL, "this is no safetensors file: its header is longer than it is");
  std::string text(length, '\0');
  buffer = client.register_buffer(text.data(), text.size());
  if (!buffer) return buffer.error();
  if (const nacre::Result read = file.read(sizeof length, buffer->span()); !read) return read.error();
  const auto header = nlohmann::json::parse(text, nullptr, false);
  if (!header.is_object()) return nacre::Error(EINVAL, "this is no safetensors file: its header is no JSON");
  std::vector<Tensor> tensors;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") continue;
    const auto offsets = value.value("data_offsets", std::vector<uint64_t>());
    if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > *size - sizeof length - length)
      return nacre::Error(EINVAL, "tensor " + name + " lies outside the file");
    const uint64_t data = sizeof length + length;
    tensors.push_back({name, value.value("dtype", "?"), data + offsets[0], data + offsets[1]});
  }
  return tensors;
}

}  // namespace

int main(int argc, char** argv) {
  const bool on_gpu = example::TakeGpuFlag(&argc, argv);
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s FILE [--gpu]\n", argv[0]);
    return 2;
  }
  auto client = nacre::Client::from_path(argv[1]);
  if (!client) return Fail(client.error());
  auto file = client->open_file(argv[1]);
  if (!file) return Fail(file.error());
  auto tensors = ReadHeader(*client, *file);
  if (!tensors) return Fail(tensors.error());

  constexpr uint64_t kAlignment = 256;  // what kernels like; the file's offsets need none
  std::vector<uint64_t> places;
  uint64_t total = 0;
  for (const Tensor& tensor : *tensors) {
    places.push_back(total);
    total += (tensor.end - tensor.begin + kAlignment - 1) / kAlignment * kAlignment;
  }
  example::Memory memory(std::max<uint64_t>(total, 1), on_gpu);
  auto buffer = client->register_buffer(memory.data(), memory.size());
  if (!buffer) return Fail(buffer.error());
  std::vector<nacre::Extent> extents;
  for (size_t i = 0; i < tensors->size(); ++i) {
    const Tensor& tensor = (*tensors)[i];
    extents.push_back(file->extent(tensor.begin, buffer->span(places[i], tensor.end - tensor.begin)));
  }
  const std::vector<nacre::Result> results = nacre::readv(extents);
  for (size_t i = 0; i < results.size(); ++i) {
    const Tensor& tensor = (*tensors)[i];
    if (!results[i]) return Fail(results[i].error());
    const auto bytes = memory.Bytes(places[i], results[i].bytes());
    std::printf("%s %s %zu bytes, sum %llu\n", tensor.name.c_str(), tensor.type.c_str(), bytes.size(),
                std::accumulate(bytes.begin(), bytes.end(), 0ull));
  }
  if (!results.empty()) std::printf("over %s\n", std::string(results.front().path()).c_str());
  return 0;
}
