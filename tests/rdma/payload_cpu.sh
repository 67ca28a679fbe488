#!/usr/bin/env bash
# Checks that an OSS does not touch the payload while a client reads out of its cache over RDMA, in a guest: see guest/payload_cpu.
# 77: no guest can be run here.
set -euo pipefail
cd "$(dirname "$0")/../.."
command -v perf >/dev/null || { echo "SKIPPED: perf is missing (deploy/install-deps installs it)" >&2; exit 77; }
tests/rdma/run --timeout 300 --memory 3G tests/rdma/guest/payload_cpu
