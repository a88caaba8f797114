#!/bin/sh
# The AVX-512, AVX-512 BF16 and AMX kernels without such a processor: a build whose intrinsics are emulated on AVX2
# (test/emulate/avx512.h) runs the same sources at each level: every operator's cases with gradients and thread counts, the
# product by each path against its class, golden operators, a model over layouts of ranks, properties of experts, and LoRA on the
# base's bits. Then the product's bits up to AMX against those that a processor with these instructions gave (test/golden/products.txt).
# Arguments: levels (all). Closes with `N passed, N failed`.
set -u
cd "$(dirname "$0")/.." || exit 1
[ "$(uname -m)" = x86_64 ] && grep -q '\bavx2\b.*\bfma\b\|\bfma\b.*\bavx2\b' /proc/cpuinfo || { echo "emulation needs x86-64 with AVX2, which this machine has not"; exit 77; }
export OMP_WAIT_POLICY=passive
dir=build-emulate
{ cmake -S . -B $dir -G Ninja -DCMAKE_BUILD_TYPE=Release -DCADRE_EMULATE=ON &&
    ninja -C $dir cadre bits_hash test_gemm test_golden_ops test_golden_models test_spine test_experts test_lora; } >$dir.log 2>&1 || { tail -n 40 $dir.log; exit 1; }
rm -f $dir.log
log=$(mktemp)
trap 'rm -f "$log" "$log.diff"' EXIT
passed=0
failed=0
run() { # level, command
    level=$1
    shift
    t0=$(date +%s)
    if CADRE_ISA=$level timeout 600 "$@" >"$log" 2>&1; then
        echo "ok    $level: $(basename "$1") $(echo "$*" | cut -s -d ' ' -f 2-), $(($(date +%s) - t0)) s"
        passed=$((passed + 1))
    else
        echo "FAIL  $level: $*; output:"
        tail -n 40 "$log" | sed 's/^/      /'
        failed=$((failed + 1))
    fi
}
all=$#
[ $# -gt 0 ] || set -- avx512 avx512_bf16 amx
for level in "$@"; do
    run "$level" $dir/cadre check
    run "$level" $dir/test_golden_ops
    run "$level" $dir/test_golden_models
    run "$level" $dir/test_spine
    run "$level" $dir/test_experts
    run "$level" $dir/test_lora zero_b_is_the_base_to_the_bit
done
run "$level" $dir/test_gemm                     # takes every path that the level allows
CADRE_ISA=amx $dir/bits_hash products >"$log" 2>&1
if [ "$all" != 0 ]; then :
elif grep -v '^#' test/golden/products.txt | diff - "$log" >"$log.diff"; then
    echo "ok    $(grep -c . "$log") products: the bits of a processor with the instructions"
    passed=$((passed + 1))
else
    echo "FAIL  products: a processor with the instructions (<) and the emulation (>) differ:"
    cat "$log.diff"
    failed=$((failed + 1))
fi
# gcc and clang: the other compiler's build is that of test/test_compilers.sh
if [ "$all" = 0 ]; then
    CADRE_ISA=amx timeout 900 sh test/test_compilers.sh $dir >"$log" 2>&1
    case $? in
        0) echo "ok    $(tail -n 1 "$log")"; passed=$((passed + 1)) ;;
        77) echo "skip  $(tail -n 1 "$log")" ;;
        *) echo "FAIL  test_compilers.sh $dir; output:"; sed 's/^/      /' "$log"; failed=$((failed + 1)) ;;
    esac
fi
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
