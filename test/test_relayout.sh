#!/bin/sh
# Save on one layout of ranks, load on another: 2 x 2 with expert groups of 2, then one rank, then 1 x 4 with a group of 4. The losses are
# those of a run that stayed on one rank, as text, and at each change the checkpoint has the same tensors, byte for byte, that the
# unmoved run has there: all experts, all states, the router biases in F32. Full training, then adapters. Argument: the build folder.
set -eu
cd "$(dirname "$0")/.."
. test/job.sh
die() {
    echo "$1"
    exit 1
}
norms() { grep '"type":"step"' "$1/events.jsonl" | sed 's/.*"step":\([0-9]*\),.*"grad_norm":\([-0-9.e+]*\),.*/\1 \2/' | sort -n -u; }
# the schedule is drawn over 15 steps wherever a run is told to stop
set_all="--set schedule.horizon=15 --set checkpoint.every=5 --set checkpoint.keep=all"
said=""
one_case() { # name, further settings
    name=$1
    shift
    # shellcheck disable=SC2086
    "$cadre" train ./recipe.yaml --out "$name-whole" -q --set train.steps=15 $set_all "$@"
    losses "$name-whole" >whole.txt
    norms "$name-whole" >whole-norms.txt
    [ "$(wc -l <whole.txt)" = 15 ] || die "$name: a whole run has $(wc -l <whole.txt) losses"
    [ "$(cut -d' ' -f2 whole-norms.txt | sort -u | wc -l)" -gt 5 ] || die "$name: no norms in the event log"
    # shellcheck disable=SC2086
    "$cadre" launch -n 4 train ./recipe.yaml --out "$name-moved" -q --set train.steps=5 --set parallel.replicate=2 --ep 2 $set_all "$@"
    # shellcheck disable=SC2086
    "$cadre" train ./recipe.yaml --out "$name-moved" -q --set train.steps=10 $set_all "$@"
    # shellcheck disable=SC2086
    "$cadre" launch -n 4 train ./recipe.yaml --out "$name-moved" -q --set train.steps=15 --ep 4 $set_all "$@"
    losses "$name-moved" >moved.txt
    norms "$name-moved" >moved-norms.txt
    cmp -s whole.txt moved.txt || die "$name: other losses: $(diff whole.txt moved.txt | head -6)"
    cmp -s whole-norms.txt moved-norms.txt || die "$name: other norms: $(diff whole-norms.txt moved-norms.txt | head -6)"
    ranks=""
    for step in 05 10 15; do
        code=0
        "$build/ckpt_equal" "$name-whole/checkpoints/step-0000000$step" "$name-moved/checkpoints/step-0000000$step" >equal.txt 2>&1 || code=$?
        [ $code = 0 ] || die "$name, step $step: $(cat equal.txt)"
        ranks="$ranks$(sed 's/.*by 1 and \([0-9]*\) ranks/\1/' equal.txt) "
    done
    # of two replicas one writes
    [ "$ranks" = "2 1 4 " ] || die "$name: written by $ranks"
    f32=$(grep -o 'e_score_correction_bias":{"dtype":"F32","shape":\[16\]' "$name-moved/checkpoints/step-000000015/manifest.json" | wc -l)
    [ "$name" = lora ] || [ "$f32" = 3 ] || die "$name: $f32 of 3 router biases are F32"
    [ "$name" != bf16 ] || grep -q 'gate.weight":{"dtype":"BF16"' "$name-moved/checkpoints/step-000000015/manifest.json" || die "$name: nothing is BF16"
    # and the comparison sees a change: another step's checkpoint is not equal
    ! "$build/ckpt_equal" "$name-whole/checkpoints/step-000000005" "$name-moved/checkpoints/step-000000010" >/dev/null 2>&1 || die "ckpt_equal sees no difference"
    said="$said$name: $(sed 's/,  *written.*//; s/, written.*//' equal.txt); "
}
cp "$root/test/tiny-kill.yaml" recipe.yaml
one_case full --set train.indexer_warmup_steps=4
one_case bf16 --set train.indexer_warmup_steps=4 --set precision.compute=bf16 --set precision.params=bf16
cat >>recipe.yaml <<END
lora: {rank: 4, targets: [attention, dense_mlp, shared_experts], experts: per_expert, expert_rank: 2}
END
one_case lora --set train.indexer_warmup_steps=0
# a frozen base in panels, above, and in rows: the same run, the same model
# shellcheck disable=SC2086
CADRE_DEBUG=rows "$cadre" train ./recipe.yaml --out lora-rows -q --set train.steps=15 $set_all --set train.indexer_warmup_steps=0
losses lora-rows >rows.txt
losses lora-whole >whole.txt
cmp -s whole.txt rows.txt || die "lora: other losses in rows: $(diff whole.txt rows.txt | head -6)"
"$build/ckpt_equal" lora-whole/checkpoints/step-000000015 lora-rows/checkpoints/step-000000015 >/dev/null 2>&1 || die "lora: another checkpoint in rows"
of_panels=$("$cadre" eval lora-moved --data text.txt --json | sed 's/"seconds":[0-9.e+-]*//')
of_rows=$(CADRE_DEBUG=rows "$cadre" eval lora-moved --data text.txt --json | sed 's/"seconds":[0-9.e+-]*//')
echo "$of_panels" | grep -q '"loss":[0-9]' || die "lora: not evaluated: $of_panels"
[ "$of_panels" = "$of_rows" ] || die "lora: evaluated in panels $of_panels, in rows $of_rows"
echo "2 x 2 ep 2, 1 rank, 1 x 4 ep 4: ${said}losses, norms and checkpoints equal"
