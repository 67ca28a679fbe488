#!/usr/bin/env bash
# A whole cluster over RDMA, in a guest: see guest/mount. 77: no guest can be run here.
set -euo pipefail
cd "$(dirname "$0")/../.."
tests/rdma/run --timeout 600 --memory 3G tests/rdma/guest/mount
