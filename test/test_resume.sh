#!/bin/sh
# Kill a run at random points with SIGKILL and start it again, also on another number of ranks: the losses and the final
# checkpoint are those of a run that was never killed, to the bit. Arguments: the build folder, number of kills (default 50).
set -eu
cd "$(dirname "$0")/.."
kills=${2:-50}
[ -z "${CADRE_QUICK:-}" ] || kills=5
. test/job.sh
cp "$root/test/tiny-resume.yaml" recipe.yaml
weights() { # one hash over everything in the newest checkpoint that layout must not change
    "$cadre" eval "$1" --json | sed 's/"seconds":[0-9.e+-]*//'
}
t0=$(now_ms)
"$cadre" train ./recipe.yaml --out whole -q
took_ms=$(($(now_ms) - t0))
losses whole >whole.txt
[ "$(wc -l <whole.txt)" = 60 ] || { echo "a whole run has $(wc -l <whole.txt) losses"; exit 1; }

# two ranks from scratch give the same losses and the same checkpoint
"$cadre" launch -n 2 train ./recipe.yaml --out two -q
losses two >two.txt
cmp whole.txt two.txt || { diff whole.txt two.txt | head; exit 1; }

start() { # ranks
    if [ "$1" = 1 ]; then "$cadre" train ./recipe.yaml --out killed -q
    else "$cadre" launch -n "$1" train ./recipe.yaml --out killed -q; fi
}
i=0
n=0
multi=0
while [ $n -lt "$kills" ] && [ $i -lt $((kills * 4)) ]; do
    case $((i % 4)) in 0) ranks=2 ;; 1) ranks=4 ;; *) ranks=1 ;; esac
    start $ranks >/dev/null 2>&1 &
    pid=$!
    # anywhere in start-up and the first part of a run, however slow this machine is
    sleep "$(awk -v s="$i" -v ms="$took_ms" 'BEGIN { srand(s + 17); a = ms / 1000; printf "%.3f", 0.05 + rand() * (a > 1.8 ? a / 4 : 0.45) }')"
    if kill -0 $pid 2>/dev/null; then n=$((n + 1)); fi
    pkill -9 -P $pid 2>/dev/null || true
    kill -9 $pid 2>/dev/null || true
    wait $pid 2>/dev/null || true
    [ $ranks = 1 ] || ! grep -q "\"ranks\":$ranks" killed/events.jsonl 2>/dev/null || multi=$((multi + 1))
    # the run may be over: begin it again, so that every kill hits something
    if [ -s killed/events.jsonl ] && losses killed | tail -n 1 | grep -q '^60 '; then
        losses killed >done.txt
        cmp -s whole.txt done.txt || { echo "a killed run has other losses"; diff whole.txt done.txt | head -5; exit 1; }
        rm -rf killed
    fi
    i=$((i + 1))
done
# one rank writes the last checkpoint, so that the files have the names that the whole run's have
[ -f killed/checkpoints/step-000000060/model-00000-of-00001.safetensors ] || rm -rf killed/checkpoints/step-000000060
start 1
losses killed >killed.txt
cmp whole.txt killed.txt || { diff whole.txt killed.txt | head; exit 1; }
[ "$(weights whole)" = "$(weights killed)" ] || { echo "the final models differ"; weights whole; weights killed; exit 1; }
for f in whole/checkpoints/step-000000060/*.safetensors; do
    cmp "$f" "killed/checkpoints/step-000000060/$(basename "$f")" || { echo "the final checkpoints differ"; exit 1; }
done
[ -n "${CADRE_QUICK:-}" ] || [ "$multi" -ge 5 ] || { echo "only $multi kills hit a run of several ranks"; exit 1; }
[ "$n" -ge "$kills" ] || { echo "only $n of $i kills hit a running process"; exit 1; }
echo "$n of $i kills hit a running process; losses, states and weights bit-equal"
