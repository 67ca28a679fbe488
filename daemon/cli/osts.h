// OSTs and their members (docs/replication.md) as people and programs are shown them. Stateless.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/cli/status_json.h"
#include "proto/cluster.pb.h"

namespace nacre::cli {

// "90 s", "3 h".
std::string Ago(uint64_t seconds);

// How many members the OST is to have, by the word of that member that wants most; at least 1.
uint32_t WantedMembers(const proto::OstState& ost);
uint32_t MembersInSync(const proto::OstState& ost);

// "head", "in sync", "joining" or "away".
const char* MemberWord(const proto::OstState& ost, int member);

// The problems that the OST has told of, and one more if members are missing: "1 of 2 members in sync: …".
std::vector<std::string> OstProblems(const proto::OstState& ost);

// For nacre status: the OST, below it its members if it has several, and its problems.
std::vector<std::string> OstLines(const proto::OstState& ost);

// How far it is, of one that is being drained: "moved 12 files (3.0 GiB), 7 objects are left".
std::string DrainText(const proto::OstState& ost);

// For nacre df: "12 objects", and how many members are in sync.
std::string ObjectsAndMembers(const proto::OstState& ost);

// {"ost": 3, "epoch": 7, "copies": 2, "members": [{"address": "…", "state": "head", "up": true, …}]}, for an
// OST that has members.
Json ChainToJson(const proto::OstState& ost);

}  // namespace nacre::cli
