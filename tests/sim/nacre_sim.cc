// nacre-sim: runs simulated clusters by seed. The same seed always runs the same way.

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>

#include "common/log.h"
#include "tests/sim/scenario.h"

int main(int argc, char** argv) {
  CLI::App app{
      "Simulated clusters, one per seed: MDS, OSSes and clients on one thread, under a simulated clock, "
      "network and "
      "disk.\nStops at the first seed that fails, and says which; nacre-sim --seed N --trace shows what "
      "happened."};
  nacre::sim::RunOptions options;
  uint64_t count = 1;
  bool go_on = false, logs = false;
  app.add_option("--seed", options.seed, "the first seed")->required();
  app.add_option("--count", count, "how many seeds, one after the other")->capture_default_str();
  app.add_option("--plant", options.plant, "a bug to be found (docs/testing.md)")
      ->transform(CLI::CheckedTransformer(nacre::sim::Plants()));
  std::vector<std::string> events;
  for (const nacre::sim::EventKind& kind : nacre::sim::EventKinds()) events.push_back(kind.name);
  app.add_option("--event", options.event, "no other fault than this one")->check(CLI::IsMember(events));
  app.add_flag("--ahead", options.ahead, "also faults and promises that do not hold yet (docs/testing.md)");
  app.add_flag("--plain", options.plain,
               "as earlier versions did, for their seeds: faults at any time (docs/testing.md)");
  app.add_option("--clients", options.clients, "no cluster has fewer clients than this")
      ->check(CLI::Range(1, 3))
      ->capture_default_str();
  app.add_option("--copies", options.copies, "members of each OST (docs/replication.md)")
      ->check(CLI::Range(1, 3))
      ->capture_default_str();
  app.add_option("--mds", options.mdses,
                 "MDSes with copies of the MDT (docs/decisions/0066-copies-of-the-mdt.md)")
      ->check(CLI::Range(1, 5))
      ->capture_default_str();
  app.add_flag("--head-reads", options.head_reads,
               "with --copies: reads go to the heads of OSTs alone, and no member is cut off, as in earlier "
               "versions, for their seeds");
  app.add_flag("--growth", options.growth, "files are moved and spread, and OSTs drained, all the time");
  bool without_rebalance = false;
  app.add_flag("--no-rebalance", without_rebalance,
               "with --growth: files are not spread over OSTs, as in earlier versions, for their seeds");
  bool without_scrub = false;
  app.add_flag("--no-scrub", without_scrub,
               "with --copies: nothing is scrubbed and no block goes bad, as in earlier versions, for their "
               "seeds");
  app.add_flag("--trace", options.trace, "print what happens, with the virtual time in seconds");
  app.add_flag("--log", logs, "print what the servers and clients log");
  app.add_flag("--keep-going", go_on, "run all seeds, whatever fails");
  CLI11_PARSE(app, argc, argv);
  options.rebalance = options.growth && !without_rebalance;
  options.scrub = options.copies > 1 && !without_scrub;

  nacre::SetLogLevel(logs ? nacre::LogLevel::kDebug : static_cast<nacre::LogLevel>(100));
  const auto start = std::chrono::steady_clock::now();
  uint64_t operations = 0, failures = 0, ran = 0;
  for (uint64_t seed = options.seed; ran < count; ++seed) {
    nacre::sim::RunOptions one = options;
    one.seed = seed;
    nacre::sim::RunResult result = nacre::sim::RunSeed(one);
    ++ran;
    operations += result.operations;
    if (count == 1) {
      std::printf("seed %lu: %lu operations, %lu steps, %.3f s of virtual time, trace %016lx\n", seed,
                  result.operations, result.steps, static_cast<double>(result.virtual_time.count()) / 1e9,
                  result.trace_hash);
    }
    if (result.failure.empty()) continue;
    ++failures;
    std::printf("seed %lu FAILED: %s\n", seed, result.failure.c_str());
    std::fflush(stdout);
    if (!go_on) break;
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::printf("%lu seeds, %lu failed, %lu operations, %.1f s\n", ran, failures, operations, took.count());
  return failures == 0 ? 0 : 1;
}
