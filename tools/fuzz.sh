#!/bin/sh
# Builds the fuzzers (test/fuzz_*.c: clang, libFuzzer, ASan and UBSan) and runs each for FUZZ_SECONDS (default 60), two at a
# time. Seeds are the files of this repository; what a run finds stays in build-fuzz/corpus for the next one. A failing input
# is left in build-fuzz as NAME.crash-*. Closes with `N passed, N failed`.
set -eu
cd "$(dirname "$0")/.."
. tools/packages.sh
. tools/clang.sh
need_clang
install_needed
seconds=${FUZZ_SECONDS:-60}
dir=build-fuzz
cmake -S . -B $dir -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_COMPILER=clang-19 -DCADRE_FUZZ=ON >$dir.log 2>&1 || { tail -n 40 $dir.log; exit 1; }
ninja -C $dir fuzz >$dir.log 2>&1 || { tail -n 40 $dir.log; exit 1; }
rm -f $dir.log

seeds() { # fuzzer: the files it begins with
    case "$1" in
        fuzz_adapter) echo test/golden/adapter.gguf test/golden/adapter_seed.bin ;;
        fuzz_jinja) echo tools/peers/templates/*.jinja ;;
        fuzz_json) echo test/golden/manifest.json machines/*.yaml ;;
        fuzz_manifest) echo test/golden/manifest.json ;;
        fuzz_model) echo models/*.yaml ;;
        fuzz_records) echo test/golden/records.jsonl ;;
        fuzz_safetensors) echo test/golden/*.safetensors ;;
        fuzz_tokenizer) echo test/golden/tokenizer/*.json test/golden/tokenizer/*.model ;;
        fuzz_yaml) echo configs/*.yaml models/*.yaml machines/*.yaml test/*.yaml ;;
        *) echo "fuzz: $1 has no seeds in tools/fuzz.sh" >&2; exit 1 ;;
    esac
}
one() { # fuzzer
    mkdir -p "$dir/corpus/$1" "$dir/seeds/$1"
    for s in $(seeds "$1"); do cp "$s" "$dir/seeds/$1/$(echo "$s" | tr / _)"; done
    "$dir/$1" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -use_value_profile=1 -print_final_stats=1 -verbosity=1 \
        -artifact_prefix="$dir/$1." "$dir/corpus/$1" "$dir/seeds/$1" >"$dir/$1.log" 2>&1
}
passed=0
failed=0
end() { # fuzzer, process
    if wait "$2"; then
        passed=$((passed + 1))
        echo "ok    $1: $(sed -n 's/^stat::number_of_executed_units: *//p' "$dir/$1.log") inputs in $seconds s, coverage $(grep -o 'cov: [0-9]*' "$dir/$1.log" | tail -n 1 | cut -d ' ' -f 2)"
    else
        failed=$((failed + 1))
        echo "FAIL  $1"
        tail -n 40 "$dir/$1.log"
    fi
}
before=""
for f in test/fuzz_*.c; do
    name=$(basename "$f" .c)
    one "$name" &
    pid=$!
    [ -z "$before" ] || end $before
    before="$name $pid"
done
end $before
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
