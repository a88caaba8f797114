#!/bin/sh
# Kernels give the same bits whichever compiler built them: gcc and clang build the library, and what bits_hash prints of both is
# equal: the base kernels, a model on them, and all kernels of this machine's instruction sets. On x86-64 the other compiler's
# build has what this machine may lack emulated, so that it also answers for a machine with AVX-512; tools/emulate.sh compares
# emulated kernels of both. Arguments: the build folder. The other compiler's build stays beside it, for the next time.
set -eu
cd "$(dirname "$0")/.."
build=${1:-build}
. tools/clang.sh
this=$(sed -n 's/^CMAKE_C_COMPILER:[A-Z]*=//p' "$build/CMakeCache.txt")
case "$("$this" --version | head -n 1)" in
    *clang*)
        other=gcc
        command -v gcc >/dev/null 2>&1 || { echo "no gcc here to compare with $this"; exit 77; } ;;
    *)
        find_clang || { echo "no clang here to compare with $this (apt: clang-19 libomp-19-dev)"; exit 77; }
        [ "$CLANG_OMP" = yes ] || { echo "$CLANG has no OpenMP here (apt: libomp-19-dev)"; exit 77; }
        other=$CLANG ;;
esac
dir=build-bits-$other
emulate=OFF
[ "$(uname -m)" != x86_64 ] || emulate=ON
{ cmake -S . -B "$dir" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_COMPILER="$other" -DCADRE_EMULATE=$emulate && ninja -C "$dir" bits_hash; } >"$dir.log" 2>&1 ||
    { tail -n 40 "$dir.log"; exit 1; }
rm -f "$dir.log"
"$build/bits_hash" >"$dir/this.txt"
"$dir/bits_hash" >"$dir/other.txt"
n=$(grep -c ': [0-9a-f]\{16\} of' "$dir/this.txt") || true
[ "$n" -ge 20 ] && [ "$(grep -c '^model ' "$dir/this.txt")" = 2 ] || { echo "bits_hash printed too little:"; cat "$dir/this.txt"; exit 1; }
"$build/bits_hash" kernels >"$dir/kernels.txt"
level=$(sed -n 's/^level //p' "$dir/kernels.txt")
cat "$dir/kernels.txt" >>"$dir/this.txt"
CADRE_ISA=$level "$dir/bits_hash" kernels >>"$dir/other.txt"
diff "$dir/this.txt" "$dir/other.txt" || { echo "$this (<) and $other (>) give other bits"; exit 1; }
echo "$(basename "$this") and $other: $n base kernels, 2 models and $(grep -c ': [0-9a-f]\{16\} of' "$dir/kernels.txt") kernels of $level bit-equal"
