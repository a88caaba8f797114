"""Chats: what the engine renders against a second renderer, token by token, and the goldens of test/test_chat.c.

    chat.py golden                    writes test/golden/chat.json (native formats, as pieces: independent of a tokenizer) and jinja.json
    chat.py check BUILD [ROUNDS]      compares BUILD/chat_dump with the renderers here over written and random conversations (default 3000)

Needs jinja2 and tiktoken. Closes with `N passed, N failed`; exit code 1 where anything differs.
"""
import base64
import collections
import json
import os
import random
import re
import subprocess
import sys
import tempfile

import chat_cases
import chat_formats
import jinja_peer

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, "..", "..", "test", "golden")
TEXTS = {"thinking_effort": " Think with effort {effort}.\nThat is all. ", "tool_declare": "Tools: {tools} end"}
MARKS = ["[BOS]", "[EOS]", "<|end_of_msg|>", "<|open|>", "<|close|>", "<|sep|>", "<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_end|>", "<|im_start|>",
         "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<think>", "</think>",
         "<|endoftext|>", "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
         "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"]
PATTERN = "|".join([r"[\p{Han}]+", r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])


# ---- a small tokenizer that has the marks of all formats ----------------------------------------------------------------
def train_ranks(text, n):
    """256 bytes and n merges of the commonest pairs within words and across punctuation, so that segments that were joined would merge."""
    ranks = [bytes([b]) for b in range(256)]
    words = collections.Counter(w.encode() for w in re.findall(r'\s*[^\s"=]+|["=\s>]+', text))
    words = {w: [bytes([b]) for b in w] for w in words}
    while len(ranks) < 256 + n:
        pairs = collections.Counter(p for parts in words.values() for p in zip(parts, parts[1:]))
        pairs = {p: c for p, c in pairs.items() if p[0] + p[1] not in ranks}
        if not pairs:
            break
        best = max(pairs, key=lambda p: (pairs[p], p))
        ranks.append(best[0] + best[1])
        for w, parts in words.items():
            i, merged = 0, []
            while i < len(parts):
                if i + 1 < len(parts) and (parts[i], parts[i + 1]) == best:
                    merged.append(parts[i] + parts[i + 1])
                    i += 2
                else:
                    merged.append(parts[i])
                    i += 1
            words[w] = merged
    return ranks


class Tokenizer:
    def __init__(self, folder):
        import tiktoken
        corpus = "".join(t for c in chat_cases.CONVERSATIONS.values() for t in json.dumps(c, ensure_ascii=False)) + ' role="user" message index="1" ="a" think response'
        ranks = train_ranks(corpus, 500)
        self.base, self.n_special = len(ranks), 256
        names = {self.base + i: n for i, n in enumerate(MARKS)}
        for i in range(self.n_special):
            names.setdefault(self.base + i, f"<|reserved_token_{self.base + i}|>")
        with open(os.path.join(folder, "tiktoken.model"), "wb") as f:
            f.writelines(base64.b64encode(r) + b" %d\n" % i for i, r in enumerate(ranks))
        with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
            json.dump({"added_tokens_decoder": {str(i): {"content": n, "special": True} for i, n in names.items()}, "bos_token": "[BOS]", "eos_token": "[EOS]"}, f)
        self.spec = {"type": "tiktoken", "dir": folder, "file": "tiktoken.model", "base": self.base, "special": self.n_special}
        self.ids = {n: i for i, n in names.items()}
        self.bytes = dict(enumerate(ranks))
        self.encoding = tiktoken.Encoding("test", pat_str=PATTERN, mergeable_ranks={r: i for i, r in enumerate(ranks)}, special_tokens=self.ids)

    def encode(self, text):
        return self.encoding.encode(text, allowed_special=set(), disallowed_special=())


class Bytes:
    """The engine's byte tokenizer."""
    spec = {"type": "byte"}
    ids = {"[BOS]": 256, "[EOS]": 257, "<|end_of_msg|>": 258, "<|open|>": 259, "<|close|>": 260, "<|sep|>": 261}

    def __init__(self):
        self.bytes = {i: bytes([i]) for i in range(256)}

    def encode(self, text):
        return list(text.encode())


