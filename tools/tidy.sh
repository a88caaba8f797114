#!/bin/sh
# The rules that a machine can check: dependency order of the folders, files that are too long, stray instructions in
# portable files, unfinished marks, warnings of a second compiler. Silent when all is well.
set -u
cd "$(dirname "$0")/.."
bad=0
say() { echo "tidy: $*"; bad=1; }

# base <- tensor <- {io, comm, device} <- graph <- ops <- {models, compile} <- {plan, run} <- {data, train} <- cli
# recipe knows base only; device is below graph, data stands on io.
allowed() {
    case "$1" in
        base) echo "base" ;;
        tensor) echo "base tensor" ;;
        recipe) echo "base recipe" ;;
        io|comm|device) echo "base tensor $1" ;;
        graph) echo "base tensor device graph" ;;
        ops) echo "base tensor device comm graph ops" ;;
        compile) echo "base tensor device comm graph ops compile" ;;
        models) echo "base tensor recipe device graph ops compile models" ;;
        plan) echo "base tensor recipe device comm graph ops compile plan" ;;
        run) echo "base tensor device comm graph ops compile run" ;;
        data) echo "base tensor io data" ;;
        train) echo "base tensor recipe io comm device graph ops compile models plan run data train" ;;
        cli) echo "base recipe io train cli run" ;;
        *) echo "$1" ;;
    esac
}
for dir in src/*/; do
    m=$(basename "$dir")
    ok=" $(allowed "$m") "
    find "$dir" -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | while read -r f; do
        sed -n 's/^#include "\([a-z_0-9]*\)\/.*/\1/p' "$f" | sort -u | while read -r inc; do
            case "$ok" in *" $inc "*) ;; *) echo "tidy: $f includes $inc/, which $m may not see" ;; esac
        done
    done
done >/tmp/tidy.$$ 2>&1
if [ -s /tmp/tidy.$$ ]; then cat /tmp/tidy.$$; bad=1; fi
rm -f /tmp/tidy.$$

for f in $(git ls-files 'src/*.[ch]' 'src/*.cu' 'test/*.[ch]' 'include/*.h'); do
    [ -f "$f" ] || continue
    n=$(wc -l <"$f")
    [ "$n" -le 850 ] || say "$f has $n lines; files up to about 800 read best"
    awk -v f="$f" 'length($0) > 170 { printf "tidy: %s:%d: %d columns\n", f, NR, length($0); bad = 1 } END { exit bad }' "$f" || bad=1
    head -n 1 "$f" | grep -q '^/\*' || say "$f does not open with a comment that says what it is"
    if grep -n -E 'TODO|FIXME|XXX' "$f" >/dev/null; then say "$f holds an unfinished mark"; fi
    case "$f" in
        *_avx2.c|*_avx512.c|*_avx512_bf16.c|*_simd.h) ;;
        src/*.c) if grep -q -E '_mm(256|512)?_' "$f"; then say "$f is portable but uses vector intrinsics"; fi ;;
    esac
done

if command -v clang >/dev/null 2>&1; then
    for f in $(git ls-files 'src/*.c'); do
        flags=""
        case "$f" in
            *_avx512_bf16.c) flags="-march=x86-64-v4 -mavx512bf16 -mavx512vnni" ;;
            *_avx512.c) flags="-march=x86-64-v4" ;;
            *_avx2.c) flags="-march=x86-64-v3" ;;
        esac
        case "$f" in src/recipe/builtin.c) continue ;; esac
        clang -std=gnu17 -D_GNU_SOURCE -fsyntax-only -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wvla -Wstrict-prototypes \
            -Wmissing-prototypes -Wno-unknown-pragmas -Werror $flags -Iinclude -Isrc "$f" || bad=1
    done
    for h in $(git ls-files 'src/*.h' 'include/*.h'); do
        case "$h" in *_simd.h|*/gemm_isa.h) continue ;; esac
        clang -x c++ -std=c++17 -fsyntax-only -Wno-deprecated -Iinclude -Isrc "$h" 2>/dev/null || say "$h does not compile alone as C++17"
    done
fi
exit $bad
