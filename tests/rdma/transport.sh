#!/usr/bin/env bash
# The transport's conformance suite over RDMA verbs, in a guest with a software RDMA device. 77: no guest can be run here.
set -euo pipefail
cd "$(dirname "$0")/../.."
tests/rdma/run --timeout 480 "
  set -e
  build/bin/transport_test --gtest_list_tests --gtest_filter='*/Verbs*' | grep -q Verbs || { echo 'the guest has no RDMA device'; exit 1; }
  timeout 440 build/bin/transport_test --gtest_brief=1 --gtest_filter='*/Verbs*:*/Verbs*.*'"
