#!/bin/sh
# gpu_check.sh: what a machine with a GPU has to show, with programs that were built elsewhere.
#
#   tools/gpu_check.sh pack [BUILD] [OUT]     where it was built (cmake -DCADRE_CUDA=ON): programs, plug-in and the libraries
#                                             that the other machine may lack, in OUT (default: BUILD/gpu)
#   tools/gpu_check.sh run [OUT] [PART]...    on the machine with the GPU: doctor, then every gpu_ program;
#                                             with parts (device check time): gpu_check alone
#   tools/gpu_check.sh sanitize [OUT]         the case tables under compute-sanitizer (memcheck, racecheck): slow
#
# Ends with 77 where there is no driver.
set -eu

pack() {
    build=${1:-build} out=${2:-$build/gpu}
    mkdir -p "$out/lib"
    for f in cadre gpu_check libcadre_cuda.so; do
        [ -e "$build/$f" ] || { echo "gpu_check: $build/$f is missing; build with cmake -DCADRE_CUDA=ON" >&2; exit 1; }
        cp "$build/$f" "$out/"
    done
    for f in "$build"/gpu_*; do
        case $f in *.*) ;; *) if [ -f "$f" ] && [ -x "$f" ]; then cp "$f" "$out/"; fi ;; esac
    done
    # all but glibc's own, which must be the machine's
    for f in "$out"/cadre "$out"/gpu_check; do
        ldd "$f" | awk '$3 ~ /^\// { print $3 }' | grep -vE '/(libc|libm|libdl|librt|libpthread|ld-linux[^/]*)\.so' | while read -r l; do cp -L "$l" "$out/lib/"; done
    done
    du -sh "$out"
}

# cuBLASLt lies in CUDA's folder, or in a Python package
find_cublas() {
    for d in /usr/local/cuda/lib64 /usr/local/cuda/targets/x86_64-linux/lib; do
        [ -e "$d/libcublasLt.so.13" ] && { echo "$d"; return; }
    done
    python3 -c 'import nvidia, glob; print(*[d for p in nvidia.__path__ for d in glob.glob(p + "/*/lib") if glob.glob(d + "/libcublasLt.so.13")][:1])' 2>/dev/null || true
}

environment() {
    LD_LIBRARY_PATH="$1/lib:$(find_cublas)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    export LD_LIBRARY_PATH
}

run() {
    out=${1:-build/gpu}
    [ $# -gt 0 ] && shift
    environment "$out"
    nvidia-smi -L 2>/dev/null || true
    "$out/cadre" doctor || true
    [ $# -gt 0 ] && exec "$out/gpu_check" "$@"
    failed=0
    for f in "$out"/gpu_*; do
        echo "== $(basename "$f")"
        "$f" || failed=$?
    done
    return $failed
}

sanitize() {
    out=${1:-build/gpu}
    environment "$out"
    for tool in memcheck racecheck; do
        echo "== $tool"
        compute-sanitizer --tool "$tool" --error-exitcode 9 "$out/gpu_check" check
    done
}

verb=${1:-run}
[ $# -gt 0 ] && shift
case $verb in
pack | run | sanitize) "$verb" "$@" ;;
*) echo "gpu_check.sh: pack, run or sanitize; see the head of this file" >&2; exit 2 ;;
esac
