#!/usr/bin/env bash
# faults.sh [--full]: killed servers and a device that goes, under verified I/O over RDMA, in a guest: see guest/faults. 2 rounds, or 20.
# 77: no guest can be run here.
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=2 limit=400
[[ ${1:-} == --full ]] && rounds=20 limit=3000
tests/rdma/run --timeout $limit --memory 3G "tests/rdma/guest/faults $rounds"
