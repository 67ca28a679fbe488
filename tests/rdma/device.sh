#!/usr/bin/env bash
# Files read into GPU memory over RDMA, in a guest: see guest/device. 77: no guest can be run here.
set -euo pipefail
cd "$(dirname "$0")/../.."
tests/rdma/run --timeout 400 --memory 3G tests/rdma/guest/device
