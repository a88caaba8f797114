#!/bin/sh
# The portable kernels alone, as on a machine without AVX2: the suite, but for tests that run no kernel, with CADRE_ISA=base (shorter: CADRE_QUICK), then every
# operator's cases on them under valgrind's memcheck, which sees reads of what was never written. Argument: the build folder.
# Closes with `N passed, N failed`.
set -u
cd "$(dirname "$0")/.." || exit 1
build=${1:-build}
export CADRE_ISA=base CADRE_QUICK=1 OMP_WAIT_POLICY=passive
CHECK_EXCEPT="test_adapter test_base test_chat test_comm test_compilers.sh test_conversations test_data test_hf test_hf_config test_io test_machine test_parse test_plan.sh test_recipe test_tokenizer"
export CHECK_EXCEPT
log=$(mktemp)
trap 'rm -f "$log"' EXIT
tools/check.sh "$build" | tee "$log"
line=$(tail -n 1 "$log")                 # N passed, N failed, N skipped
passed=$(expr "$line" : '\([0-9]*\) passed') || passed=0
failed=$(expr "$line" : '.* \([0-9]*\) failed')
[ "$passed" != 0 ] && [ -n "$failed" ] || failed=1
if ! command -v valgrind >/dev/null 2>&1; then
    echo "FAIL  no valgrind here (apt: valgrind)"
    failed=$((failed + 1))
else
    # A seed first: memcheck must find a value that was never written where there is one.
    printf '#include <stdlib.h>\nint main(void) { int *p = malloc(4); int x = *p ? 3 : 4; free(p); return x == 5; }\n' >"$log.c"
    "${CC:-cc}" -O0 -o "$log.seed" "$log.c"
    valgrind -q --error-exitcode=9 "$log.seed" >/dev/null 2>&1
    seed=$?
    rm -f "$log.c" "$log.seed"
    t0=$(date +%s)
    OMP_NUM_THREADS=2 valgrind -q --error-exitcode=9 --leak-check=no --fair-sched=yes "$build/bits_hash" kernels >"$log" 2>&1
    rc=$?
    n=$(grep -c ', kernel ' "$log")
    if [ "$seed" = 9 ] && [ "$rc" = 0 ] && [ "$n" -ge 20 ]; then echo "ok    memcheck: $n portable kernels over their operators' cases, $(($(date +%s) - t0)) s"; passed=$((passed + 1))
    else
        echo "FAIL  memcheck: exit code $rc, $n kernels; of the seed: $seed"
        grep -v ', kernel ' "$log" | head -n 60
        failed=$((failed + 1))
    fi
fi
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
