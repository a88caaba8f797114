#!/bin/sh
# The rehearsal: 128 ranks on this machine as on 128 devices, 2 replicas x 64 shards, expert groups of 64 (14 of the 896 experts on a rank),
# all 93 layers of K3.1 at toy width, 8 tokens a rank. Ten steps of LoRA, then ten of full training of the first layers. The losses and
# gradient norms of all layouts are those of one rank, bit for bit. Arguments: the build folder.
set -eu
cd "$(dirname "$0")/.."
build=$(cd "${1:-build}" && pwd)
steps=${STEPS:-10}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
OMP_NUM_THREADS=1 # the cores are shared by the ranks of one run, and by the run on one rank beside it
export OMP_NUM_THREADS
cadre="$build/cadre"
now_ms() { echo $(($(date +%s%N) / 1000000)); }
t0=$(now_ms)
run() { # name, recipe, ranks, more
    name=$1 recipe=$2 ranks=$3
    shift 3
    at=$(now_ms)
    code=0
    if [ "$ranks" = 1 ]; then "$cadre" train "$recipe" --out "$dir/$name" -q --steps "$steps" "$@" 2>"$dir/$name.err" || code=$?
    else "$cadre" launch -n "$ranks" train "$recipe" --out "$dir/$name" -q --steps "$steps" --set parallel.timeout=60s "$@" 2>"$dir/$name.err" || code=$?; fi
    cat "$dir/$name.err"
    echo "$name: $(($(now_ms) - at)) ms" >>"$dir/times"
    return $code
}
failed=0
for mode in lora full; do
    recipe=test/rehearse-$mode.yaml
    run "$mode-1" "$recipe" 1 &
    alone=$!
    run "$mode-128" "$recipe" 128 --set parallel.replicate=2 --ep 64 || failed=1
    [ $mode = lora ] || run "$mode-8" "$recipe" 8 --set parallel.replicate=2 --ep 2 || failed=1
    wait $alone || failed=1
    lists="$dir/$mode-1 $dir/$mode-128"
    [ $mode = lora ] || lists="$lists $dir/$mode-8"
    echo "$mode: $(grep -o '"mesh":{[^}]*}' "$dir/$mode-128/events.jsonl" | head -n 1), $steps steps"
    # shellcheck disable=SC2086
    "$build/loss_list" "$steps" $lists | sed "s|$dir/||" || true
    # shellcheck disable=SC2086
    "$build/loss_list" "$steps" $lists >/dev/null || failed=1
done
cat "$dir/times"
times >"$dir/cpu" # not in a pipe: that is a shell of its own
tail -n 1 "$dir/cpu" | sed 's/^/processor time of all, user and system: /'
[ $failed = 0 ] || { echo "the rehearsal failed"; exit 1; }
echo "rehearsal: losses of 128 ranks equal those of one rank bit for bit; $(($(now_ms) - t0)) ms"
