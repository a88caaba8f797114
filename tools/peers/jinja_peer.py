"""Jinja: templates run by jinja2, set up as transformers sets it up for chat templates, against the engine."""
import json
import os

import jinja2
import jinja2.ext
import jinja2.sandbox

import jinja_cases


class Generation(jinja2.ext.Extension):
    """{% generation %}: a call block, as in transformers; what it writes stands between two marks where marks are wanted."""
    tags = {"generation"}
    marks = ("", "")

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller):
        return self.marks[0] + caller() + self.marks[1]


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    e = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    e.filters["tojson"] = tojson
    e.globals["raise_exception"] = raise_exception
    e.globals["strftime_now"] = lambda format: "today"
    return e


ENVIRONMENT = environment()


def run(source, context):
    """(text, None) or (None, error)."""
    try:
        return ENVIRONMENT.from_string(source).render(**context), None
    except Exception as e:          # jinja2 lets Python's own errors through
        return None, f"{type(e).__name__}: {e}"


def all_templates():
    cases = [(t, "run") for t in jinja_cases.split(jinja_cases.TEMPLATES) + jinja_cases.LONG]
    return cases + [(t, "error") for t in jinja_cases.split(jinja_cases.ERRORS)] + [(t, "refuse") for t in jinja_cases.split(jinja_cases.REFUSED)]


def check_templates(engine, failures):
    counts = {"same": 0, "both refuse": 0, "refused": 0}
    for source, kind in all_templates():
        text, error = run(source, jinja_cases.CONTEXT)
        got = engine.render({"jinja": source, "context": jinja_cases.CONTEXT})
        if error is not None or kind == "refuse":
            ok, count = "error" in got and (kind != "refuse" or got["error"].startswith("jinja.")), "both refuse" if error else "refused"
        else:
            ok, count = got.get("text") == text and kind == "run", "same"
        counts[count] += ok
        if not ok:
            failures.append((source, error or text, got))
    return counts


def foreign_templates(folder):
    for name in sorted(os.listdir(folder)):
        if name.endswith(".jinja"):
            with open(os.path.join(folder, name)) as f:
                yield name, f.read()


# ---- whole conversations ----------------------------------------------------------------------------------------------------
FIRST = 0xe000                      # a private character for every mark, so that jinja2 cannot take data for one
BEGIN, END = "\ue0f0", "\ue0f1"     # around what a generation block writes


def hide(value, marks):
    if isinstance(value, str):
        for i, m in enumerate(marks):
            value = value.replace(m, chr(FIRST + i))
        return value
    if isinstance(value, list):
        return [hide(v, marks) for v in value]
    if isinstance(value, dict):
        return {hide(k, marks): hide(v, marks) for k, v in value.items()}
    return value


def unhide(text, marks):
    for i, m in enumerate(marks):
        text = text.replace(chr(FIRST + i), m)
    return text


def given_message(m, mapping):
    """A message as the engine makes it of role, content, reasoning, name, id and calls."""
    out = {"role": m["role"], "content": m.get("content")}
    for k in ("reasoning_content", "name", "tool_call_id"):
        if m.get(k) is not None:
            out[k] = m[k]
    if m.get("tool_calls"):
        out["tool_calls"] = []
        for c in m["tool_calls"]:
            arguments = c["function"].get("arguments")
            arguments = "{}" if arguments is None else arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
            if mapping:
                try:
                    parsed = json.loads(arguments)
                    arguments = parsed if isinstance(parsed, dict) else arguments
                except ValueError:
                    pass
            out["tool_calls"].append({**({"id": c["id"]} if c.get("id") else {}), "type": "function", "function": {"name": c["function"]["name"], "arguments": arguments}})
    return out


class Template:
    def __init__(self, source, names, marks):
        self.source, self.names, self.marks = source, names, marks
        call = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [{"id": "call00000", "function": {"name": "f", "arguments": '{"a": "b"}'}}]}]
        text = self.text(call, {}, None, False, False)
        self.mapping = (text is None or '{"a": "b"}' not in text) and "b" in (self.text(call, {}, None, False, True) or "")

    def text(self, messages, options, tools, generate, mapping=None):
        mapping = self.mapping if mapping is None else mapping
        context = {**self.names, "messages": hide([given_message(m, mapping) for m in messages], self.marks), "tools": hide(tools, self.marks), "documents": None, "add_generation_prompt": generate,
                   "thinking": bool(options.get("thinking")), "enable_thinking": bool(options.get("thinking"))}
        return run(self.source, context)[0]


def cut(text, marks):
    """[(is a mark, text, offset)]: what lies between two marks is one stretch."""
    import re
    out, at = [], 0
    for m in re.finditer("|".join(re.escape(x) for x in sorted(marks, key=len, reverse=True)), text):
        out += [(False, text[at:m.start()], at)] if m.start() > at else []
        out.append((True, m.group(), m.start()))
        at = m.end()
    return out + ([(False, text[at:], at)] if at < len(text) else [])


def said_ranges(template, messages, options, tools, whole, stops):
    """[(start, end, index)] of what assistants say, in characters; None: the template rewrites what is past."""
    if "endgeneration" in template.source:
        return None
    out = []
    for i, m in enumerate(messages):
        if m["role"] != "assistant":
            continue
        prompt, end = template.text(messages[:i], options, tools, True), template.text(messages[:i + 1], options, tools, False)
        if prompt is None or end is None or not whole.startswith(prompt) or not whole.startswith(end):
            return None
        stop = max((whole.rfind(s, len(prompt), len(end)) + len(s) for s in stops if whole.rfind(s, len(prompt), len(end)) >= 0), default=len(end))
        out.append((len(prompt), stop, i))
    return out


def check_conversation(engine, template, case, tok, marks, counts):
    messages, tools = case["conversation"]["messages"], case["conversation"].get("tools") or None
    whole = template.text(messages, case["options"], tools, case["generate"])
    got = engine.render({**case, "tokenizer": tok.spec})
    if whole is None:
        counts["both refuse"] += "error" in got
        return "error" in got, None
    said = said_ranges(template, messages, case["options"], tools, whole, ["<|im_end|>", "<｜end▁of▁sentence｜>", "<|eot_id|>", "[EOS]"])
    if said is None and got.get("error") in ("chat.rewrites", "jinja.raised") and not case["generate"]:
        counts["rewritten, refused"] += 1
        return True, None
    want, owner = [], []
    for mark, text, at in cut(whole, marks):
        if mark:
            want.append(tok.ids[text])
            owner.append((at, at + len(text)))
            continue
        ids = tok.encode(unhide(text, marks))
        want += ids
        back = [at + i for i, c in enumerate(text) for _ in unhide(c, marks).encode()] + [at + len(text)]          # character of whole that a byte belongs to
        k = 0
        for t in ids:
            n = len(tok.bytes[t])
            owner.append((back[k], back[k + n - 1] + 1))
            k += n
    tokens = got.get("tokens")
    if tokens is None or [t[0] for t in tokens] != want:
        return False, (whole, want)
    counts["same ids"] += 1
    if said is None or case["generate"]:
        return True, None
    mask = [next((i for a, b, i in said if lo < b and hi > a), -1) for lo, hi in owner]
    engine_mask = [t[1] if t[2] in (1, 2, 3, 4) and t[1] >= 0 and messages[t[1]]["role"] == "assistant" else -1 for t in tokens]
    counts["same masks"] += mask == engine_mask
    return mask == engine_mask, (whole, mask, engine_mask)
