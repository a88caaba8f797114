#!/bin/sh
# The rules that a machine can check: dependency order of the folders, files and lines that are too long, vector
# intrinsics in portable files, newer instructions in a build's portable files (tools/isa.sh), unfinished marks, warnings of a
# second compiler and of shellcheck, headers that compile alone as C17 and as C++17. Silent when all is well. Argument: a build folder.
set -u
cd "$(dirname "$0")/.." || exit 1

# One file with clang. CLANG comes from below; a file that needs omp.h where clang has none is reported as "skip FILE".
compile() { # file, language
    isa=""
    case "$1" in
        *_amx.c) isa="-march=x86-64-v4 -mavx512bf16 -mavx512vnni -mamx-tile -mamx-bf16" ;;
        *_avx512_bf16.c) isa="-march=x86-64-v4 -mavx512bf16 -mavx512vnni" ;;
        *_avx512.c|*_avx512_simd.h) isa="-march=x86-64-v4" ;;
        *_avx2.c|*_simd.h|*/gemm_isa.h) isa="-march=x86-64-v3" ;;
    esac
    warn="-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wvla"
    case "$2" in
        c) warn="$warn -Wstrict-prototypes -Wmissing-prototypes" lang="-x c -std=gnu17" ;;
        c-header) warn="$warn -Wno-unused-function" lang="-x c -std=gnu17" ;;
        c++-header) warn="-Wall -Wextra -Wno-unused-function -Wno-c11-extensions" lang="-x c++ -std=c++17" ;;
    esac
    # shellcheck disable=SC2086
    out=$("$CLANG" $lang -fsyntax-only -fopenmp $warn -Werror -D_GNU_SOURCE '-DSIMT_LIBRARY=""' $isa -Iinclude -Isrc -Itest "$1" 2>&1) && return 0
    case "$out" in
        *"'omp.h' file not found"*) echo "skip $1" ;;
        *) printf 'tidy: %s as %s, %s:\n%s\n' "$1" "$2" "$CLANG" "$out" ;;
    esac
}
if [ "${1:-}" = --compile ]; then
    compile "$3" "$2"
    exit 0
fi
found=$(mktemp)
trap 'rm -f "$found"' EXIT

# base <- tensor <- {io, comm, device} <- graph <- ops <- {models, compile} <- {plan, run} <- {data, train} <- command <- cli.
# recipe stands on base alone, data on io; device/cuda is a plug-in, which sees the operators that it runs.
git ls-files 'src/*.[ch]' 'src/*.cu' 'src/*.cuh' 'src/*.inc' | xargs awk '
function allow(m, list) { may[m] = " " list " " m " " }
BEGIN {
    allow("base", ""); allow("tensor", "base"); allow("recipe", "base")
    allow("io", "base tensor"); allow("comm", "base tensor"); allow("device", "base tensor")
    allow("graph", "base tensor device")
    allow("ops", "base tensor comm device device/cuda graph")
    allow("device/cuda", "base tensor device graph ops")
    allow("models", "base tensor recipe io device graph ops compile")
    allow("compile", "base tensor comm device graph ops")
    allow("plan", "base tensor recipe comm device graph ops compile")
    allow("run", "base tensor comm device graph ops compile")
    allow("tokenizer", "base io"); allow("chat", "base tokenizer")
    allow("data", "base tensor io tokenizer chat")
    allow("weights", "base tensor io models"); allow("adapter", "base tensor io models weights")
    allow("train", "base tensor recipe io comm device graph ops models compile plan run tokenizer chat data weights adapter")
    allow("command", "base tensor recipe io comm device graph ops models compile plan run tokenizer chat data weights adapter train")
    allow("cli", "base recipe io comm train command")
}
FNR == 1 { m = FILENAME; sub(/^src\//, "", m); if (m ~ /^device\/cuda\//) m = "device/cuda"; else sub(/\/.*/, "", m)
           if (!(m in may)) { print "tidy: src/" m " has no row in the table of tools/tidy.sh"; may[m] = " " m " " } }
/^#include "/ { i = $2; gsub(/"/, "", i); if (i ~ /^cadre\.h$|^builtin\.h$/) next
           if (i ~ /^device\/cuda\//) i = "device/cuda"
           else if (i !~ /\//) { print "tidy: " FILENAME ":" FNR ": #include \"" i "\" names no folder"; next }
           else sub(/\/.*/, "", i)
           if (index(may[m], " " i " ") == 0) print "tidy: " FILENAME ":" FNR ": includes " i "/, which " m " may not see"
           if (i == "device/cuda" && m == "ops" && FILENAME !~ /\/cuda\.(c|cu|h|cuh)$/) print "tidy: " FILENAME ":" FNR ": CUDA outside of cuda.*" }
' >"$found"

git ls-files 'src/*.[ch]' 'src/*.cu' 'src/*.cuh' 'src/*.inc' 'test/*.[ch]' 'test/*.cc' 'include/*.h' | xargs awk '
function close_file() { if (file != "" && lines > 850) print "tidy: " file " has " lines " lines; files up to about 800 read best" }
FNR == 1 { close_file(); file = FILENAME; if ($0 !~ /^\/\*/) print "tidy: " FILENAME " does not open with a comment that says what it is"
           vector = FILENAME ~ /(_avx2|_avx512|_avx512_bf16|_amx)\.c$|_simd\.h$|\.cu$|\.cuh$/ || FILENAME !~ /^src\// }
{ lines = FNR }
length($0) > 170 { print "tidy: " FILENAME ":" FNR ": " length($0) " columns" }
/(^|[^A-Za-z0-9_])(TODO|FIXME|XXX)([^A-Za-z0-9_]|$)/ { print "tidy: " FILENAME ":" FNR ": an unfinished mark" }
/[ \t]$/ { print "tidy: " FILENAME ":" FNR ": space at the end of the line" }
/\t/ { print "tidy: " FILENAME ":" FNR ": a tab" }
!vector && /_mm(256|512)?_[a-z]|[^a-z0-9]_tile_[a-z]/ { print "tidy: " FILENAME ":" FNR ": vector intrinsics in a portable file" }
END { close_file() }
' >>"$found"

sh tools/isa.sh "${1:-build}" >>"$found"

for s in tools/*.sh test/*.sh .ci/run; do
    sh -n "$s" 2>>"$found" || echo "tidy: $s does not parse" >>"$found"
done
if command -v shellcheck >/dev/null 2>&1; then shellcheck -s sh -S warning -f gcc tools/*.sh test/*.sh .ci/run >>"$found"
else echo "note: no shellcheck here: scripts were only parsed (apt: shellcheck)" >&2; fi

. tools/clang.sh
if find_clang; then
    export CLANG
    {
        # builtin.c needs a header that CMake generates; gcc compiles it in every build
        git ls-files 'src/*.c' 'test/*.c' | grep -v '^src/recipe/builtin\.c$' | sed 's/^/c /'
        # attention_simd.h and attention_rows.h are bodies of the files that include them
        git ls-files 'src/*.h' 'include/*.h' | grep -v '/attention_\(simd\|rows\)\.h$' | sed 's/.*/c-header &\nc++-header &/'
    } | xargs -P 2 -n 2 sh "$0" --compile >>"$found" 2>&1
    n=$(grep -c '^skip ' "$found")
    [ "$n" = 0 ] || echo "note: $n files not checked with $CLANG, which has no omp.h here (apt: libomp-19-dev)" >&2
else
    echo "note: no clang here: warnings of a second compiler and headers alone were not checked (apt: clang-19)" >&2
fi
grep -v '^skip ' "$found"
! grep -q -v '^skip ' "$found"
