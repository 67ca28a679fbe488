// libplugin_NACRE.so: what NIXL's plugin manager looks for.
#include <backend/backend_plugin.h>

#include <exception>
#include <string>

#include "compat/nixl/answers.h"
#include "compat/nixl/engine.h"

namespace {

nixlBackendEngine* Create(const nixlBackendInitParams* parameters) {
  try {
    return new nacre::nixl::Engine(parameters);
  } catch (const std::exception& error) {
    nacre::nixl::Say(error.what());
    return nullptr;
  }
}

void Destroy(nixlBackendEngine* engine) { delete engine; }

}  // namespace

extern "C" {

NIXL_PLUGIN_EXPORT nixlBackendPlugin* nixl_plugin_init() {
  static nixlBackendPlugin plugin = {NIXL_PLUGIN_API_VERSION, Create,        Destroy,
                                     [] { return "NACRE"; },  nacre_version, nacre::nixl::Parameters,
                                     nacre::nixl::Segments};
  return &plugin;
}

NIXL_PLUGIN_EXPORT void nixl_plugin_fini() {}

}  // extern "C"
