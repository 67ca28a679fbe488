#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <cerrno>
#include <cstdio>
#include <functional>

#include "common/ids.h"
#include "common/random.h"
#include "common/runtime.h"
#include "common/units.h"
#include "daemon/cli/bench_figure.h"
#include "daemon/cli/bench_target.h"
#include "daemon/cli/bench_transport.h"
#include "daemon/cli/cluster_target.h"
#include "daemon/cli/command.h"
#include "daemon/cli/progress.h"
#include "daemon/cli/status_json.h"
#include "rpc/grpc_channel.h"

namespace nacre::cli {
namespace {

constexpr char kBenchHelp[] =
    "What a request costs, layer by layer: one thread, one request at a time unless the figure says "
    "otherwise. "
    "Each layer leaves out what is above it.\n"
    "  mount    kernel, FUSE, client, network, server, disk: needs a path on a mount\n"
    "  client   client, network, server, disk: needs --mds. A second client ends the caching of a lone one.\n"
    "  rpc      network: round trips to the MDS that touch nothing; needs --mds\n"
    "  disk     disk: needs a directory on the disk\n"
    "  rdma, shm, tcp  the data plane by itself: messages, and memory to memory, between two threads\n"
    "Other directories than Nacre's work too, for comparison.\n"
    "\n"
    "Examples:\n"
    "  nacre bench /mnt/nacre\n"
    "  nacre bench --layer client --mds 127.0.0.1:7710\n"
    "  nacre bench --layer rpc --mds 127.0.0.1:7710\n"
    "  nacre bench --layer disk /var/lib/nacre\n"
    "  nacre bench --layer rdma\n"
    "Exit status: 0 done, 1 failed, 2 wrong usage.";

constexpr uint64_t kLarge = 1 << 20;
constexpr uint64_t kSmall = kBlockSize;
constexpr Duration kRpcTimeout = 5s;

struct BenchArguments {
  std::string path;
  std::string mds;
  std::string layer = "mount";
  std::string size = "256M";
  uint64_t count = 2000;
  bool json = false;
};

class Bench {
 public:
  Bench(const BenchArguments& arguments, uint64_t size)
      : arguments_(arguments), size_(size), progress_("nacre bench") {}

  // Runs one phase, one operation after the other.
  Status Phase(const std::string& name, uint64_t operations, uint64_t bytes_each,
               const std::function<Status(uint64_t)>& one, const std::function<Status()>& last = nullptr) {
    return Measure(name, operations, bytes_each, [&]() -> Status {
      for (uint64_t i = 0; i < operations; ++i) {
        RETURN_IF_ERROR(one(i));
        progress_.Show(absl::StrFormat("%s, %d of %d", name, i + 1, operations));
      }
      return last ? last() : OkStatus();
    });
  }

  // UNIMPLEMENTED: the layer has no such thing; left out.
  Status Measure(const std::string& name, uint64_t operations, uint64_t bytes_each,
                 const std::function<Status()>& all) {
    const Duration begin = RealClock().Now();
    Status status = all();
    if (ToErrno(status) == EOPNOTSUPP) return OkStatus();
    RETURN_IF_ERROR(status);
    figures_.push_back({name, operations, operations * bytes_each, RealClock().Now() - begin});
    return OkStatus();
  }

  Status RunData(BenchTarget& target) {
    const uint64_t large = size_ / kLarge, small = size_ / kSmall;
    auto sync = [&] { return target.Sync(); };
    SeededRandom random(1);
    RETURN_IF_ERROR(Phase(
        "write 1 MiB", large, kLarge, [&](uint64_t i) { return target.Write(i * kLarge, buffer(kLarge)); },
        sync));
    RETURN_IF_ERROR(target.DropCaches());
    RETURN_IF_ERROR(Phase("read 1 MiB", large, kLarge,
                          [&](uint64_t i) { return target.Read(i * kLarge, buffer(kLarge)); }));
    RETURN_IF_ERROR(
        Measure("read 1 MiB, 16 at once", large, kLarge, [&] { return target.ReadAtOnce(large); }));
    RETURN_IF_ERROR(target.DropCaches());
    RETURN_IF_ERROR(Phase("read 4 KiB, random", arguments_.count, kSmall, [&](uint64_t) {
      return target.Read(random.Below(small) * kSmall, buffer(kSmall));
    }));
    return Phase(
        "write 4 KiB, random", arguments_.count, kSmall,
        [&](uint64_t) { return target.Write(random.Below(small) * kSmall, buffer(kSmall)); }, sync);
  }

  Status RunFiles(BenchTarget& target) {
    RETURN_IF_ERROR(Phase("create", arguments_.count, 0, [&](uint64_t i) { return target.Create(i); }));
    RETURN_IF_ERROR(Phase("stat", arguments_.count, 0, [&](uint64_t i) { return target.Stat(i); }));
    return Phase("unlink", arguments_.count, 0, [&](uint64_t i) { return target.Unlink(i); });
  }

