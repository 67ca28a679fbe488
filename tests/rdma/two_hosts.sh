#!/usr/bin/env bash
# two_hosts.sh [--full]: servers on one host and a mount on another over RDMA, and the wire between them cut: two guests, see guest/servers
# and guest/remote_mount. With a file of 64 MiB and one cut, or 4 GiB and 20 of them. 77: no guest can be run here.
set -euo pipefail
cd "$(dirname "$0")/../.."
cuts=1 mib=64 memory=2G limit=600
[[ ${1:-} == --full ]] && cuts=20 mib=4096 memory=8G limit=3600
tests/rdma/run --timeout $limit --memory $memory --two "NACRE_OST_SIZE=$(((mib / 2 + 400) << 20)) tests/rdma/guest/servers" \
  "tests/rdma/guest/remote_mount $cuts $mib"
