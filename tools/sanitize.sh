#!/bin/sh
# All tests under AddressSanitizer, LeakSanitizer and UBSan (shorter: CADRE_QUICK), then the shared-memory transport and
# the exchange of experts under ThreadSanitizer, with threads as ranks among other things. Closes with `N passed, N failed`.
set -u
cd "$(dirname "$0")/.." || exit 1
CADRE_QUICK=1
ASAN_OPTIONS=detect_leaks=1
UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
TSAN_OPTIONS=halt_on_error=1
OMP_WAIT_POLICY=passive
CHECK_EXCEPT=test_compilers.sh # builds what it compares itself
export CHECK_EXCEPT CADRE_QUICK ASAN_OPTIONS UBSAN_OPTIONS TSAN_OPTIONS OMP_WAIT_POLICY
build() { # folder, sanitizers, targets
    # shellcheck disable=SC2086
    { cmake -S . -B "$1" -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCADRE_SANITIZE="$2" && ninja -C "$1" $3; } >"$1.log" 2>&1 && { rm -f "$1.log"; return 0; }
    tail -n 40 "$1.log"
    return 1
}
failed=0
if ! build build-asan address,undefined all; then
    echo "FAIL  the build with -fsanitize=address,undefined"
    failed=1
elif ! tools/check.sh build-asan; then
    failed=1
fi
if ! build build-tsan thread "test_comm test_ep"; then
    echo "FAIL  the build with -fsanitize=thread"
    failed=$((failed + 2))
else
    for t in test_comm "test_ep threads_as_ranks"; do
        t0=$(date +%s)
        # shellcheck disable=SC2086
        if build-tsan/$t >build-tsan/log 2>&1; then
            echo "ok    $t with -fsanitize=thread, $(($(date +%s) - t0)) s"
        else
            echo "FAIL  $t with -fsanitize=thread"
            tail -n 60 build-tsan/log
            failed=$((failed + 1))
        fi
    done
fi
echo "$((3 - failed)) passed, $failed failed"
[ "$failed" = 0 ]
