#include "tests/gpu/fake_cuda/knobs.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

namespace nacre::fake_cuda {
namespace {

bool Set(Knobs* knobs, std::string_view name, const std::string& value) {
  const std::map<std::string_view, std::atomic<long>*> all{{"devices", &knobs->devices},
                                                           {"driver", &knobs->driver},
                                                           {"init", &knobs->init},
                                                           {"delay", &knobs->delay},
                                                           {"segments", &knobs->segments},
                                                           {"reuse", &knobs->reuse},
                                                           {"kernels", &knobs->kernels},
                                                           {"read_only_register", &knobs->read_only_register},
                                                           {"register_error", &knobs->register_error},
                                                           {"dma_buf", &knobs->dma_buf},
                                                           {"export_error", &knobs->export_error},
                                                           {"memory", &knobs->memory},
                                                           {"pinned", &knobs->pinned},
                                                           {"copy_errors", &knobs->copy_errors},
                                                           {"device_error", &knobs->device_error},
                                                           {"bar1", &knobs->bar1},
                                                           {"ordered", &knobs->ordered},
                                                           {"queues", &knobs->queues},
                                                           {"allocations_wait", &knobs->allocations_wait},
                                                           {"damage", &knobs->damage},
                                                           {"room", &knobs->room}};
  auto knob = all.find(name);
  char* end = nullptr;
  long number = std::strtol(value.c_str(), &end, 10);
  if (knob == all.end() || value.empty() || *end != '\0') return false;
  *knob->second = number;
  return true;
}

bool Parse(Knobs* knobs, std::string_view text) {
  while (!text.empty()) {
    std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    size_t equals = item.find('=');
    if (equals == item.npos || !Set(knobs, item.substr(0, equals), std::string(item.substr(equals + 1)))) {
      std::fprintf(stderr, "nacre-fake-cuda: no such knob: %.*s\n", static_cast<int>(item.size()),
                   item.data());
      return false;
    }
  }
  return true;
}

}  // namespace

Knobs& GetKnobs() {
  static Knobs* knobs = [] {
    auto* knobs = new Knobs;
    const char* environment = std::getenv("NACRE_FAKE_CUDA");
    if (environment != nullptr && !Parse(knobs, environment)) std::abort();
    return knobs;
  }();
  return *knobs;
}

Counters& GetCounters() {
  static auto* counters = new Counters;
  return *counters;
}

bool Configure(std::string_view knobs) { return Parse(&GetKnobs(), knobs); }

bool TakeDamage() {
  std::atomic<long>& damage = GetKnobs().damage;
  long left = damage;
  while (left > 0 && !damage.compare_exchange_weak(left, left - 1)) {
  }
  return left > 0;
}

}  // namespace nacre::fake_cuda
