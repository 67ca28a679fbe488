#include "daemon/cli/cluster_target.h"

#include <absl/strings/str_format.h>

#include <cerrno>
#include <cstdlib>

#include "common/runtime.h"
#include "daemon/cli/xattr.h"
#include "daemon/config.h"
#include "daemon/local.h"
#include "rpc/convert.h"
#include "rpc/grpc_channel.h"

namespace nacre::cli {
namespace {

constexpr Duration kTimeout = 5s;

// Relative paths of --dir would else make relative socket addresses.
StatusOr<std::string> Absolute(const std::string& path) {
  char* resolved = realpath(path.c_str(), nullptr);
  if (resolved == nullptr) return ErrnoError(errno, absl::StrFormat("%s: %s", path, std::strerror(errno)));
  std::string absolute = resolved;
  std::free(resolved);
  return absolute;
}

}  // namespace

void AddAddressOptions(CLI::App* command, ClusterTarget* target) {
  auto* directory =
      command->add_option("--dir", target->directory, "the directory of a `nacre local`")->type_name("DIR");
  command
      ->add_option("--mds", target->mds, "the address of the MDS: HOST:PORT or unix:/PATH; of several: A,B")
      ->type_name("ADDRESS")
      ->excludes(directory);
}

void AddTargetOptions(CLI::App* command, ClusterTarget* target) {
  AddAddressOptions(command, target);
  command->add_option("path", target->path, "a path inside a mount; by default the working directory")
      ->type_name("PATH")
      ->excludes("--dir")
      ->excludes("--mds");
}

StatusOr<std::string> FindMds(const ClusterTarget& target) {
  if (!target.mds.empty()) return target.mds;
  if (!target.directory.empty()) {
    ASSIGN_OR_RETURN(std::string directory, Absolute(target.directory));
    return LocalMdsAddress(directory);
  }
  auto address = ReadXattr(target.path.empty() ? "." : target.path, "nacre.mds");
  if (address.ok()) return address;
  if (target.path.empty()) return std::string(kDefaultMdsAddress);
  return address.status();
}

StatusOr<proto::ClusterStatus> FetchStatus(const ClusterTarget& target) {
  ASSIGN_OR_RETURN(std::string address, FindMds(target));
  ASSIGN_OR_RETURN(std::shared_ptr<ClusterChannel> cluster, NewGrpcClusterChannel(address, kTimeout));
  Runtime runtime(1);
  ASSIGN_OR_RETURN(proto::ClusterStatus status, runtime.Run(cluster->GetStatus()));
  RETURN_IF_ERROR(FromProto(status.status()));
  return status;
}

StatusOr<proto::AdminReply> Administer(const ClusterTarget& target, proto::AdminRequest request,
                                       Duration patience) {
  ASSIGN_OR_RETURN(std::string address, FindMds(target));
  ASSIGN_OR_RETURN(std::shared_ptr<ClusterChannel> cluster, NewGrpcClusterChannel(address, patience));
  Runtime runtime(1);
  ASSIGN_OR_RETURN(proto::AdminReply reply, runtime.Run(cluster->Administer(std::move(request))));
  RETURN_IF_ERROR(FromProto(reply.status()));
  return reply;
}

}  // namespace nacre::cli
