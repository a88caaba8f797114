"""Conversations that the chat tests render: written cases, and random ones of which every kind of part occurs."""
import random

WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city: 温度 in °C", "parameters": {
    "type": "object", "properties": {"unit": {"type": "string", "enum": ["C", "F"]}, "city": {"type": "string"}}, "required": ["city"]}}}
SUM = {"type": "function", "function": {"parameters": {"properties": {"b": {"type": "number", "minimum": -1.5e-7}, "a": {"type": "number", "maximum": 1e16}}, "type": "object"},
                                        "name": "sum", "strict": False, "description": None}}

MARKS = ["<|open|>message role=\"system\"<|sep|>", "<|end_of_msg|>", "<|close|>", "<|im_end|>", "<|im_user|>user<|im_middle|>", "[EOS]", "<|im_start|>", "</think>", "<think>",
         "{{ 7 }}", "{% if %}", "<｜User｜>", "<｜end▁of▁sentence｜>"]
TEXTS = ["hi", "", " ", "\n", "Hello, world!\n", "  two  spaces ", "naïve café", "你好，世界", "a&b \"q\" <x>", "tab\there", "🙂 emoji\u200d", "1234567 + 0.5", "don't\r\nwon't",
         "\x01\x7f\x0b", "x" * 300] + MARKS


def call(number, name="get_weather", arguments='{"city": "Paris"}', **more):
    return {"id": f"functions.{name}:{number}", "type": "function", "function": {"name": name, "arguments": arguments}, **more}


def user(text, **more):
    return {"role": "user", "content": text, **more}


def said(text, **more):
    return {"role": "assistant", "content": text, **more}


def result(of, text, **more):
    return {"role": "tool", "content": text, "tool_call_id": of, **more}


CONVERSATIONS = {
    "one": {"messages": [user("Say hello."), said("Hello.")]},
    "empty": {"messages": [user(""), said("")]},
    "system": {"messages": [{"role": "system", "content": "Be brief."}, user("2+2?"), said("4", reasoning_content="Two and two."), user("And 3+3?"), said("6")]},
    "names": {"messages": [user("hi", name='A "B" & C'), said("hello", name="helper")]},
    "markup": {"messages": [user("".join(MARKS)), said("".join(reversed(MARKS)), reasoning_content="".join(MARKS))]},
    "blank reasoning": {"messages": [user("q"), said("a", reasoning_content=" \n\t")]},
    "tools": {"tools": [WEATHER, SUM], "messages": [
        user("Weather in Paris and Rome?"),
        said(None, reasoning_content="I need both.", tool_calls=[call(0), call(1, arguments={"city": "Rom\u00e9", "unit": None, "n": 3, "x": 1.0, "deep": {"b": [1, {"c": True}], "a": "é\n"}, "l": []})]),
        result("functions.get_weather:1", "hot"), result("functions.get_weather:0", "cold"), said("Cold and hot.")]},
    "bad arguments": {"messages": [user("q"), said("text", tool_calls=[call(0, arguments='{"city": '), call(1, arguments="  "), call(2, arguments="not json & \"quoted\"")]),
                                   result("functions.get_weather:0", "r0")]},
    "unmatched results": {"messages": [user("q"), said("", tool_calls=[call(0), call(1, name="sum", arguments='{"a":1e2,"b":-0,"c":1E-7,"d":123456789012345}')]),
                                       result("functions.get_weather:1", "one"), result("nobody", "two"), said("done"), user("more"), result("x", "late", name="clock")]},
    "twice the same id": {"messages": [user("q"), said("", tool_calls=[call(0), {**call(1, name="sum"), "id": "functions.get_weather:0"}]), result("functions.get_weather:0", "a"),
                                       result("functions.get_weather:0", "b")]},
    "no name": {"messages": [user("q"), {"role": "tool", "content": "r"}]},
    "array arguments": {"messages": [user("q"), said("", tool_calls=[call(0, arguments="[1, 2]")])]},
    "no call id": {"messages": [user("q"), said("", tool_calls=[{"function": {"name": "f", "arguments": "{}"}}]), {"role": "tool", "content": "r"}]},
    "role": {"messages": [{"role": "wizard", "content": "q"}]},
    "nothing": {"messages": []},
}


def some_text(r):
    return "".join(r.choice(TEXTS) for _ in range(r.randint(0, 3)))


def some_value(r, depth=0):
    kind = r.randint(0, 8 if depth < 3 else 6)
    if kind < 2:
        return some_text(r)
    if kind == 2:
        return r.choice([True, False, None])
    if kind == 3:
        return r.randint(-10**r.randint(0, 18), 10**r.randint(0, 18))
    if kind < 7:
        return r.choice([r.uniform(-1, 1), r.uniform(-1, 1) * 10.0**r.randint(-300, 18), float(r.randint(0, 1000)), 1e22 if False else 0.1, 1e-5, 123456.789, 5e-324])
    if kind == 7:
        return [some_value(r, depth + 1) for _ in range(r.randint(0, 3))]
    return {some_text(r) + str(i): some_value(r, depth + 1) for i in range(r.randint(0, 3))}


def random_conversation(r, tools=True, names=True, alternate=False):
    import json
    messages, ids, asked = [], [], True
    if r.random() < 0.4:
        messages.append({"role": "system", "content": some_text(r)})
    for turn in range(r.randint(1, 5)):
        messages.append(user(some_text(r), **({"name": some_text(r)} if names and r.random() < 0.2 else {})))
        for _ in range(r.randint(1, 3) if tools else 1):
            m = said(some_text(r) if r.random() < 0.9 else None)
            if r.random() < 0.5:
                m["reasoning_content"] = some_text(r)
            if tools and r.random() < 0.5:
                m["tool_calls"] = []
                for k in range(r.randint(1, 3)):
                    arguments = {some_text(r) + str(i): some_value(r) for i in range(r.randint(0, 3))}
                    text = r.choice([json.dumps(arguments), json.dumps(arguments, ensure_ascii=False, indent=1), arguments, "", "{broken", some_text(r) + "{"])
                    m["tool_calls"].append(call(k, name=r.choice(["get_weather", "a&\"b", "sum"]), arguments=text))
            messages.append(m)
            ids = [c["id"] for c in m.get("tool_calls", [])]
            r.shuffle(ids)
            for i in ids[:r.randint(0, 3)]:
                messages.append(result(i if r.random() < 0.9 else "unknown", some_text(r), **({"name": "n"} if r.random() < 0.3 else {})))
    if r.random() < 0.3:
        messages.append(user(some_text(r)))
    c = {"messages": messages}
    if tools and r.random() < 0.4:
        c["tools"] = r.sample([WEATHER, SUM, {"z": some_value(r), "a": {"é": some_value(r), "e": 1}}], r.randint(1, 3))
    return c


def random_options(r):
    thinking = r.random() < 0.5
    o = {"thinking": thinking}
    if r.random() < 0.2:
        o["system"] = some_text(r)
    if r.random() < 0.2:
        o["drop_tools"] = True
    return o
