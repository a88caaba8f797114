"""Loss masks: what the engine trains on against a second reading of doc/formats.md, 5.1, token by token, and token files through safetensors.

    data.py check BUILD [CASES]

Random conversations in the forms messages, ShareGPT and Alpaca, rendered here as K3's XTML over bytes (256 bytes, then the special slots), with labels made
from the rules; `cadre data check --json` must show the same ids and labels for each sample, and `cadre data pack` must write them. Needs numpy and
safetensors. Exit code 1 where anything differs.
"""
import json
import os
import random
import subprocess
import sys
import tempfile

import numpy
from safetensors import safe_open

END, OPEN, CLOSE, SEP = 258, 259, 260, 261
TEXTS = ["", "a", "Zwei\nZeilen", "x & \"y\" <|open|>", "[EOS]", "日本語 text", "  spaces  ", "e\u0301 \U0001f600", "tab\tand ; more"]


def tag(name, attributes=()):
    ids = [OPEN] + list(name.encode())
    for key, value in attributes:
        ids += list((" " + key + '="' + value.replace("&", "&amp;").replace('"', "&quot;") + '"').encode())
    return ids + [SEP]


def close(name):
    return [CLOSE] + list(name.encode()) + [SEP]


def pieces(message, thinking):
    """(ids, part) of one message."""
    if message["role"] != "assistant":
        yield tag("message", [("role", message["role"])]), "open"
        yield list(message["content"].encode()), "body"
    else:
        yield tag("message", [("role", "assistant")]), "open"
        if thinking:
            reasoning = message.get("reasoning_content") or ""
            yield tag("think") + list((reasoning if reasoning.strip() else "").encode()) + close("think"), "think"
        yield tag("response") + list(message["content"].encode()) + close("response"), "body"
    yield close("message") + [END], "end"


def expect(messages, o):
    """ids and whether each is a target that carries loss."""
    ids, trained = [], []
    assistants = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
    train = []
    for i, m in enumerate(messages):
        own = m.get("train")
        by_rule = o["train_on"] == "all" or (m["role"] == "assistant" and (o["train_on"] == "assistant" or i == assistants[-1]))
        train.append(by_rule if own is None else own)
    last = max([i for i, t in enumerate(train) if t], default=-1)
    for i, m in enumerate(messages):
        for piece, part in pieces(m, o["thinking"]):
            yes = train[i]
            if part == "open":
                yes = yes and o["train_on"] == "all" and m.get("train") is None
            if part == "think":
                empty = not (m.get("reasoning_content") or "").strip()
                yes = yes and (o["mask_think"] == "none" or (o["mask_think"] == "empty" and not empty))
            if part == "end":
                yes = yes and (o["train_eos"] == "turn" or (o["train_eos"] == "last" and i == last))
            ids += piece
            trained += [yes] * len(piece)
    trained[0] = False
    return ids, trained


def random_sample(rng):
    """A conversation, and the record of a file that says it."""
    form = rng.choice(["messages", "sharegpt", "alpaca"])
    text = lambda: rng.choice(TEXTS) + rng.choice(TEXTS)
    if form == "alpaca":
        question, more, answer = text() or "q", text(), text()
        content = question + "\n" + more if more else question
        return form, [{"role": "user", "content": content}, {"role": "assistant", "content": answer}], {"instruction": question, "input": more, "output": answer}
    messages = [{"role": "system", "content": "S" + text()}] if rng.random() < 0.3 else []
    for _ in range(rng.randint(1, 4)):
        messages.append({"role": "user", "content": text()})
        reply = {"role": "assistant", "content": text()}
        if form == "messages" and rng.random() < 0.5:
            reply["reasoning_content"] = rng.choice(["", " \n", "because", "first\nthen"])
        messages.append(reply)
        for m in messages[-2:]:
            if form == "messages" and rng.random() < 0.15:
                m["train"] = rng.random() < 0.5
    if form == "messages":
        return form, messages, {"messages": messages}
    names = {"user": "human", "assistant": "gpt", "system": "system"}
    return form, messages, {"conversations": [{"from": names[m["role"]], "value": m["content"]} for m in messages]}


