#!/usr/bin/env bash
# Servers on one host and a mount on another over RDMA, and the wire between them cut: two guests, see guest/servers and guest/remote_mount.
# 77: no guest can be run here.
set -euo pipefail
cd "$(dirname "$0")/../.."
tests/rdma/run --timeout 600 --memory 2G --two tests/rdma/guest/servers tests/rdma/guest/remote_mount
