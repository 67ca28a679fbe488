#!/usr/bin/env bash
# transport.sh [--full]: the transport's conformance suite over RDMA verbs, and servers killed and stopped while they write into a client's
# memory (5 of each, or 20), and puts into the memory of a made-up GPU with their speed beside host memory, in a guest with a software RDMA device. 77: no guest can be run here.
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=5
[[ ${1:-} == --full ]] && rounds=20
tests/rdma/run --timeout 480 "
  set -e
  build/bin/transport_test --gtest_list_tests --gtest_filter='*/Verbs*' | grep -q Verbs || { echo 'the guest has no RDMA device'; exit 1; }
  timeout 440 build/bin/transport_test --gtest_brief=1 --gtest_filter='*/Verbs*:*/Verbs*.*'
  NACRE_KILL_ROUNDS=$rounds timeout 200 build/bin/killed_server_test --gtest_brief=1 --gtest_filter='*/rdma'
  timeout 120 build/bin/gpu_test --gtest_brief=1 --gtest_filter='*/OwnNic'"
