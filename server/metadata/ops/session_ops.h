// Sessions: connect, disconnect, keep-alive, reclaim, and what ends a session from this side. Thread-safe.
#pragma once

#include "server/metadata/mds.h"

namespace nacre::mds {

Task<Reply> Connect(MdsPtr mds, std::shared_ptr<MetadataPeer> peer, proto::Connect request);
Task<Reply> Disconnect(const Op& op);
Reply KeepAlive(const Op& op, const proto::KeepAlive& request);
Task<Reply> Reclaim(const Op& op, const proto::Reclaim& request);
Reply AcquireLease(const Op& op, const proto::AcquireLease& request);
Reply ReleaseLease(const Op& op, const proto::ReleaseLease& request);
Reply ReportProblem(const Op& op, const proto::ReportProblem& request);

}  // namespace nacre::mds
