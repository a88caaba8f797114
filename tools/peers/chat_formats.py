"""A second renderer of the native chat formats, written from spec/formats.md 2.4 and spec/model.md 6.2 and not from the engine's.

A conversation becomes a tree first (elements with attributes and children), then a list of pieces:
    [kind, text, message, part]     kind 0: a special id by name, 1: text that begins a stretch, 2: text that goes on in it
part: 0 open, 1 think, 2 body, 3 calls, 4 end, 5 input (src/chat/chat.h).
"""
import json

OPEN, THINK, BODY, CALLS, END, INPUT = range(6)


class Refused(Exception):
    """The format has no form for this; args[0] is the id of the engine's message."""


def prepare(conversation, options):
    """[(index, message)] and tools after the options of a recipe."""
    messages = list(enumerate(conversation["messages"]))
    tools = conversation.get("tools") or None
    system = options.get("system")
    for _, m in messages:
        if m["role"] not in ("system", "user", "assistant", "tool"):
            raise Refused("chat.role")
    if options.get("drop_tools"):
        tools = None
        kept = []
        for i, m in messages:
            calls = m.get("tool_calls") or []
            if m["role"] == "tool" or (calls and not m.get("content") and not m.get("reasoning_content")):
                continue
            kept.append((i, {k: v for k, v in m.items() if k != "tool_calls"}))
        messages = kept
    if system is not None and (not conversation["messages"] or conversation["messages"][0]["role"] != "system"):
        messages.insert(0, (-1, {"role": "system", "content": system}))
    return messages, tools


# ---- K3 ---------------------------------------------------------------------------------------------------------------
class Element:
    def __init__(self, tag, attributes=(), children=(), part=None):
        self.tag, self.attributes, self.children, self.part = tag, list(attributes), list(children), part


def flatten_open(e, out, message, part):
    out.append([0, "<|open|>", message, part])
    pieces = [e.tag]
    for key, value in e.attributes:
        pieces += [" " + key, '="', value.replace("&", "&amp;").replace('"', "&quot;"), '"']
    out.extend([1, p, message, part] for p in pieces if p)
    out.append([0, "<|sep|>", message, part])


def flatten(e, out, message, part):
    part = part if e.part is None else e.part
    flatten_open(e, out, message, part)
    for child in e.children:
        if isinstance(child, str):
            if child:
                out.append([1, child, message, part])
        else:
            flatten(child, out, message, part)
    out.extend([[0, "<|close|>", message, part], [1, e.tag, message, part], [0, "<|sep|>", message, part]])


def k3_message(out, index, attributes, children):
    """children: [(part, Element or text)]"""
    flatten_open(Element("message", attributes), out, index, OPEN)
    for part, child in children:
        if isinstance(child, str):
            if child:
                out.append([1, child, index, part])
        else:
            flatten(child, out, index, part)
    out.extend([[0, "<|close|>", index, END], [1, "message", index, END], [0, "<|sep|>", index, END], [0, "<|end_of_msg|>", index, END]])


def kind_of(value):
    if value is None:
        return "null"
    for kind, name in ((bool, "boolean"), (int, "number"), (float, "number"), (str, "string"), (dict, "object"), (list, "array")):
        if isinstance(value, kind):
            return name
    raise AssertionError(value)


def k3_call(call, number):
    f = call["function"]
    arguments = f.get("arguments")
    children = []
    if isinstance(arguments, str) and arguments.strip():
        try:
            arguments = json.loads(arguments)
        except ValueError:
            children = [Element("json", [("type", "object")], [arguments], INPUT)]
            arguments = {}
    elif not isinstance(arguments, dict):
        arguments = {}
    if not isinstance(arguments, dict):
        raise Refused("chat.arguments")
    for key, value in arguments.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        children.append(Element("argument", [("key", key), ("type", kind_of(value))], [text]))
    return Element("call", [("tool", f["name"]), ("index", str(number))], children)


def k3_assistant(m, thinking):
    children = []
    if thinking:
        reasoning = m.get("reasoning_content") or ""
        children.append((THINK, Element("think", children=[reasoning if reasoning.strip() else ""])))
    children.append((BODY, Element("response", children=[m.get("content") or ""])))
    if m.get("tool_calls"):
        children.append((CALLS, Element("tools", children=[k3_call(c, n + 1) for n, c in enumerate(m["tool_calls"])])))
    return children


def in_call_order(messages):
    """[(index, message, tool name or None)]: runs of results sorted where every one names a call of the assistant before."""
    done, calls, i = [], [], 0
    while i < len(messages):
        index, m = messages[i]
        if m["role"] != "tool":
            if m["role"] == "assistant":
                calls = m.get("tool_calls") or []
            done.append((index, m, None))
            i += 1
            continue
        run = []
        while i < len(messages) and messages[i][1]["role"] == "tool":
            run.append(messages[i])
            i += 1
        where = {}
        for n, c in enumerate(calls):
            if c.get("id") is not None:
                where.setdefault(c["id"], (n, c["function"]["name"]))
        if all(m.get("tool_call_id") in where for _, m in run):
            run.sort(key=lambda r: where[r[1]["tool_call_id"]][0])
            done += [(index, m, where[m["tool_call_id"]][1]) for index, m in run]
        else:
            done += [(index, m, None) for index, m in run]
    return done