SAID = (chat_formats.THINK, chat_formats.BODY, chat_formats.CALLS, chat_formats.END)


def tokens_of(pieces, tok):
    """Stretches encoded one by one; a token across spans belongs to the first that an assistant says, else to its first."""
    out, i = [], 0
    while i < len(pieces):
        kind, text, message, part = pieces[i]
        i += 1
        if kind == 0:
            out.append([tok.ids[text], message, part])
            continue
        spans = [(text.encode(), message, part)]
        while i < len(pieces) and pieces[i][0] == 2:
            spans.append((pieces[i][1].encode(), pieces[i][2], pieces[i][3]))
            i += 1
        owner = [s for s in spans for _ in s[0]]
        at = 0
        for t in tok.encode(b"".join(s[0] for s in spans).decode()):
            over = owner[at:at + len(tok.bytes[t])]
            take = next((s for s in over if s[2] in SAID), over[0])
            out.append([t, take[1], take[2]])
            at += len(tok.bytes[t])
    return out


# ---- the engine ------------------------------------------------------------------------------------------------------------
class Engine:
    def __init__(self, build):
        self.p = subprocess.Popen([os.path.join(build, "chat_dump")], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def render(self, case):
        self.p.stdin.write(json.dumps(case).encode() + b"\n")
        self.p.stdin.flush()
        return json.loads(self.p.stdout.readline())


def named(name, **case):
    return {"name": name, **case}


def written_cases():
    for name, c in chat_cases.CONVERSATIONS.items():
        for thinking in (False, True):
            for fmt in ("k3_xtml", "kimi_k2", "chatml"):
                yield named(f"{name}, {fmt}{', thinking' if thinking else ''}", format=fmt, options={"thinking": thinking}, generate=thinking, conversation=c)
    tools = chat_cases.CONVERSATIONS["tools"]
    yield named("dropped tools", format="chatml", options={"drop_tools": True, "system": "Be kind."}, generate=True, conversation=tools)
    yield named("dropped tools", format="k3_xtml", options={"drop_tools": True, "system": ""}, generate=False, conversation=tools)
    yield named("effort", format="k3_xtml", options={"thinking": True, "effort": "max"}, generate=True, conversation=tools, texts=True)


def expected(case):
    try:
        return chat_formats.render(case, TEXTS if case.get("texts") else None)
    except chat_formats.Refused as e:
        return e.args[0]


def write_golden():
    cases = []
    for case in written_cases():
        want = expected(case)
        cases.append({**case, **({"error": want} if isinstance(want, str) else {"pieces": want})})
    with open(os.path.join(GOLDEN, "chat.json"), "w") as f:
        f.write('{"texts": ' + json.dumps(TEXTS, ensure_ascii=True) + ',\n"cases": [\n' + ",\n".join(json.dumps(c, ensure_ascii=True, separators=(",", ":")) for c in cases) + "\n]}\n")
    print(f"{len(cases)} cases, {os.path.getsize(os.path.join(GOLDEN, 'chat.json'))} bytes")
    cases = []
    for source, kind in jinja_peer.all_templates():
        text, error = jinja_peer.run(source, jinja_peer.jinja_cases.CONTEXT)
        cases.append({"template": source, **({} if error is not None or kind == "refuse" else {"text": text})})
    with open(os.path.join(GOLDEN, "jinja.json"), "w") as f:
        f.write('{"context": ' + json.dumps(jinja_peer.jinja_cases.CONTEXT) + ',\n"cases": [\n' + ",\n".join(json.dumps(c) for c in cases) + "\n]}\n")
    print(f"{len(cases)} templates, {os.path.getsize(os.path.join(GOLDEN, 'jinja.json'))} bytes")


def compare(engine, case, tok, texts, failures):
    want, got = expected(case), engine.render({**case, "tokenizer": tok.spec})
    if isinstance(want, str):
        ok = got.get("error") == want
    else:
        ok = got.get("tokens") == tokens_of(want, tok)
    if not ok:
        failures.append((case, want, got))
    return ok


def check_native(build, rounds):
    with tempfile.TemporaryDirectory() as folder:
        tok, plain, engine, failures, n = Tokenizer(folder), Bytes(), Engine(build), [], collections.Counter()
        with open(os.path.join(folder, "chat_texts.json"), "w") as f:
            json.dump(TEXTS, f)
        r = random.Random(20261130)
        cases = list(written_cases())
        for i in range(rounds):
            fmt = ("k3_xtml", "kimi_k2", "chatml")[i % 3]
            cases.append(named(f"random {i}", format=fmt, options=chat_cases.random_options(r), generate=r.random() < 0.5,
                               conversation=chat_cases.random_conversation(r, tools=fmt != "chatml" or r.random() < 0.2, names=fmt != "chatml")))
        for case in cases:
            if case.get("texts"):
                case["dir"] = folder
            for t in [tok] + ([plain] if case["format"] == "k3_xtml" else []):
                compare(engine, case, t, TEXTS, failures)
                n[case["format"], t is plain] += 1
        for case, want, got in failures[:5]:
            print("DIFFERS", case["name"], json.dumps(case), "\n want", json.dumps(want)[:3000], "\n got", json.dumps(got)[:1000])
        print("native formats:", sum(n.values()), "renderings,", len(failures), "differ")
        return sum(n.values()), len(failures)


def check_jinja(build):
    failures = []
    counts = jinja_peer.check_templates(Engine(build), failures)
    for source, want, got in failures[:int(os.environ.get("SHOW", "8"))]:
        print("DIFFERS", repr(source), "\n want", repr(want), "\n got ", repr(got.get("text", got)))
    print("jinja:", ", ".join(f"{n} {k}" for k, n in counts.items()) + f", {len(failures)} differ")
    return sum(counts.values()) + len(failures), len(failures)


def without_think(value):
    if isinstance(value, str):
        return value.replace("<think>", "").replace("</think>", "")
    if isinstance(value, list):
        return [without_think(v) for v in value]
    return {k: without_think(v) for k, v in value.items()} if isinstance(value, dict) else value


def check_chat_templates(build, rounds):
    """Our own templates, and those of the folder CHAT_TEMPLATES where it is set (a collection of released ones, say)."""
    folders = [os.path.join(HERE, "templates")] + ([os.environ["CHAT_TEMPLATES"]] if "CHAT_TEMPLATES" in os.environ else [])
    engine, failures, counts, done = Engine(build), [], collections.Counter(), 0
    r = random.Random(7)
    for name, source in (t for f in folders for t in jinja_peer.foreign_templates(f)):
        with tempfile.TemporaryDirectory() as folder:
            tok = Tokenizer(folder)
            with open(os.path.join(folder, "chat_template.jinja"), "w") as f:
                f.write(source)
            template = jinja_peer.Template(source, {"bos_token": "[BOS]", "eos_token": "[EOS]"}, MARKS)
            refused = collections.Counter()
            for i in range(rounds):
                c = without_think(chat_cases.random_conversation(r, tools=i % 2 == 1, names=False))
                if i % 2 == 0:
                    c = {"messages": [{k: v if v is not None else "" for k, v in m.items()} for m in c["messages"]]}
                case = {"format": "jinja", "dir": folder, "options": {"thinking": r.random() < 0.3}, "generate": r.random() < 0.3, "conversation": c}
                ok, detail = jinja_peer.check_conversation(engine, template, case, tok, MARKS, counts)
                done += 1
                if not ok:
                    got = engine.render({**case, "tokenizer": tok.spec})
                    refused[got.get("error")] += 1
                    failures.append((name, case, detail, got))
            if refused:
                print(f"  {name}: {sum(refused.values())} of {rounds} differ ({dict(refused)})")
    for name, case, detail, got in failures[:int(os.environ.get("SHOW", "3"))]:
        print("DIFFERS", name, json.dumps(case, ensure_ascii=False)[:1500], "\n", str(detail)[:3000], "\n", str(got)[:1500])
    print("chat templates:", ", ".join(f"{n} {k}" for k, n in counts.items()) + f", {len(failures)} differ")
    return done, len(failures)


def main():
    if sys.argv[1] == "golden":
        write_golden()
        return 0
    build, rounds = sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 3000
    parts = [check_native(build, rounds), check_jinja(build), check_chat_templates(build, max(rounds // 50, 1))]
    n, failed = (sum(x) for x in zip(*parts))
    print(f"{n - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
