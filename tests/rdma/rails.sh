#!/usr/bin/env bash
# rails.sh: two hosts with two RDMA devices each, on wires of their own, one of which is cut while data goes over both: two guests, see
# guest/servers and guest/rails. 77: no guest can be run here.
set -euo pipefail
cd "$(dirname "$0")/../.."
tests/rdma/run --timeout 240 --wires 2 --two "NACRE_OST_SIZE=$((200 << 20)) tests/rdma/guest/servers" tests/rdma/guest/rails
