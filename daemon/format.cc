#include "daemon/format.h"

#include <absl/strings/str_format.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "common/log.h"
#include "common/random.h"
#include "common/units.h"
#include "daemon/background.h"
#include "daemon/daemon_flags.h"
#include "daemon/mds_role.h"
#include "daemon/mdt_store.h"
#include "daemon/oss_role.h"
#include "daemon/place.h"
#include "daemon/process_transport.h"
#include "daemon/target_directory.h"
#include "server/kv/rocks_kv.h"
#include "server/replication/alone.h"
#include "server/replication/member.h"

namespace nacre {
namespace {

constexpr uint64_t kLeastPool = 8 << 20;

Status CheckSize(const OstConfig& config) {
  if (config.size == 0) return OkStatus();
  struct statvfs disk;
  if (::statvfs(config.directory.c_str(), &disk) != 0) {
    return ErrnoError(errno, absl::StrFormat("%s: %s", config.directory, std::strerror(errno)));
  }
  const uint64_t total = uint64_t{disk.f_blocks} * disk.f_frsize;
  const uint64_t free = uint64_t{disk.f_bavail} * disk.f_frsize;
  if (config.size > total) {
    return ErrnoError(EINVAL, absl::StrFormat("OST %d: a size of %s, but the disk of %s has %s", config.index,
                                              HumanSize(config.size), config.directory, HumanSize(total)));
  }
  if (config.size > free) {
    LogWarning("OST %d: a size of %s, but the disk of %s has %s free: it will be full earlier", config.index,
               HumanSize(config.size), config.directory, HumanSize(free));
  }
  return OkStatus();
}

// Whether this target is to be made. It says so if it is there already.
bool IsWanted(TargetKind kind, const std::string& name, const std::string& directory) {
  if (LookAtTarget(kind, directory) != TargetState::kThere) return true;
  std::printf("%s is there already, in %s: left alone\n", name.c_str(), directory.c_str());
  return false;
}

int Finished(const std::string& program, const Status& status) {
  std::fflush(stdout);
  if (status.ok()) return 0;
  Complain(program, status);
  return kExitFailure;
}

}  // namespace

Status FormatMdt(Runtime& runtime, const MdsConfig& config) {
  return FillTarget(TargetKind::kMdt, config.directory, [&]() -> Status {
    std::unique_ptr<Transport> transport = MakeProcessTransport(runtime.executor(), RealClock());
    ASSIGN_OR_RETURN(std::unique_ptr<KvStore> store, OpenMdtStore(config));
    MetadataEnvironment environment{runtime.executor(), RealClock(), SystemRandom(), *store, *transport};
    ASSIGN_OR_RETURN(auto server, runtime.Run(MetadataServer::Start(environment, config.options)));
    return runtime.Run(server->Stop());
  });
}

Status FormatCopy(Runtime& runtime, const MdsConfig& config) {
  return FillTarget(TargetKind::kMdt, config.directory, [&]() -> Status {
    ASSIGN_OR_RETURN(std::unique_ptr<KvStore> store, OpenMdtStore(config));
    return runtime.Run(replication::MarkBlank(store.get()));
  });
}

Status FormatOst(Runtime& runtime, const OstConfig& config, uint64_t memory) {
  return FillTarget(TargetKind::kOst, config.directory, [&]() -> Status {
    RETURN_IF_ERROR(CheckSize(config));
    std::unique_ptr<Transport> transport = MakeProcessTransport(runtime.executor(), RealClock());
    OssConfig alone;
    alone.osts = {config};
    alone.memory = memory;
    alone.options.listen = "inproc:format";
    alone.options.boot = BootName();
    alone.options.pool_bytes = kLeastPool;
    ASSIGN_OR_RETURN(auto role, OssRole::Start(runtime, *transport, nullptr, alone));
    return role->Stop();
  });
}

int RunFormat(const MdsConfig& config, bool copy) {
  MakeFilesPrivate();
  SetLogLevel(LogLevel::kWarning);  // what it does is said on stdout
  if (copy && !config.copies.several()) {
    return Finished("nacre-mds",
                    ErrnoError(EINVAL,
                               "--format --copy makes a copy that other MDSes fill, but [copies] "
                               "coordinator is empty: name the members of their etcd there"));
  }
  if (!IsWanted(TargetKind::kMdt, copy ? "a copy of the MDT" : "the MDT", config.directory))
    return Finished("nacre-mds", OkStatus());
  Runtime runtime(1);
  Status status = copy ? FormatCopy(runtime, config) : FormatMdt(runtime, config);
  runtime.Stop();
  if (status.ok()) {
    std::printf("formatted a new %s in %s\n", copy ? "blank copy of an MDT" : "MDT",
                config.directory.c_str());
  }
  return Finished("nacre-mds", status);
}

int RunAlone(const MdsConfig& config) {
  MakeFilesPrivate();
  SetLogLevel(LogLevel::kWarning);  // what it does is said on stdout
  Runtime runtime(1);
  Status status = [&]() -> Status {
    if (config.copies.several()) {
      return ErrnoError(EINVAL,
                        "--alone is for a filesystem of one MDS, but [copies] coordinator names an "
                        "etcd: take the section [copies] out of the configuration first");
    }
    RETURN_IF_ERROR(CheckTarget(TargetKind::kMdt, config.directory));
    ASSIGN_OR_RETURN(std::unique_ptr<KvStore> store, OpenRocksKv(config.directory, RocksKvOptions()));
    ASSIGN_OR_RETURN(uint64_t epoch, runtime.Run(replication::MakeAlone(store.get())));
    std::printf(
        "the copy in %s is the MDT of a filesystem of one MDS now, as of epoch %llu\n"
        "format all other copies anew before they are used again, and delete the keys in etcd\n",
        config.directory.c_str(), static_cast<unsigned long long>(epoch));
    return OkStatus();
  }();
  runtime.Stop();
  return Finished("nacre-mds", status);
}

int RunFormat(const OssConfig& config) {
  MakeFilesPrivate();
  SetLogLevel(LogLevel::kWarning);  // what it does is said on stdout
  Runtime runtime(1);
  Status status = OkStatus();
  for (const OstConfig& ost : config.osts) {
    const std::string name = absl::StrFormat("OST %d", ost.index);
    if (!status.ok() || !IsWanted(TargetKind::kOst, name, ost.directory)) continue;
    status = FormatOst(runtime, ost, config.memory);
    if (status.ok()) std::printf("formatted a new %s in %s\n", name.c_str(), ost.directory.c_str());
    if (status.ok() && ost.copies > 1) {
      std::printf(
          "%s is to have %u members: %u more server%s must have an [[oss.ost]] of this index and copies = "
          "%u\n",
          name.c_str(), ost.copies, ost.copies - 1, ost.copies > 2 ? "s" : "", ost.copies);
    }
  }
  runtime.Stop();
  return Finished("nacre-oss", status);
}

}  // namespace nacre