def render_k3(conversation, options, generate, texts=None):
    messages, tools = prepare(conversation, options)
    thinking, out, calls, number = bool(options.get("thinking")), [], [], 0
    if tools:
        around = (texts or {}).get("tool_declare", "# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n{tools}\n```")
        body = around.replace("{tools}", json.dumps(tools, ensure_ascii=False, sort_keys=True, separators=(",", ":")))
        k3_message(out, -1, [("role", "system"), ("type", "tool-declare")], [(BODY, body)])
    if options.get("effort", "none") != "none":
        body = texts["thinking_effort"].replace("{effort}", options["effort"]).strip()
        k3_message(out, -1, [("role", "system"), ("type", "thinking-effort")], [(BODY, body)])
    for index, m, tool in in_call_order(messages):
        attributes = [("role", m["role"])]
        if m["role"] == "assistant":
            calls, number = m.get("tool_calls") or [], 0
        if m["role"] == "tool":
            number += 1
            name = tool or m.get("name") or (calls[number - 1]["function"]["name"] if number <= len(calls) else None)
            if name is None:
                raise Refused("chat.tool-name")
            attributes += [("tool", name), ("index", str(number))]
        elif m.get("name"):
            attributes.append(("name", m["name"]))
        k3_message(out, index, attributes, k3_assistant(m, thinking) if m["role"] == "assistant" else [(BODY, m.get("content") or "")])
    if generate:
        flatten_open(Element("message", [("role", "assistant")]), out, -1, OPEN)
        flatten_open(Element("think" if thinking else "response"), out, -1, OPEN)
    return out


# ---- markers ------------------------------------------------------------------------------------------------------------
class Pieces:
    """Pieces in which text between two specials is one stretch."""

    def __init__(self):
        self.list = []

    def special(self, name, message, part):
        self.list.append([0, name, message, part])

    def text(self, text, message, part):
        if not text:
            return
        last = self.list[-1] if self.list else [0]
        if last[0] and last[2:] == [message, part]:
            last[1] += text
        else:
            self.list.append([2 if last[0] else 1, text, message, part])


def render_k2(conversation, options, generate):
    messages, tools = prepare(conversation, options)
    p = Pieces()
    if tools:
        p.special("<|im_system|>", -1, OPEN)
        p.text("tool_declare", -1, OPEN)
        p.special("<|im_middle|>", -1, OPEN)
        p.text(json.dumps(tools, ensure_ascii=False), -1, BODY)
        p.special("<|im_end|>", -1, END)
    last_user = max([n for n, (_, m) in enumerate(messages) if m["role"] == "user"], default=-1)
    for n, (i, m) in enumerate(messages):
        role = m["role"]
        p.special({"user": "<|im_user|>", "assistant": "<|im_assistant|>"}.get(role, "<|im_system|>"), i, OPEN)
        p.text(m.get("name") or role, i, OPEN)
        p.special("<|im_middle|>", i, OPEN)
        if role == "assistant" and options.get("thinking"):
            p.special("<think>", i, THINK)
            p.text((m.get("reasoning_content") or "") if n > last_user else "", i, THINK)
            p.special("</think>", i, THINK)
        if role == "tool":
            if not m.get("tool_call_id"):
                raise Refused("chat.call")
            p.text("## Return of " + m["tool_call_id"] + "\n", i, BODY)
        p.text(m.get("content") or "", i, BODY)
        if m.get("tool_calls"):
            p.special("<|tool_calls_section_begin|>", i, CALLS)
            for c in m["tool_calls"]:
                if not c.get("id"):
                    raise Refused("chat.call")
                arguments = c["function"].get("arguments")
                p.special("<|tool_call_begin|>", i, CALLS)
                p.text(c["id"], i, CALLS)
                p.special("<|tool_call_argument_begin|>", i, CALLS)
                p.text("{}" if arguments is None else arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False), i, CALLS)
                p.special("<|tool_call_end|>", i, CALLS)
            p.special("<|tool_calls_section_end|>", i, CALLS)
        p.special("<|im_end|>", i, END)
    if generate:
        p.special("<|im_assistant|>", -1, OPEN)
        p.text("assistant", -1, OPEN)
        p.special("<|im_middle|>", -1, OPEN)
    return p.list


def render_chatml(conversation, options, generate):
    messages, tools = prepare(conversation, options)
    p = Pieces()
    if tools:
        raise Refused("chat.tools")
    for i, m in messages:
        if m["role"] == "tool" or m.get("tool_calls"):
            raise Refused("chat.tools")
        if m.get("name"):
            raise Refused("chat.name")
        p.special("<|im_start|>", i, OPEN)
        p.text(m["role"] + "\n", i, OPEN)
        if m["role"] == "assistant" and options.get("thinking"):
            p.special("<think>", i, THINK)
            p.text("\n" + (m.get("reasoning_content") or "") + "\n", i, THINK)
            p.special("</think>", i, THINK)
            p.text("\n\n", i, THINK)
        p.text(m.get("content") or "", i, BODY)
        p.special("<|im_end|>", i, END)
        p.text("\n", i, INPUT)
    if generate:
        p.special("<|im_start|>", -1, OPEN)
        p.text("assistant\n", -1, OPEN)
    return p.list


def render(case, texts=None):
    args = case["conversation"], case.get("options", {}), case.get("generate", False)
    return {"k3_xtml": lambda: render_k3(*args, texts), "kimi_k2": lambda: render_k2(*args), "chatml": lambda: render_chatml(*args)}[case["format"]]()
