#!/bin/sh
# Builds the fuzzers (clang, libFuzzer, ASan and UBSan) and runs each for SECONDS (default 120).
set -eu
cd "$(dirname "$0")/.."
. tools/packages.sh
need clang-19 "libFuzzer and the sanitizers" 2>/dev/null || true
need libclang-rt-19-dev "their run-time libraries"
need libomp-19-dev "OpenMP for clang"
install_needed
seconds=${FUZZ_SECONDS:-120}
cmake -S . -B build-fuzz -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_COMPILER=clang-19 -DCADRE_FUZZ=ON >/dev/null
ninja -C build-fuzz fuzz >/dev/null
passed=0
failed=0
for f in build-fuzz/fuzz_*; do
    [ -x "$f" ] && [ -f "$f" ] || continue
    mkdir -p "build-fuzz/corpus/$(basename "$f")"
    if "$f" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=0 -verbosity=0 "build-fuzz/corpus/$(basename "$f")" >"$f.log" 2>&1; then
        passed=$((passed + 1))
        echo "ok    $(basename "$f"), $seconds s"
    else
        failed=$((failed + 1))
        echo "FAIL  $(basename "$f")"
        tail -n 30 "$f.log"
    fi
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
