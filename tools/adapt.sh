#!/bin/sh
# The second job on real input: somebody else's checkpoint, conversations, LoRA, and what goes out again. The checkpoint is the demo's model written
# as a release of Kimi K3.1's layout with packed experts (make demo comes first, if it has not run); the conversations are the Devil's Dictionary.
# Arguments: the build folder.
set -eu
cd "$(dirname "$0")/.."
build=${1:-build}
cadre="$build/cadre"
. tools/packages.sh
need dict-devil "the Devil's Dictionary, public domain: headwords and their definitions"
install_needed
show() { # a command as a person types it
    printf '\n$ cadre'
    for a in "$@"; do case "$a" in *' '*) printf ' "%s"' "$a" ;; *) printf ' %s' "$a" ;; esac; done
    printf '\n'
    "$cadre" "$@"
}
[ -d runs/demo/checkpoints ] || tools/demo.sh "$build"
rm -rf runs/toy-k3 runs/devil runs/devil-* runs/onboard
show toy kimi_k31 --from runs/demo --out runs/toy-k3
show inspect runs/toy-k3
show onboard runs/toy-k3 --out runs/onboard
show data make dictionary /usr/share/dictd/devil.dict.dz --as messages --eval-fraction 0.1 --out data/devil.jsonl
show data check data/devil.jsonl --model runs/toy-k3 --show 1
show train devil --out runs/devil
echo
echo "held-out definitions, before and after:"
show eval runs/toy-k3 --data data/devil-eval.jsonl --set train.sequence_length=1024 --answers 20
show eval runs/devil --answers 20
show export runs/devil --format peft --out runs/devil-peft
show verify-adapter runs/devil-peft runs/toy-k3 --for peft
show merge runs/toy-k3 runs/devil-peft --out runs/devil-merged
show eval runs/devil-merged --data data/devil-eval.jsonl --set train.sequence_length=1024
echo
echo "the run and the exported adapter say the same; merged weights are rounded once more, and may part where two letters are as good:"
for m in "runs/devil" "runs/toy-k3 --adapter runs/devil-peft" "runs/devil-merged"; do
    # shellcheck disable=SC2086
    show generate $m --prompt "Define: politeness" --max-new-tokens 120 --temperature 0
done
printf 'Define: politeness\n/quit\n' | show chat runs/toy-k3 --adapter runs/devil-peft --max-new-tokens 120 --temperature 0