def run(cadre, arguments):
    p = subprocess.run([cadre] + arguments, capture_output=True, text=True, check=False)
    if p.returncode not in (0, 3):
        sys.exit("cadre " + " ".join(arguments) + ": " + p.stdout + p.stderr)
    return p


def check_file(cadre, folder, form, samples, o):
    path = os.path.join(folder, form + ".jsonl")
    with open(path, "w", encoding="utf-8") as f:
        for _, record in samples:
            f.write(json.dumps(record, ensure_ascii=bool(len(record) % 2)) + "\n")
    keys = ["--set", "train.sequence_length=65536", "--set", "data.untrained=drop"]
    for key in ("train_on", "train_eos", "mask_think"):
        keys += ["--set", f"data.{key}={o[key]}"]
    keys += ["--set", "data.chat_options.thinking=" + ("true" if o["thinking"] else "false")]
    shown = json.loads(run(cadre, ["data", "check", path, "--json", "--show", "100000"] + keys).stdout)["result"]
    want = [(n + 1, *expect(messages, o)) for n, (messages, _) in enumerate(samples)]
    want = [w for w in want if any(w[2])]
    lost = sum(d["count"] for d in shown["dropped"])
    assert len(shown["shown"]) == len(want) and lost == len(samples) - len(want), (form, len(shown["shown"]), len(want), lost)
    for got, (line, ids, trained) in zip(shown["shown"], want):
        n = len(got["ids"])
        assert got["line"] == line and got["tokens"] == len(ids) and got["trained_tokens"] == sum(trained), (form, line, got["tokens"], len(ids))
        assert got["ids"] == ids[:n], (form, line, "ids")
        assert got["labels"] == [i if t else -100 for i, t in zip(ids, trained)][:n], (form, line, o, "labels")
    recipe = os.path.join(folder, "r.yaml")
    with open(recipe, "w", encoding="utf-8") as f:
        f.write(f"model: {{path: tiny-k31}}\ntrain: {{steps: 1}}\ndata: {{train: [{{path: {path}, name: packed}}]}}\n")
    run(cadre, ["data", "pack", recipe, "--out", folder] + keys)
    with safe_open(os.path.join(folder, "packed.tokens"), "numpy") as st:
        words, rows = st.get_tensor("words"), st.get_tensor("rows")
    all_words = numpy.array([i | (1 << 31 if t else 0) for _, ids, trained in want for i, t in zip(ids, trained)], dtype=numpy.uint32)
    assert numpy.array_equal(words, all_words) and list(rows[:, 1]) == [w[0] for w in want] and list(rows[:, 2]) == [sum(w[2]) for w in want], (form, "token file")
    return len(want), sum(len(w[1]) for w in want)


def main():
    cadre, cases = os.path.join(sys.argv[2], "cadre"), int(sys.argv[3]) if len(sys.argv) > 3 else 24
    rng = random.Random(11)
    n_samples = n_tokens = 0
    for case in range(cases):
        o = {"train_on": rng.choice(["assistant", "last", "all"]), "train_eos": rng.choice(["turn", "last", "none"]),
             "mask_think": rng.choice(["none", "empty", "all"]), "thinking": rng.random() < 0.5}
        by_form = {}
        for _ in range(30):
            form, messages, record = random_sample(rng)
            by_form.setdefault(form, []).append((messages, record))
        with tempfile.TemporaryDirectory() as folder:
            for form, samples in by_form.items():
                a, b = check_file(cadre, folder, form, samples, o)
                n_samples += a
                n_tokens += b
    print(f"data: {cases} settings, {n_samples} samples, {n_tokens} tokens: ids, labels and token files as the rules say")


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] != "check":
        sys.exit(__doc__)
    main()
