// Goes once through a file of samples of one size on a Nacre mount, in batches drawn at random; while one
// batch is worked on, the next one is being read into the other of two buffers:
//   nacre_example_training_reader FILE SAMPLE-SIZE BATCH-SIZE [--gpu]
// The "work" is to add up the bytes. Prints how many samples there were and the sum.
#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <nacre/nacre.hpp>
#include <numeric>
#include <random>

#include "examples/memory.h"

namespace {

int Fail(const nacre::Error& error) {
  std::fprintf(stderr, "%s\n", error.message().c_str());
  return 1;
}

// One of the two buffers, and the batch that is being read into it.
struct Half {
  Half(size_t size, bool on_gpu) : memory(size, on_gpu) {}

  example::Memory memory;
  nacre::Buffer buffer;
  nacre::Future future;
};

}  // namespace

int main(int argc, char** argv) {
  const bool on_gpu = example::TakeGpuFlag(&argc, argv);
  const uint64_t sample_size = argc == 4 ? std::strtoull(argv[2], nullptr, 10) : 0;
  const uint64_t batch_size = argc == 4 ? std::strtoull(argv[3], nullptr, 10) : 0;
  if (sample_size == 0 || batch_size == 0) {
    std::fprintf(stderr, "usage: %s FILE SAMPLE-SIZE BATCH-SIZE [--gpu]\n", argv[0]);
    return 2;
  }
  auto client = nacre::Client::from_path(argv[1]);
  if (!client) return Fail(client.error());
  auto file = client->open_file(argv[1]);
  if (!file) return Fail(file.error());
  const auto size = file->size();
  if (!size) return Fail(size.error());

  std::vector<uint64_t> order(*size / sample_size);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(1));

  std::array<std::unique_ptr<Half>, 2> halves;
  for (auto& half : halves) {
    half = std::make_unique<Half>(sample_size * batch_size, on_gpu);
    auto buffer = client->register_buffer(half->memory.data(), half->memory.size());
    if (!buffer) return Fail(buffer.error());
    half->buffer = *std::move(buffer);
  }
  const auto begin_batch = [&](Half& half, size_t first) {
    std::vector<nacre::Extent> extents;
    for (size_t i = first; i < std::min<size_t>(first + batch_size, order.size()); ++i) {
      const nacre::Span to = half.buffer.span((i - first) * sample_size, sample_size);
      extents.push_back(file->extent(order[i] * sample_size, to));
    }
    half.future = nacre::readv_async(extents);
  };

  unsigned long long sum = 0;
  begin_batch(*halves[0], 0);
  for (size_t first = 0, turn = 0; first < order.size(); first += batch_size, turn = 1 - turn) {
    if (first + batch_size < order.size()) begin_batch(*halves[1 - turn], first + batch_size);
    uint64_t samples = 0;
    for (const nacre::Result& result : halves[turn]->future.results()) {
      if (!result) return Fail(result.error());
      ++samples;
    }
    const auto bytes = halves[turn]->memory.Bytes(0, samples * sample_size);
    sum = std::accumulate(bytes.begin(), bytes.end(), sum);
  }
  std::printf("%zu samples, sum %llu\n", order.size(), sum);
  return 0;
}
