#!/bin/sh
# Reads the machine code of a build (argument: its folder) and names each instruction that is newer than its file's name allows:
# a portable file has those of any x86-64 (SSE2), *_avx2.c those of x86-64-v3, *_avx512.c of x86-64-v4, *_avx512_bf16.c BF16 and
# VNNI also, *_amx.c tiles also. Silent when all is well. `--self-test` seeds each level with one instruction of the next and
# fails where that is not found. Portable files hold no function with a target of its own: what depends on the processor is
# a file by name, and is called through a table (src/tensor/dtype.c, the kernels' tables).
# tzcnt is allowed everywhere: gcc writes `rep bsf`, which older processors run as bsf, where the operand is not zero.
set -u

# Lines of one object. $1: object, $2: what to call it; the level is in that name.
newer() {
    objdump -d -w --no-addresses "$1" | awk -v name="$2" -F '\t' '
BEGIN {
    level = name ~ /_amx\.c/ ? 4 : name ~ /_avx512_bf16\.c/ ? 3 : name ~ /_avx512\.c/ ? 2 : name ~ /_avx2\.c/ ? 1 : 0
    is = "x86-64 x86-64-v3 x86-64-v4 AVX-512-BF16 AMX-BF16"
    split(is, label, " ")      # counts from 1
    # legacy encodings after SSE2
    sse = "^(movddup|movs[hl]dup|h(add|sub)p[sd]|addsubp[sd]|lddqu|fisttp.*|pshufb|pabs[bwd]|palignr|ph(add|sub)s?[wd]|pmaddubsw|pmulhrsw|psign[bwd]" \
          "|pmulld|pmuldq|p(min|max)(s[bd]|u[wd])|blendv?p[sd]|pblend(w|vb)|round[sp][sd]|ptest|pextr[bdq]|pinsr[bdq]|pmov[sz]x.*|dpp[sd]|insertps|extractps" \
          "|mpsadbw|pcmp(eqq|gtq)|packusdw|phminposuw|movntdqa|crc32.*|pcmp[ei]str.*|popcnt.*|aes.*|pclmul.*|sha(1|256).*)$"
    v3 = "^(lzcnt.*|movbe.*|andn.?|bextr.?|bls(i|r|msk).?|bzhi.?|pdep.?|pext.?|mulx.?|(ror|sar|shl|shr)x.?|adcx.?|adox.?)$"
    bf16 = "^(vdpbf16ps|vcvtne.*bf16.*|vpdp(bus|wss).*)$"
    amx = "^(ldtilecfg|sttilecfg|tile.*|tdp.*|tcmm.*)$"
    never = "^(vaes.*|vpclmul.*|v?gf2p8.*|vpermb|vperm[it]2b|vpmultishift.*|vp(compress|expand)[bw]|vpsh[lr]dv?[wdq]|vpmadd52.*|vpopcnt.*" \
            "|vpshufbitqmb|vp2intersect.*|v.*(ph|sh)|vpdpb(ss|su|uu)d.*|vpdpw(us|su|uu)d.*)$"
}
NF >= 3 {
    split($3, word, /[ \t]+/)
    m = word[1]
    if (m ~ /^(rep|repz|repnz|lock|bnd|notrack|data16|cs|ds|es|fs|gs|addr32|\{.*\}|rex.*)$/) m = word[2]
    first = $2
    sub(/^[ \t]*((2e|3e|64|65|67) )*/, "", first)
    evex = substr(first, 1, 2) == "62"
    need = 0
    if (m ~ /^v/ && m !~ /^ver[rw]/ || m ~ v3) need = 1
    else if (m ~ sse) need = 1
    if (evex || m ~ /^k(mov|and|or|x|not|add|shift|unpck|test)/) need = 2
    if (m ~ bf16) need = 3
    if (m ~ amx) need = 4
    if (m ~ never && m != "vcvtps2ph") need = 5
    if (need > level && !seen[m]++) print "tidy: " name ": " $3 " is newer than " label[level + 1]
}'
}

if [ "${1:-}" = --object ]; then # object, name
    newer "$2" "$3"
    exit 0
fi
if [ "${1:-}" = --self-test ]; then
    dir=$(mktemp -d)
    trap 'rm -rf "$dir"' EXIT
    rc=0
    seed() { # name of the file, instruction, found: yes or no
        echo "void f(void); void f(void) { __asm__(\"$2\"); }" >"$dir/seed.c"
        "${CC:-cc}" -O1 -c -o "$dir/seed.o" "$dir/seed.c" || { echo "tidy: tools/isa.sh cannot compile its seed"; exit 1; }
        case "$3$(newer "$dir/seed.o" "$1" | grep -c .)" in
            yes1 | no0) ;;
            *) echo "tidy: tools/isa.sh: $2 in $1 should be found: $3"; rc=1 ;;
        esac
    }
    seed cpu.c 'mulps %xmm1, %xmm0' no
    seed cpu.c 'tzcnt %eax, %eax' no
    seed cpu.c 'pshufb %xmm1, %xmm0' yes
    seed cpu.c 'popcnt %eax, %eax' yes
    seed cpu.c 'vaddps %xmm1, %xmm0, %xmm2' yes
    seed cpu.c 'shlx %eax, %ecx, %edx' yes
    seed cpu_avx2.c 'vfmadd231ps %ymm1, %ymm0, %ymm2' no
    seed cpu_avx2.c 'vaddps %ymm17, %ymm0, %ymm2' yes
    seed cpu_avx2.c 'kmovw %eax, %k1' yes
    seed cpu_avx512.c 'vaddps %zmm1, %zmm0, %zmm2{%k1}' no
    seed cpu_avx512.c 'vdpbf16ps %zmm1, %zmm0, %zmm2' yes
    seed cpu_avx512.c 'vpermb %zmm1, %zmm0, %zmm2' yes
    seed cpu_avx512_bf16.c 'vdpbf16ps %zmm1, %zmm0, %zmm2' no
    seed cpu_avx512_bf16.c 'vaddph %zmm1, %zmm0, %zmm2' yes
    seed cpu_avx512_bf16.c 'tilezero %tmm0' yes
    seed cpu_amx.c 'tdpbf16ps %tmm2, %tmm1, %tmm0' no
    exit $rc
fi
build=$1
[ "$(uname -m)" = x86_64 ] || { echo "note: machine code is read on x86-64 alone" >&2; exit 0; }
command -v objdump >/dev/null 2>&1 || { echo "note: no objdump here: machine code was not read (apt: binutils)" >&2; exit 0; }
[ -f "$build/build.ninja" ] || { echo "note: no build in $build: its machine code was not read (make)" >&2; exit 0; }
sh "$0" --self-test
# an object's path is its source's, below the folder of its target
find "$build" -path '*.dir/src/*.c.o' | sed 's|^\(.*\.dir/\(src/.*\)\.o\)$|\1 \2|' | xargs -P 2 -n 2 sh "$0" --object
