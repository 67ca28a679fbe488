// nacre.h: clients.
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <cerrno>

#include "api/call.h"
#include "api/devices.h"
#include "api/mount_path.h"
#include "api/objects.h"
#include "api/queue.h"
#include "transport/data_plane.h"

namespace nacre::api {
namespace {

constexpr uint64_t kKnownFlags = NACRE_CLIENT_SOFT | NACRE_CLIENT_NO_VERIFY | NACRE_CLIENT_NO_CACHE;
constexpr uint64_t kMinCache = 1 << 20;
constexpr uint64_t kMaxThreads = 256;

Status CheckOptions(const nacre_client_options& options) {
  if ((options.flags & ~kKnownFlags) != 0)
    return ErrnoError(EINVAL, absl::StrFormat("flags 0x%x of a client: unknown ones", options.flags));
  if (options.soft_timeout < 0)
    return ErrnoError(EINVAL, absl::StrFormat("soft_timeout is %d", options.soft_timeout));
  if (options.cache_bytes != 0 && options.cache_bytes < kMinCache) {
    return ErrnoError(EINVAL,
                      absl::StrFormat("cache_bytes is %d: at least %d", options.cache_bytes, kMinCache));
  }
  if (options.threads > kMaxThreads)
    return ErrnoError(EINVAL, absl::StrFormat("threads is %d: at most %d", options.threads, kMaxThreads));
  return OkStatus();
}

StatusOr<ConnectionOptions> Translate(const nacre_client_options* given) {
  nacre_client_options raw = NACRE_CLIENT_OPTIONS_INIT;
  RETURN_IF_ERROR(ReadOptions(given, &raw));
  RETURN_IF_ERROR(CheckOptions(raw));
  ConnectionOptions options;
  if (raw.name != nullptr) options.name = raw.name;
  options.transport = raw.transport == nullptr ? "" : raw.transport;
  options.threads = static_cast<unsigned>(raw.threads);
  if (raw.cache_bytes != 0) options.client.cache_bytes = raw.cache_bytes;
  options.client.dirty_bytes = options.client.cache_bytes / 2;
  options.client.kernel_cache = Duration(0);  // there is no kernel above, for which others would have to wait
  options.client.caching = (raw.flags & NACRE_CLIENT_NO_CACHE) == 0;
  options.client.verify = (raw.flags & NACRE_CLIENT_NO_VERIFY) == 0;
  options.client.retry.hard = (raw.flags & NACRE_CLIENT_SOFT) == 0;
  if (raw.soft_timeout > 0) options.client.retry.soft_timeout = std::chrono::nanoseconds(raw.soft_timeout);
  return options;
}

Status CheckTransport(const std::string& transport) {
  const std::vector<std::string>& choices = TransportChoices();
  if (std::ranges::find(choices, transport) != choices.end()) return OkStatus();
  return ErrnoError(EINVAL, absl::StrFormat("transport is \"%s\": it may be %s", transport,
                                            std::string(absl::StrJoin(choices, ", "))));
}

Status OpenClient(ConnectionOptions options, bool by_mount, nacre_client* client) {
  if (options.transport.empty()) options.transport = "auto";
  RETURN_IF_ERROR(CheckTransport(options.transport));
  ASSIGN_OR_RETURN(std::shared_ptr<Connection> connection, Connection::Open(std::move(options)));
  client->id = AllTables().clients.Add(std::make_shared<Client>(std::move(connection), by_mount));
  return OkStatus();
}

Status OpenByAddress(const char* mds, const nacre_client_options* given, nacre_client* client) {
  RETURN_IF_ERROR(CheckProcess());
  if (mds == nullptr || client == nullptr) return ErrnoError(EINVAL, "nacre_client_open: a null argument");
  ASSIGN_OR_RETURN(ConnectionOptions options, Translate(given));
  options.mds = mds;
  return OpenClient(std::move(options), false, client);
}

Status OpenByPath(const char* path, const nacre_client_options* given, nacre_client* client) {
  RETURN_IF_ERROR(CheckProcess());
  if (path == nullptr || client == nullptr)
    return ErrnoError(EINVAL, "nacre_client_from_path: a null argument");
  ASSIGN_OR_RETURN(ConnectionOptions options, Translate(given));
  ASSIGN_OR_RETURN(const MountPlace place, FindOnMount(path));
  options.mds = place.mds;
  if (options.transport.empty()) options.transport = place.transport;
  return OpenClient(std::move(options), true, client);
}

// Its files and buffers first: what they still do needs the session.
Status CloseClient(nacre_client handle) {
  RETURN_IF_ERROR(FindClient(handle).status());
  const std::shared_ptr<Client> client = AllTables().clients.Take(handle.id);
  if (client == nullptr) return ErrnoError(EBADF, "the client is being closed by another thread");
  client->Finish();
  auto is_its = [&](const auto& object) { return object.client() == client; };
  AllTables().queues.TakeIf(is_its);
  for (const auto& buffer : AllTables().buffers.TakeIf(is_its)) buffer->Release();
  AllTables().files.TakeIf(is_its).clear();
  return client->connection().Leave();
}

Status Describe(nacre_client handle, nacre_capabilities* out) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Client> client, FindClient(handle));
  if (out == nullptr) return ErrnoError(EINVAL, "nacre_client_capabilities: a null argument");
  nacre_capabilities known{};
  RETURN_IF_ERROR(ReadStruct(out, out->struct_size, &known));
  nacre_capabilities capabilities{};
  DescribeDevices(&capabilities);
  const std::vector<std::string> paths = client->filesystem().Look().paths;
  CopyText(std::string(absl::StrJoin(paths, "\n")), capabilities.paths, sizeof capabilities.paths);
  WriteStruct(capabilities, out->struct_size, out);
  return OkStatus();
}

}  // namespace
}  // namespace nacre::api

using nacre::api::Answer;

extern "C" {

const char* nacre_version() { return NACRE_VERSION; }

const char* nacre_error_message() { return nacre::api::LastMessage(); }

int nacre_client_open(const char* mds, const nacre_client_options* options, nacre_client* client) {
  return Answer(nacre::api::OpenByAddress(mds, options, client));
}

int nacre_client_from_path(const char* path, const nacre_client_options* options, nacre_client* client) {
  return Answer(nacre::api::OpenByPath(path, options, client));
}

int nacre_client_close(nacre_client client) { return Answer(nacre::api::CloseClient(client)); }

int nacre_client_capabilities(nacre_client client, nacre_capabilities* capabilities) {
  return Answer(nacre::api::Describe(client, capabilities));
}

}  // extern "C"
