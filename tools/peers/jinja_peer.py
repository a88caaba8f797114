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
