#!/bin/sh
# The main job on real text: train every part of Kimi K3.1 in small on the Jargon File, compare with gzip and xz, sample.
# Arguments: the build folder.
set -eu
cd "$(dirname "$0")/.."
build=${1:-build}
cadre="$build/cadre"
. tools/packages.sh
need dict-jargon "the Jargon File, public domain: the text to train on"
need xz-utils "xz, to compare with"
need gzip "gzip, to compare with"
mkdir -p data
if [ ! -s data/jargon.txt ]; then
    install_needed || true
    if [ -s /usr/share/dictd/jargon.dict.dz ]; then
        "$cadre" data make dictionary /usr/share/dictd/jargon.dict.dz --out data/jargon.txt
    else
        echo "note: dict-jargon is not to be had; the text is /usr/share/common-licenses instead" >&2
        for f in /usr/share/common-licenses/*; do [ -f "$f" ] && [ ! -L "$f" ] && cat "$f"; done >data/jargon.txt
    fi
fi
recipe=demo
out=runs/$recipe
rm -rf "$out"
# as many steps as 150 s hold here, so that the learning rate has decayed when they are over and all takes about three minutes; the rate is
# the best of short windows, of which a long run keeps nine tenths
rate=$("$cadre" bench --step $recipe --json | sed -n 's/.*"tokens_per_s":\([0-9.]*\).*/\1/p')
steps=$(awk -v r="${rate:-0}" 'BEGIN { s = int(r * 0.9 * 150 / 1024); if (s < 120) s = 120; if (s > 2400) s = 2400; print s }')
echo "this machine: ${rate%%.*} tokens/s, $steps steps of 1,024 tokens"
"$cadre" train $recipe --out "$out" --steps "$steps"

bits=$("$cadre" eval "$out" --json | sed 's/.*"bits_per_byte":\([0-9]*\.[0-9]\{0,3\}\).*/\1/')        # all of the held-out tenth
total=$(wc -c <data/jargon.txt)
held=$(awk -v t="$total" 'BEGIN { printf "%d", int(t / 10) }')
head -c $((total - held)) data/jargon.txt >data/head.txt
pack() { # program, its options: bits a byte of the held-out tenth, given the rest
    a=$("$@" <data/head.txt | wc -c)
    b=$("$@" <data/jargon.txt | wc -c)
    awk -v a="$a" -v b="$b" -v n="$held" 'BEGIN { printf "%.2f", 8 * (b - a) / n }'
}
gz=$(pack gzip -9 -c)
xz=$(pack xz -9e -c)
rm -f data/head.txt
echo
echo "held-out text, bits per byte:   gzip -9 $gz   xz -9e $xz   cadre $bits"
echo
echo "sample:"
"$cadre" generate "$out" --prompt "hacker: n. " --max-new-tokens 200 --temperature 0.7
echo
echo "Next:  $cadre eval $out --data README.md            how well does it know other text?"
echo "       $cadre plan $recipe --print memory          where every byte of the run lies, and why"
echo "       $cadre launch -n 2 train tiny-k31 --steps 100 --out runs/two      on two ranks the losses of one, to the bit"
awk -v b="$bits" -v s="$steps" 'BEGIN { if (b >= 2.39) print "note: xz is ahead: " s " steps were all that fitted; more take " b " lower (--steps)" ; exit !(b < 2.6) }' || { echo "error: $bits bits per byte; below 2.6 is expected" >&2; exit 1; }
