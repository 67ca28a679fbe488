#!/usr/bin/env bash
# mount.sh [--full]: a whole cluster over RDMA, in a guest: see guest/mount. With a file of 32 MiB, or 4 GiB. 77: no guest can be run here.
set -euo pipefail
cd "$(dirname "$0")/../.."
mib=32 memory=3G limit=600
[[ ${1:-} == --full ]] && mib=4096 memory=9G limit=1800
tests/rdma/run --timeout $limit --memory $memory \
  "NACRE_OST_SIZE=$(((mib / 2 + 400) << 20)) tests/rdma/guest/mount $mib"
