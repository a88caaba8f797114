#!/bin/sh
# The tests under AddressSanitizer and UBSan, and the shared-memory transport under ThreadSanitizer.
set -eu
cd "$(dirname "$0")/.."
cmake -S . -B build-asan -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCADRE_SANITIZE=address,undefined >/dev/null
ninja -C build-asan >/dev/null
ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 CADRE_QUICK=1 tools/check.sh build-asan
cmake -S . -B build-tsan -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCADRE_SANITIZE=thread >/dev/null
ninja -C build-tsan test_comm >/dev/null
TSAN_OPTIONS=halt_on_error=1 build-tsan/test_comm
