#!/bin/sh
# Compares what the engine computes with independent programs (Python packages), in a virtual environment of its own: build-peers/venv, which sees the system's
# packages and gets those of tools/peers/requirements.txt. Argument: a build folder.
# A peer is a script tools/peers/NAME.py whose opening text has a line that begins with "NAME.py check BUILD": it is run so. Its closing line `N passed, N failed`
# is added up; without one it counts as one. PEERS: names of the peers to run (default all). Closes with `N passed, N failed`.
set -u
cd "$(dirname "$0")/.." || exit 1
build=${1:-build}
dir="build-peers"
mkdir -p $dir
log=$dir/peers.log
if [ ! -x $dir/venv/bin/python ] || ! cmp -s tools/peers/requirements.txt $dir/requirements.txt; then
    echo "peers: making $dir/venv" >&2
    { python3 -m venv --system-site-packages $dir/venv && $dir/venv/bin/pip install -q --disable-pip-version-check -r tools/peers/requirements.txt; } >$log 2>&1 ||
        { tail -n 20 $log >&2; echo "peers: the packages of tools/peers/requirements.txt could not be installed" >&2; exit 1; }
    cp tools/peers/requirements.txt $dir/requirements.txt
fi
passed=0
failed=0
for f in tools/peers/*.py; do
    name=$(basename "$f" .py)
    grep -q "^ *$name\.py check BUILD" "$f" || continue
    case " ${PEERS:-$name} " in *" $name "*) ;; *) continue ;; esac
    start=$(date +%s)
    timeout 1200 $dir/venv/bin/python "$f" check "$build" >$log 2>&1
    rc=$?
    last=$(grep -E '^[0-9]+ passed, [0-9]+ failed$' $log | tail -n 1)
    p=$(echo "${last:-}" | sed -n 's/ passed.*//p')
    n=$(echo "${last:-}" | sed -n 's/.* passed, \([0-9]*\) failed/\1/p')
    [ -n "$p" ] || { [ $rc = 0 ] && p=1 n=0 || p=0 n=1; }
    [ $rc = 0 ] || [ "$n" -gt 0 ] || n=1
    passed=$((passed + p))
    failed=$((failed + n))
    if [ "$n" = 0 ]; then
        echo "ok    $name: $p passed, $(($(date +%s) - start)) s"
    else
        echo "FAIL  $name: $p passed, $n failed; exit code $rc; output:"
        tail -n 40 $log | sed 's/^/      /'
    fi
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
