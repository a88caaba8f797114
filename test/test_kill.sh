#!/bin/sh
# One rank of a job with expert groups is killed (SIGKILL) at random moments: in steps, in collectives, while a checkpoint is
# written. All others end within seconds with exit code 200 and one message that names it; the next start, on another layout,
# continues to the bits of a run that was never killed. Then SIGTERM, which saves. Arguments: the build folder, kills (default 12).
set -eu
cd "$(dirname "$0")/.."
kills=${2:-12}
[ -z "${CADRE_QUICK:-}" ] || kills=4
. test/job.sh
cp "$root/test/tiny-kill.yaml" recipe.yaml
die() {
    echo "$1"
    cat killed.err 2>/dev/null || true
    exit 1
}
newest() { find killed/checkpoints -maxdepth 1 -name 'step-*' 2>/dev/null | sort | tail -n 1; }
# layout i: ranks, mesh
ranks_of() { case $(($1 % 4)) in 1) echo 2 ;; *) echo 4 ;; esac; }
mesh_of() {
    case $(($1 % 4)) in
        0) echo "--set parallel.replicate=2 --ep 2" ;; # 2 x 2, each replica one expert group
        1) echo "--set parallel.replicate=2" ;;        # 2 replicas of one rank
        2) echo "--ep 4" ;;                            # one group of all
        3) echo "--ep 2" ;;                            # two groups, experts in two parts
    esac
}
t0=$(now_ms)
"$cadre" train ./recipe.yaml --out whole -q
losses whole >whole.txt
[ "$(wc -l <whole.txt)" = 40 ] || die "a whole run has $(wc -l <whole.txt) losses"
# shellcheck disable=SC2046
for i in 0 2 3; do # untouched runs on other layouts have the same losses
    "$cadre" launch -n 4 train ./recipe.yaml --out "layout$i" -q $(mesh_of $i)
    losses "layout$i" >other.txt
    cmp -s whole.txt other.txt || die "layout $(mesh_of $i) has other losses"
done
hit=0
i=0
in_layer=0
in_save=0
slowest=0
wanted() { # chance decides where a kill hits: more of them where a kind has not been hit
    [ $hit -ge "$kills" ] || return 0
    [ -z "${CADRE_QUICK:-}" ] && { [ $in_layer = 0 ] || [ $in_save = 0 ]; }
}
while wanted && [ $i -lt $((4 * kills)) ]; do
    ranks=$(ranks_of $i)
    # shellcheck disable=SC2046
    "$cadre" launch -n "$ranks" train ./recipe.yaml --out killed -q $(mesh_of $i) >/dev/null 2>killed.err &
    pid=$!
    before=$(newest)
    if [ $((i % 3)) = 2 ]; then # as soon as a checkpoint is being written
        n=0
        while kill -0 $pid 2>/dev/null && ! ls -d killed/checkpoints/.partial-* >/dev/null 2>&1 && [ $n -lt 3000 ]; do n=$((n + 1)); done
        saving=1
    else # anywhere behind the start
        while kill -0 $pid 2>/dev/null && [ "$(newest)" = "$before" ]; do sleep 0.02; done
        sleep "$(awk -v s="$i" 'BEGIN { srand(s + 5); printf "%.3f", rand() * 0.3 }')"
        saving=0
    fi
    who=$(awk -v s="$i" -v n="$ranks" 'BEGIN { srand(s + 9); print int(rand() * n) }')
    victim=$(cut -d' ' -f$((who + 1)) "/proc/$pid/task/$pid/children" 2>/dev/null || true)
    at=$(now_ms)
    if [ -n "$victim" ] && kill -9 "$victim" 2>/dev/null; then
        code=0
        wait $pid || code=$?
        took=$(($(now_ms) - at))
        if [ $code = 200 ]; then
            hit=$((hit + 1))
            [ $took -le $slowest ] || slowest=$took
            [ $took -lt 20000 ] || die "the others ended after $took ms"
            [ "$(grep -c '^error: ' killed.err)" = 1 ] || die "not one message:"
            grep -q "^error: rank $who (host .*, pid $victim): killed by signal 9 .*\[comm.rank-lost\]$" killed.err || die "rank $who is not named:"
            grep -q 'in step [0-9]*, before .* of layer [0-9]*' killed.err && in_layer=$((in_layer + 1))
            in_save=$((in_save + saving))
            [ -z "$(ps --ppid $pid -o pid= 2>/dev/null)" ] || die "ranks are left behind"
        elif [ $code != 0 ]; then die "exit code $code after a kill:"; fi
    else wait $pid || die "a run that was not killed ended with $?:"; fi
    if losses killed 2>/dev/null | tail -n 1 | grep -q '^40 '; then # it was over: begin it again
        losses killed >killed.txt
        cmp -s whole.txt killed.txt || die "a killed run has other losses: $(diff whole.txt killed.txt | head -3)"
        rm -rf killed
    fi
    i=$((i + 1))
done
[ $hit -ge "$kills" ] || die "only $hit of $i kills hit a running job"
[ -n "${CADRE_QUICK:-}" ] || [ $in_layer -gt 0 ] || die "no kill hit a layer's collective"
[ -n "${CADRE_QUICK:-}" ] || [ $in_save -gt 0 ] || die "no kill hit a save"

# SIGTERM in a step: all save together and stop; the next start continues
code=0
rm -rf term
"$cadre" launch -n 4 train ./recipe.yaml --out term -q --set parallel.replicate=2 --ep 2 --set checkpoint.every=none >/dev/null 2>term.err &
pid=$!
while kill -0 $pid 2>/dev/null && ! grep -q '"type":"step"' term/events.jsonl 2>/dev/null; do sleep 0.02; done
kill -TERM $pid
wait $pid || code=$?
[ $code = 143 ] || { cat term.err; die "SIGTERM: exit code $code, not 143"; }
ls -d term/checkpoints/step-* >/dev/null 2>&1 || die "SIGTERM saved nothing"
"$cadre" train ./recipe.yaml --out term -q
losses term >term.txt
cmp -s whole.txt term.txt || die "after SIGTERM the losses are others"

# one rank finishes what is left of the killed run
[ -f killed/checkpoints/step-000000040/model-00000-of-00001.safetensors ] || rm -rf killed/checkpoints/step-000000040
"$cadre" train ./recipe.yaml --out killed -q
losses killed >killed.txt
cmp -s whole.txt killed.txt || die "the killed run has other losses: $(diff whole.txt killed.txt | head -3)"
for f in whole/checkpoints/step-000000040/*.safetensors; do
    cmp "$f" "killed/checkpoints/step-000000040/$(basename "$f")" || die "the final checkpoints differ"
done
echo "$hit of $i kills hit a job ($in_layer in a layer's collective, $in_save in a save), all ended within $slowest ms;" \
    "bits equal on every layout; $(($(now_ms) - t0)) ms"
