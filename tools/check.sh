#!/bin/sh
# All tests, then one closing line `N passed, N failed, N skipped`. Arguments: the build folder.
# A test is a program test_NAME of the build folder, or a script test/test_NAME.sh, which gets the build folder. A script
# counts as one test, and so does a program that ends without saying how many it ran. Exit code 77: skipped, and the last
# line says why. CHECK_EXCEPT: names of tests that are left out.
set -u
cd "$(dirname "$0")/.." || exit 1
build=${1:-build}
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}" # tests share the cores with whatever else runs
log=$(mktemp)
trap 'rm -f "$log" "$log.times"' EXIT
start=$(date +%s)
passed=0
failed=0
skipped=0
cpu_s=0
take_cpu() { # sets cpu_s: seconds of processor time so far of what this shell has waited for
    times >"$log.times"
    cpu_s=$(awk 'NR == 2 { gsub(/s/, ""); for (i = 1; i <= 2; i++) { split($i, t, "m"); sum += 60 * t[1] + t[2] } printf "%.0f", sum }' "$log.times")
}
report() { # name, exit code, passed, failed, seconds, of processor time before
    passed=$((passed + $3))
    failed=$((failed + $4))
    take_cpu
    used="$5 s, $((cpu_s - $6)) s of processor time"
    if [ "$2" = 77 ]; then
        skipped=$((skipped + 1))
        echo "skip  $1: $(tail -n 1 "$log")"
    elif [ "$4" = 0 ]; then
        case "$1" in
            *.sh) echo "ok    $1: $(tail -n 1 "$log"), $used" ;;
            *) echo "ok    $1: $3 passed, $used" ;;
        esac
    else
        echo "FAIL  $1: $3 passed, $4 failed, $used; exit code $2; output:"
        tail -n 60 "$log" | sed 's/^/      /'
    fi
}
left_out() { case " ${CHECK_EXCEPT:-} " in *" $1 "*) return 0 ;; *) return 1 ;; esac; }
for t in "$build"/test_*; do
    case "$t" in *.*) continue;; esac
    left_out "$(basename "$t")" && continue
    [ -x "$t" ] && [ -f "$t" ] || continue
    t0=$(date +%s)
    take_cpu
    c0=$cpu_s
    timeout 900 "$t" >"$log" 2>&1
    rc=$?
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$log" | tail -n 1)
    p=$(printf '%s' "$line" | sed -n 's/^\([0-9]*\) passed.*/\1/p')
    f=$(printf '%s' "$line" | sed -n 's/.* \([0-9]*\) failed.*/\1/p')
    # what crashed, or ran nothing, has failed
    if [ "$rc" != 77 ] && { [ $((${p:-0} + ${f:-0})) = 0 ] || { [ "$rc" != 0 ] && [ "${f:-0}" = 0 ]; }; }; then f=$((${f:-0} + 1)); fi
    [ "$rc" != 77 ] || p=0 f=0
    report "$(basename "$t")" "$rc" "${p:-0}" "${f:-0}" "$(($(date +%s) - t0))" "$c0"
done
for s in test/test_*.sh; do
    [ -f "$s" ] || continue
    left_out "$(basename "$s")" && continue
    t0=$(date +%s)
    take_cpu
    c0=$cpu_s
    timeout 900 sh "$s" "$build" >"$log" 2>&1
    rc=$?
    p=0
    f=0
    case "$rc" in 0) p=1 ;; 77) ;; *) f=1 ;; esac
    report "$(basename "$s")" "$rc" "$p" "$f" "$(($(date +%s) - t0))" "$c0"
done
take_cpu
echo "time: $(($(date +%s) - start)) s, $cpu_s s of processor time"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