  // A sign of life of no session: the MDS answers at once that it knows none.
  Status RunRpc(const std::string& mds) {
    ASSIGN_OR_RETURN(std::shared_ptr<MetadataConnector> connector, NewGrpcConnector(mds));
    Runtime runtime(1);
    StatusOr<std::shared_ptr<MetadataChannel>> channel = absl::UnavailableError("not tried yet");
    const auto round_trip = [&](uint64_t) {
      proto::MetadataRequest request;
      request.mutable_keep_alive();
      return runtime.Run((*channel)->Call(std::move(request))).status();
    };
    Status found;
    for (size_t i = 0; i < connector->servers(); ++i) {  // one of them serves
      channel = runtime.Run(connector->Connect({}, kRpcTimeout));
      found = channel.ok() ? round_trip(0) : channel.status();
      if (found.ok()) break;
    }
    RETURN_IF_ERROR(found);
    Status status = Phase("round trip", arguments_.count, 0, round_trip);
    (*channel)->Close();
    return status;
  }

  Status RunTransport() {
    auto show = [this](const std::string& name) { progress_.Show(name); };
    ASSIGN_OR_RETURN(figures_, MeasureTransport(arguments_.layer, size_, arguments_.count, show));
    return OkStatus();
  }

  const std::vector<Figure>& figures() const { return figures_; }

 private:
  std::span<std::byte> buffer(uint64_t size) {
    if (memory_ == nullptr)
      memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kBlockSize, kLarge)), std::free);
    return {memory_.get(), size};
  }

  const BenchArguments& arguments_;
  const uint64_t size_;
  std::shared_ptr<std::byte> memory_;
  std::vector<Figure> figures_;
  Progress progress_;
};

bool IsTransport(const std::string& layer) { return layer == "rdma" || layer == "shm" || layer == "tcp"; }

StatusOr<std::unique_ptr<BenchTarget>> MakeTarget(const BenchArguments& arguments, uint64_t size) {
  if (arguments.layer == "client") return MakeClientTarget(arguments.mds);
  if (arguments.layer == "disk") return MakeDiskTarget(arguments.path, size);
  return MakeMountTarget(arguments.path);
}

Status CheckArguments(const BenchArguments& arguments, uint64_t size) {
  const bool needs_mds = arguments.layer == "client" || arguments.layer == "rpc";
  if (needs_mds && arguments.mds.empty())
    return ErrnoError(EINVAL, absl::StrFormat("--layer %s needs --mds", arguments.layer));
  if (!needs_mds && !IsTransport(arguments.layer) && arguments.path.empty())
    return ErrnoError(EINVAL, absl::StrFormat("--layer %s needs a path", arguments.layer));
  if (size < kLarge || size % kLarge != 0)
    return ErrnoError(EINVAL, absl::StrFormat("--size %s: must be a multiple of 1M", arguments.size));
  if (arguments.count == 0) return ErrnoError(EINVAL, "--count 0: must be at least 1");
  return OkStatus();
}

void PrintBench(const std::vector<Figure>& figures) {
  for (const Figure& figure : figures) {
    std::printf("%-22s %9.1f us each %10.0f /s", figure.name.c_str(), figure.microseconds_each(),
                static_cast<double>(figure.operations) / figure.seconds());
    if (figure.bytes > 0)
      std::printf(
          "   %s/s",
          HumanSize(static_cast<uint64_t>(static_cast<double>(figure.bytes) / figure.seconds())).c_str());
    std::printf("\n");
  }
}

Json BenchToJson(const std::string& layer, const std::vector<Figure>& figures) {
  Json list = Json::array();
  for (const Figure& figure : figures) {
    list.push_back({{"name", figure.name},
                    {"operations", figure.operations},
                    {"bytes", figure.bytes},
                    {"seconds", figure.seconds()},
                    {"microseconds_each", figure.microseconds_each()}});
  }
  return {{"layer", layer}, {"figures", list}};
}

int RunBench(const BenchArguments& arguments) {
  auto size = ParseSize(arguments.size);
  if (!size.ok()) return Fail(size.status());
  if (Status status = CheckArguments(arguments, *size); !status.ok()) return Fail(status);
  Bench bench(arguments, *size);
  Status status = OkStatus();
  if (arguments.layer == "rpc") {
    status = bench.RunRpc(arguments.mds);
  } else if (IsTransport(arguments.layer)) {
    status = bench.RunTransport();
  } else {
    auto target = MakeTarget(arguments, *size);
    if (!target.ok()) return Fail(target.status());
    status = bench.RunData(**target);
    if (status.ok()) status = bench.RunFiles(**target);
  }
  if (!status.ok()) return Fail(status);
  if (arguments.json) {
    std::puts(JsonText(BenchToJson(arguments.layer, bench.figures())).c_str());
  } else {
    PrintBench(bench.figures());
  }
  return kOk;
}

}  // namespace

void AddBench(CLI::App& app, int* exit) {
  CLI::App* command = app.add_subcommand("bench", "Measure what a request costs, layer by layer");
  auto arguments = std::make_shared<BenchArguments>();
  command->add_option("path", arguments->path, "a directory")->type_name("DIR");
  command->add_option("--mds", arguments->mds, "the address of the MDS, for the layers client and rpc")
      ->type_name("ADDRESS");
  command->add_option("--layer", arguments->layer, "the uppermost layer that takes part")
      ->check(CLI::IsMember({"mount", "client", "rpc", "disk", "rdma", "shm", "tcp"}))
      ->capture_default_str();
  command->add_option("--size", arguments->size, "of the file that is written and read")
      ->type_name("SIZE")
      ->capture_default_str();
  command->add_option("--count", arguments->count, "of small requests and of files")->capture_default_str();
  command->add_flag("--json", arguments->json, "print JSON");
  command->footer(kBenchHelp);
  command->callback([=] { *exit = RunBench(*arguments); });
}

}  // namespace nacre::cli
