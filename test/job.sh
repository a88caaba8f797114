# shellcheck shell=sh
# job.sh: what the tests of whole jobs begin with: a folder that goes away, a text to train on, the program. Read from the root of the repository, with
# $1 the build folder; ends in the folder, with root, build, cadre and dir set.
# shellcheck disable=SC2034
root=$(pwd)
build=$(cd "${1:-build}" && pwd)
# shellcheck disable=SC2034
cadre="$build/cadre"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1
awk 'BEGIN { for (i = 0; i < 3000; i++) printf "line %d of %d: the %s sees %s\n", i, i * i % 97, i % 3 ? "cat" : "dog", i % 7 ? "it" : "them" }' >text.txt
OMP_NUM_THREADS=1
export OMP_NUM_THREADS
# steps and losses of a run, each once
losses() { grep '"type":"step"' "$1/events.jsonl" | sed 's/.*"step":\([0-9]*\),"loss":\([-0-9.e+]*\),.*/\1 \2/' | sort -n -u; }
now_ms() { echo $(($(date +%s%N) / 1000000)); }
