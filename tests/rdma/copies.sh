#!/usr/bin/env bash
# copies.sh: over RDMA a client's device sends what it writes once, however many members the OST has: two guests, see guest/servers and
# guest/copies. 77: no guest can be run here.
set -euo pipefail
cd "$(dirname "$0")/../.."
tests/rdma/run --timeout 300 --two "NACRE_OST_SIZE=$((400 << 20)) NACRE_COPIES=2 tests/rdma/guest/servers" tests/rdma/guest/copies
