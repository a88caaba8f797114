#!/bin/sh
# What a plan says is what a run does, and a plan needs neither a device nor the plug-in: the same bytes with and without
# libcadre_cuda.so beside the binary, which is not opened; planned bytes are the bytes that a run allocates, for one rank and
# for two. Also the size of the binary, and how long a run takes to its first step (printed, as it depends on the machine).
# Arguments: the build folder.
set -eu
cd "$(dirname "$0")/.."
. test/job.sh
unset OMP_NUM_THREADS
cp "$root/test/tiny-resume.yaml" recipe.yaml
fail() { echo "$*"; exit 1; }

# ---- with and without the plug-in ----
mkdir without with
cp "$build/cadre" without/
cp "$build/cadre" with/
plugin="a file of its name"
echo "not a library" >with/libcadre_cuda.so
for f in "$build/libcadre_cuda.so" "$root/build-cuda/libcadre_cuda.so"; do
    [ ! -s "$f" ] || { cp "$f" with/; plugin="the plug-in"; break; }
done
"without/cadre" doctor | grep -q "$dir/without/libcadre_cuda.so" && fail "doctor finds a plug-in that is not there"
"with/cadre" doctor | grep -q "$dir/with/libcadre_cuda.so" || fail "doctor does not look beside the binary for the plug-in"
untimed() { sed 's/"compile_s":[-0-9.e+]*//'; }
for plan in "tiny-dense --set machine.device=cuda" "tiny-dense --machine hgx-h200 --devices 1" "tiny-dense --set machine.device=cpu"; do
    without/cadre plan $plan --json | untimed >a.json
    with/cadre plan $plan --json | untimed >b.json
    grep -q '"ok":true' a.json || fail "cadre plan $plan: $(cat a.json)"
    cmp a.json b.json || fail "cadre plan $plan differs with a plug-in beside the binary"
    # dlopen is the only way in; doctor, which asks for the driver, shows that it would be seen here
    LD_DEBUG=files with/cadre plan $plan >/dev/null 2>loaded.txt
    grep -q 'file=libc\.so' loaded.txt || fail "the loader's log is empty"
    ! grep 'file=.*cuda' loaded.txt || fail "cadre plan $plan loads CUDA"
done
LD_DEBUG=files with/cadre doctor 2>&1 | grep -q 'file=libcuda' || fail "the loader's log does not show what doctor asks for"
how="the loader's log"
if command -v strace >/dev/null 2>&1 && ASAN_OPTIONS=detect_leaks=0 strace -f -o trace.txt -e trace=%file with/cadre plan tiny-dense --set machine.device=cuda >/dev/null 2>&1; then
    grep -q 'execve' trace.txt || fail "strace saw nothing"
    ! grep -v execve trace.txt | grep 'cuda' || fail "cadre plan asks the file system for CUDA"
    how="the loader's log and strace"
fi

# ---- planned = allocated ----
planned() { "$build/cadre" plan ./recipe.yaml --json "$@" | sed -n 's/.*"total_bytes":\([0-9]*\).*/\1/p'; }
ran() { sed -n 's/.*"type":"step".*"mem_planned_bytes":\([0-9]*\).*/\1/p' "$1/events.jsonl" | sort -u; }
unset OMP_NUM_THREADS
for more in "" "--set machine.threads=1" "--set machine.threads=2" "--set memory.policy=recompute" "--set precision.compute=bf16" "--set precision.compute=f32"; do
    rm -rf run
    "$build/cadre" train ./recipe.yaml --out run --steps 2 -q $more
    p=$(planned $more)
    [ -n "$p" ] && [ "$p" = "$(ran run)" ] || fail "cadre plan $more: ${p:-nothing} bytes, the run has $(ran run)"
done
rm -rf run
OMP_NUM_THREADS=1 "$build/cadre" train ./recipe.yaml --out run --steps 2 -q
[ "$(OMP_NUM_THREADS=1 planned)" = "$(ran run)" ] || fail "OMP_NUM_THREADS=1 cadre plan: $(OMP_NUM_THREADS=1 planned) bytes, the run has $(ran run)"
for n in 2 4; do
    rm -rf run
    "$build/cadre" launch -n $n train ./recipe.yaml --out run --steps 2 -q --set machine.threads=1 2>/dev/null
    p=$(planned --devices $n --set machine.threads=1)
    [ -n "$p" ] && [ "$p" = "$(ran run)" ] || fail "cadre plan --devices $n: ${p:-nothing} bytes, the run has $(ran run)"
done

# ---- size and start ----
strip -o small "$build/cadre" 2>/dev/null || cp "$build/cadre" small
bytes=$(wc -c <small)
case "$build" in *san*) ;; *) [ "$bytes" -lt 5000000 ] || fail "the binary has $bytes bytes" ;; esac
best=""
for _ in 1 2 3; do
    rm -rf run
    t0=$(date +%s%N)
    "$build/cadre" train tiny-dense --set data.train=text.txt --out run --steps 1 -q
    t1=$(date -d "$(sed -n 's/.*"type":"step","time":"\([^"]*\)".*/\1/p' run/events.jsonl | head -n 1)" +%s%N)
    ms=$(((t1 - t0) / 1000000))
    [ -n "$best" ] && [ "$best" -le "$ms" ] || best=$ms
done
echo "same plan with $plugin beside the binary, which is not opened ($how); planned = allocated; binary $bytes bytes stripped; first step after $best ms"
