"""Tokenizers: ids of tiktoken and of Hugging Face's tokenizers against ours.

    tokenizers.py golden              writes test/golden/tokenizer: vocabularies and cases for test/test_tokenizer.c
    tokenizers.py check BUILD         compares BUILD/tokenize with the packages: hard strings, random Unicode, every code point, long texts
    tokenizers.py real BUILD FILE     the same on a real vocabulary: FILE is ranks (*.tiktoken, *.model) or a tokenizer.json

Vocabularies are trained here, on this repository's own text and on the Chinese below, so that nothing is fetched. Needs tiktoken and tokenizers.
"""
import base64
import glob
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path = [p for p in sys.path if os.path.abspath(p or ".") != HERE]        # this file's name is the package's
import tiktoken
import tokenizers

sys.path.insert(0, HERE)
from hard_strings import ANY, HARD, random_strings

ROOT = os.path.join(HERE, "..", "..")
GOLDEN = os.path.join(ROOT, "test", "golden", "tokenizer")

HEAD, CONTRACTION = r"[^\r\n\p{L}\p{N}]?", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}%s]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}%s]"
SPACE = [r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"]
NO_HAN = r"&&[^\p{Han}]"
PATTERNS = {
    "kimi": "|".join([r"[\p{Han}]+", HEAD + UPPER % NO_HAN + "*" + LOWER % NO_HAN + "+" + CONTRACTION + "?", HEAD + UPPER % NO_HAN + "+" + LOWER % NO_HAN + "*" + CONTRACTION + "?",
                      r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*"] + SPACE),
    "o200k": "|".join([HEAD + UPPER % "" + "*" + LOWER % "" + "+" + CONTRACTION + "?", HEAD + UPPER % "" + "+" + LOWER % "" + "*" + CONTRACTION + "?",
                       r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*"] + SPACE),
    # as tiktoken writes it today: possessive, and with an anchor; ours is the older form
    "cl100k": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
}
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
DEEPSEEK = [r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+",
            "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"]

CHINESE = """机器学习的模型需要大量的数据来训练。今天的天气很好，我们去公园散步吧！人工智能正在改变世界，但是理解它的人并不多。
请把这段代码翻译成中文，然后解释它是怎么工作的。中国的历史非常悠久，文化丰富多彩；北京是首都，上海是最大的城市。
如果你不知道答案，就说不知道。他说：“学而时习之，不亦说乎？”数据集一共有一百二十三个样本，其中三十个用于测试。
专家混合模型在每一层选择几个专家，所以计算量比参数量小得多。这个函数返回一个列表，每个元素都是一个整数。
春眠不觉晓，处处闻啼鸟。夜来风雨声，花落知多少。我喜欢吃苹果和香蕉，你呢？谢谢你的帮助，再见！"""


# ---- vocabularies ------------------------------------------------------------------------------------------------------
def corpus():
    files = sorted(glob.glob(os.path.join(ROOT, "doc", "*.md")) + glob.glob(os.path.join(ROOT, "src", "*", "*.c"))) + glob.glob(os.path.join(ROOT, "data", "jargon.txt"))
    text = [open(f, encoding="utf-8", errors="replace").read()[:200000] for f in files]
    return text + [CHINESE] * 30 + HARD * 3 + list(random_strings(2000, 3))


def byte_map():
    own = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    rest = [b for b in range(256) if b not in own]
    return {**{chr(b): b for b in own}, **{chr(256 + i): b for i, b in enumerate(rest)}}


def split(regex):
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def byte_level(use_regex):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


def train(pre_tokenizer, size, text):
    """The model section of a tokenizer.json."""
    t = tokenizers.Tokenizer(tokenizers.models.BPE())
    spec = json.loads(t.to_str())
    spec["pre_tokenizer"] = pre_tokenizer
    t = tokenizers.Tokenizer.from_str(json.dumps(spec))
    t.train_from_iterator(text, tokenizers.trainers.BpeTrainer(vocab_size=size, show_progress=False, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    return json.loads(t.to_str())["model"]


def added(i, content, **flags):
    return {"id": i, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True, **flags}


def files(size, text):
    """Name: tokenizer.json as a dictionary; and ranks for tiktoken."""
    pre = {"deepseek": sequence(*map(split, DEEPSEEK), byte_level(False)), "llama3": sequence(split(LLAMA3), byte_level(False)), "qwen2": sequence(split(QWEN2), byte_level(False)),
           "gpt2": byte_level(True), "gpt4o": sequence(split(PATTERNS["o200k"]), byte_level(False)), "kimi": sequence(split(PATTERNS["kimi"]), byte_level(False)),
           "digits": sequence({"type": "Digits", "individual_digits": True}, {"type": "Split", "pattern": {"String": "("}, "behavior": "Isolated", "invert": False}, byte_level(True)),
           "digit_runs": sequence({"type": "Digits", "individual_digits": False}, split(r"[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), byte_level(False))}
    out = {}
    for name, p in pre.items():
        model = train(p, size, text)
        n = len(model["vocab"])
        if name in ("gpt2", "digits"):
            model["merges"] = [" ".join(m) for m in model["merges"]]
        model["ignore_merges"] = name == "llama3"
        if model["ignore_merges"]:        # a token that no merge reaches: only a whole piece is it
            model["vocab"].update({"Ġzyxwv": n, "QQQQ": n + 1})
            n += 2
        names = [added(n, "<|begin|>"), added(n + 1, "<|end|>", special=False), added(n + 2, "<|end|>x"), added(n + 3, "<｜User｜>", special=False)]
        if name == "gpt4o":
            names += [added(n + 4, "<l>", lstrip=True), added(n + 5, "<r>", rstrip=True), added(n + 6, "<b>", lstrip=True, rstrip=True), added(n + 7, "wordle", single_word=True),
                      added(n + 8, "<n>", normalized=True)]
        if name == "qwen2":
            names += [added(n + 4, "e\u0301<n>", normalized=True), added(n + 5, "e\u0301<raw>")]
        out[name] = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": names,
                     "normalizer": {"type": "NFC"} if name == "qwen2" else {"type": "Sequence", "normalizers": []} if name == "deepseek" else None,
                     "pre_tokenizer": p, "post_processor": None, "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}, "model": model}
    code = byte_map()
    vocab = sorted(train(pre["kimi"], size, text)["vocab"].items(), key=lambda x: x[1])
    ranks = [bytes([b]) for b in range(256)] + [bytes(code[c] for c in s) for s, _ in vocab if len(s) > 1]
    return out, {b: i for i, b in enumerate(ranks)}


SPECIALS = {0: "[BOS]", 1: "[EOS]", 2: "<|end_of_msg|>", 3: "<|open|>", 4: "<|close|>", 5: "<|sep|>", 254: "[UNK]", 255: "[PAD]"}


def special_tokens(base):
    return {SPECIALS.get(i, f"<|reserved_token_{base + i}|>"): base + i for i in range(256)}


def write_ranks(directory, name, ranks):
    with open(os.path.join(directory, name), "wb") as f:
        for b, i in sorted(ranks.items(), key=lambda x: x[1]):
            f.write(base64.b64encode(b) + b" %d\n" % i)
    with open(os.path.join(directory, "tokenizer_config.json"), "w") as f:
        json.dump({"added_tokens_decoder": {str(len(ranks) + i): {"content": s} for i, s in SPECIALS.items()}, "eos_token": "[EOS]", "bos_token": {"content": "[BOS]"}}, f)


# ---- the models' own cutting of long texts, from its description (spec/formats.md 2.1) --------------------------------------
def chunks(text):
    for i in range(0, len(text), 400000):
        part, begin, run, kind = text[i:i + 400000], 0, 0, None
        for k, c in enumerate(part):
            run = run + 1 if c.isspace() == kind else 1
            kind = c.isspace()
            if run > 25000:
                yield part[begin:k]
                begin, run = k, 1
        yield part[begin:]


# ---- ours ---------------------------------------------------------------------------------------------------------------
class Checks:
    passed = failed = 0

    def __init__(self, build):
        self.program = os.path.join(build, "tokenize")

    def ours(self, kind, path, texts, trusted=False, pattern=None):
        data = [t.encode() for t in texts]
        p = subprocess.run([self.program, kind, path] + ([pattern] if pattern else []), input=b"".join(struct.pack("<II", trusted, len(t)) + t for t in data),
                           stdout=subprocess.PIPE, check=True)
        out, at = [], 0
        while at < len(p.stdout):
            n, = struct.unpack_from("<I", p.stdout, at)
            out.append(list(struct.unpack_from(f"<{n}i", p.stdout, at + 4)))
            at += 4 + 4 * n
        return out

    def compare(self, what, texts, got, want):
        bad = [(t, g, w) for t, g, w in zip(texts, got, want) if g != w]
        good = len(got) == len(want) == len(texts) and not bad
        self.passed += good
        self.failed += not good
        print(f"{'ok   ' if good else 'FAIL '} {what}: {len(texts)} texts, {sum(map(len, want))} ids" + (f", {len(bad)} differ" if bad else ""))
        for t, g, w in bad[:3]:
            print(f"      {t[:60]!r}\n        ours {g[:24]}\n        want {w[:24]}")


def mixed(r, texts, names):
    """Texts with names of special ids among them, whole and cut short."""
    return "".join(r.choice([r.choice(names), r.choice(texts)[:30], r.choice(names)[:-1], " ", "wordle", "é"]) for _ in range(6))


def check_tiktoken(c, directory, ranks, texts):
    write_ranks(directory, "tiktoken.model", ranks)
    path, special, r = os.path.join(directory, "tiktoken.model"), special_tokens(len(ranks)), random.Random(2)
    trusted = [mixed(r, texts, list(special)) for _ in range(3000)]
    for name, pattern in PATTERNS.items():
        e = tiktoken.Encoding(name=name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
        c.compare(f"tiktoken, {name}, user text", texts, c.ours("tiktoken", path, texts, pattern=name), [e.encode_ordinary(t) for t in texts])
        c.compare(f"tiktoken, {name}, names in user text", trusted, c.ours("tiktoken", path, trusted, pattern=name), [e.encode_ordinary(t) for t in trusted])
        c.compare(f"tiktoken, {name}, trusted", trusted, c.ours("tiktoken", path, trusted, True, name), [e.encode(t, allowed_special="all") for t in trusted])
    e = tiktoken.Encoding(name="kimi", pat_str=PATTERNS["kimi"], mergeable_ranks=ranks, special_tokens=special)
    long = ["a" * 70000, " " * 60001 + "x", "中" * 51000, ("ab " * 140000 + "\n") * 2, "x" * 24999 + "<|sep|>" + "y" * 30000, "\x1c" * 26000, "a" * 25000 + " " + "b" * 25001,
            "é " * 450000, "".join(r.choice(texts) for _ in range(20000))]
    c.compare("tiktoken, kimi, long texts", long, c.ours("tiktoken", path, long), [[i for p in chunks(t) for i in e.encode_ordinary(p)] for t in long])
    c.compare("tiktoken, kimi, long trusted texts", long, c.ours("tiktoken", path, long, True), [[i for p in chunks(t) for i in e.encode(p, allowed_special="all")] for t in long])


def check_every_code_point(c, directory):
    """Every pair of bytes is a token, so that any difference between two cuts shows."""
    ranks = {bytes([b]): b for b in range(256)}
    for i in range(65536):
        ranks[bytes([i >> 8, i & 255])] = 256 + i
    texts = ["".join(f"x{chr(k)} X{chr(k)}a1{chr(k)}. {chr(k)}\n" for k in ANY[i:i + 500]) for i in range(0, len(ANY), 500)]
    write_ranks(directory, "pairs.model", ranks)
    for name in PATTERNS:
        e = tiktoken.Encoding(name=name, pat_str=PATTERNS[name], mergeable_ranks=ranks, special_tokens={})
        c.compare(f"tiktoken, {name}, every code point", texts, c.ours("tiktoken", os.path.join(directory, "pairs.model"), texts, pattern=name), [e.encode_ordinary(t) for t in texts])


def check_hf(c, directory, name, spec, texts, r):
    path = os.path.join(directory, name + ".json")
    with open(path, "w") as f:
        json.dump(spec, f)
    # user text: the package is given no added tokens, since it would find them in it
    plain = tokenizers.Tokenizer.from_str(json.dumps({**spec, "added_tokens": []}))
    whole = tokenizers.Tokenizer.from_str(json.dumps(spec))
    names = [a["content"] for a in spec["added_tokens"]]
    trusted = [mixed(r, texts, names) for _ in range(3000)] if names else []

    def ids(t, batch):
        return [e.ids for e in t.encode_batch(batch, add_special_tokens=False)]
    c.compare(f"tokenizers, {name}, user text", texts, c.ours("hf_bpe", path, texts), ids(plain, texts))
    if names:
        c.compare(f"tokenizers, {name}, names in user text", trusted, c.ours("hf_bpe", path, trusted), ids(plain, trusted))
        c.compare(f"tokenizers, {name}, trusted", trusted, c.ours("hf_bpe", path, trusted, True), ids(whole, trusted))


def check(build):
    c, r = Checks(build), random.Random(4)
    texts = HARD + list(random_strings(12000, 9)) + ["".join(random_strings(40, i)) for i in range(100)] + [CHINESE, "".join(corpus()[:3])]
    specs, ranks = files(4000, corpus())
    with tempfile.TemporaryDirectory() as directory:
        check_tiktoken(c, directory, ranks, texts)
        check_every_code_point(c, directory)
        for name, spec in specs.items():
            check_hf(c, directory, name, spec, texts, r)
        marks = [chr(k) for k in ANY if k >= 0x300]
        composing = ["a" + "".join(r.choice(marks) for _ in range(3)) + "\u0301" for _ in range(200000)] + [f"{chr(k)}\u0323\u0301" for k in ANY]
        joined = ["".join(composing[i:i + 200]) for i in range(0, len(composing), 200)]
        check_hf(c, directory, "every composition", {**specs["qwen2"], "added_tokens": []}, joined, r)
    print(f"{c.passed} passed, {c.failed} failed")
    return c.failed != 0


def real(build, path):
    c, r = Checks(build), random.Random(6)
    texts = HARD + list(random_strings(100000, 8)) + [CHINESE] + corpus()[:20]
    with tempfile.TemporaryDirectory() as directory:
        if path.endswith(".json"):
            check_hf(c, directory, "real", json.load(open(path)), texts, r)
        else:
            check_tiktoken(c, directory, {base64.b64decode(a): int(b) for a, b in (line.split() for line in open(path, "rb") if line.strip())}, texts)
    print(f"{c.passed} passed, {c.failed} failed")
    return c.failed != 0


def golden():
    """Small vocabularies and what the packages say, as JSON lines: [file, pattern, trusted, text, ids]."""
    os.makedirs(GOLDEN, exist_ok=True)
    specs, ranks = files(700, corpus())
    write_ranks(GOLDEN, "tiktoken.model", ranks)
    r = random.Random(10)
    texts = [t for t in HARD if "\x00" not in t and len(t) < 150] + [t for t in random_strings(60, 12, 24) if "\x00" not in t] + [CHINESE[:120]]
    lines = []
    for name in PATTERNS:
        e = tiktoken.Encoding(name=name, pat_str=PATTERNS[name], mergeable_ranks=ranks, special_tokens=special_tokens(len(ranks)))
        lines += [["tiktoken.model", name, False, t, e.encode_ordinary(t)] for t in texts]
        names = list(special_tokens(len(ranks)))[:6]
        lines += [["tiktoken.model", name, True, t, e.encode(t, allowed_special="all")] for t in (mixed(r, texts, names) for _ in range(20))]
    for name in ("deepseek", "llama3", "qwen2", "gpt4o", "digits", "digit_runs"):
        with open(os.path.join(GOLDEN, name + ".json"), "w") as f:
            json.dump(specs[name], f, ensure_ascii=False, separators=(",", ":"))
        plain = tokenizers.Tokenizer.from_str(json.dumps({**specs[name], "added_tokens": []}))
        whole = tokenizers.Tokenizer.from_str(json.dumps(specs[name]))
        lines += [[name + ".json", "", False, t, plain.encode(t, add_special_tokens=False).ids] for t in texts]
        names = [a["content"] for a in specs[name]["added_tokens"]]
        lines += [[name + ".json", "", True, t, whole.encode(t, add_special_tokens=False).ids] for t in (mixed(r, texts, names) for _ in range(20))]
    for part in range(2):
        with open(os.path.join(GOLDEN, f"cases{part}.jsonl"), "w") as f:
            f.writelines(json.dumps(x, separators=(",", ":"), ensure_ascii=False) + "\n" for x in lines[part::2])


if __name__ == "__main__":
    if sys.argv[1:2] == ["check"] and len(sys.argv) == 3:
        sys.exit(check(sys.argv[2]))
    if sys.argv[1:2] == ["real"] and len(sys.argv) == 4:
        sys.exit(real(sys.argv[2], sys.argv[3]))
    if sys.argv[1:] == ["golden"]:
        sys.exit(golden())
    sys.exit(__doc__)
