#!/bin/sh
# All tests, then one closing line. Arguments: the build folder.
set -u
cd "$(dirname "$0")/.."
build=${1:-build}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
start=$(date +%s)
passed=0
failed=0
skipped=0
for t in "$build"/test_*; do
    case "$t" in *.*) continue;; esac
    [ -x "$t" ] && [ -f "$t" ] || continue
    name=$(basename "$t")
    t0=$(date +%s)
    timeout 600 "$t" >"$log" 2>&1
    rc=$?
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$log" | tail -n 1)
    p=$(printf '%s' "$line" | sed -n 's/^\([0-9]*\) passed.*/\1/p')
    f=$(printf '%s' "$line" | sed -n 's/.* \([0-9]*\) failed.*/\1/p')
    if [ "$rc" = 77 ]; then
        skipped=$((skipped + 1))
        echo "skip  $name: $(tail -n 1 "$log")"
        continue
    fi
    if [ -z "$line" ] || { [ "$rc" != 0 ] && [ "${f:-0}" = 0 ]; }; then
        p=${p:-0}
        f=$((${f:-0} + 1))
    fi
    passed=$((passed + p))
    failed=$((failed + f))
    echo "$([ "$f" = 0 ] && echo ok || echo FAIL)    $name: $p passed, $f failed, $(($(date +%s) - t0)) s"
    if [ "$f" != 0 ]; then
        echo "      exit code $rc; output:"
        tail -n 40 "$log" | sed 's/^/      /'
    fi
done
for s in test/test_*.sh; do
    [ -f "$s" ] || continue
    t0=$(date +%s)
    if timeout 900 sh "$s" "$build" >"$log" 2>&1; then
        passed=$((passed + 1))
        echo "ok    $(basename "$s"): $(tail -n 1 "$log"), $(($(date +%s) - t0)) s"
    else
        failed=$((failed + 1))
        echo "FAIL  $(basename "$s"), $(($(date +%s) - t0)) s"
        tail -n 40 "$log" | sed 's/^/      /'
    fi
done
echo "time: $(($(date +%s) - start)) s"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
