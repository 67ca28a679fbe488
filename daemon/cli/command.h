// The subcommands of nacre: one file each. Every Add function registers one with the app; when it is the one
// that was called, it runs and sets the exit status: 0 done, 1 failed, 2 wrong usage. Main thread only.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "common/status.h"

namespace nacre::cli {

inline constexpr int kOk = 0;
inline constexpr int kFailure = 1;
inline constexpr int kUsage = 2;

void AddLocal(CLI::App& app, int* exit);
void AddStop(CLI::App& app, int* exit);
void AddMount(CLI::App& app, int* exit);
void AddUmount(CLI::App& app, int* exit);
void AddStatus(CLI::App& app, int* exit);
void AddDf(CLI::App& app, int* exit);
void AddPath(CLI::App& app, int* exit);
void AddEvict(CLI::App& app, int* exit);
void AddScrub(CLI::App& app, int* exit);
void AddSync(CLI::App& app, int* exit);
void AddSetstripe(CLI::App& app, int* exit);
void AddMigrate(CLI::App& app, int* exit);
void AddOst(CLI::App& app, int* exit);
void AddOstRebalance(CLI::App* ost, int* exit);  // below `nacre ost`
void AddGetstripe(CLI::App& app, int* exit);
void AddBench(CLI::App& app, int* exit);
void AddDoctor(CLI::App& app, int* exit);
void AddMdt(CLI::App& app, int* exit);
void AddGpu(CLI::App& app, int* exit);
void AddVersion(CLI::App& app, int* exit);

// Prints "nacre: MESSAGE" to stderr. Returns kUsage for INVALID_ARGUMENT, else kFailure.
int Fail(const Status& status);

}  // namespace nacre::cli
