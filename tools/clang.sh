# clang.sh: find_clang sets CLANG to the newest clang that is installed (19 first), CLANG_OMP to yes where it has omp.h and
# can link OpenMP. Sourced by the other scripts; need_clang asks packages.sh for what a bare machine lacks.
find_clang() {
    CLANG=""
    CLANG_OMP=no
    for c in clang-19 clang-18 clang-17 clang-16 clang clang-15 clang-14; do
        command -v "$c" >/dev/null 2>&1 || continue
        [ -n "$CLANG" ] || CLANG=$c
        probe=$(mktemp)
        if printf '#include <omp.h>\nint main(void) { return omp_get_max_threads() < 1; }\n' |
            "$c" -x c -fopenmp -o "$probe" - >/dev/null 2>&1; then
            CLANG=$c
            CLANG_OMP=yes
        fi
        rm -f "$probe"
        [ "$CLANG_OMP" = no ] || return 0
    done
    [ -n "$CLANG" ]
}
need_clang() {
    need clang-19 "the second compiler: warnings, equal bits, fuzzing"
    need libclang-rt-19-dev "run-time libraries of clang's sanitizers and of libFuzzer"
    need libomp-19-dev "OpenMP for clang"
}
