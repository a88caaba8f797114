"""Small templates that hold every construct of the subset, for the comparison with jinja2. CONTEXT is what they are given.
REFUSED are constructs that jinja2 runs and the engine refuses by intention."""

CONTEXT = {
    "s": "Hello, World", "blank": "  \n x y \t", "empty": "", "u": "ñandú 你好 🙂", "n": 7, "f": 2.5, "big": 123456789012, "yes": True, "no": False, "nothing": None,
    "l": [3, 1, 2], "words": ["b", "a", "C", "a"], "d": {"a": 1, "items": [1, 2], "é": "x", "nested": {"k": [None, True, 1.0, "q\"\\\n"]}}, "e": [], "o": {},
    "m": [{"role": "user", "content": "hi", "n": 2}, {"role": "assistant", "content": "yo", "n": 1}, {"role": "user", "content": "bye", "n": 3}],
    "path": "a/b/c/d", "code": "<think>one</think>two", "lines": "one\n  two\r\nthree\n\n", "quote": "it's \"so\"",
}

TEMPLATES = r'''
plain text
{{ s }}
{{s}}{{ n }}{{ f }}{{ yes }}{{ no }}{{ nothing }}{{ l }}{{ d }}{{ e }}{{ o }}
{{ undefined_name }}|{{ d.missing }}|{{ d['missing'] }}|{{ l[9] }}|{{ s[99] }}
{{ 1 + 2 * 3 - 4 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 2 ** 3 ** 2 }} {{ 2 ** -1 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 1e3 }} {{ 1.5e-7 }} {{ 1_000 }} {{ 0x1f }} {{ 0b101 }} {{ 0o17 }}
{{ 10 / 5 }} {{ 1 / 3 }} {{ 1e16 }} {{ 1e15 }} {{ 0.1 + 0.2 }} {{ 100000000000000000000.0 }} {{ -0.0 }} {{ 5 // 0.3 }} {{ 5 % 0.3 }} {{ -5 % 0.3 }} {{ 3 * 1.0 }}
{{ True + True }} {{ 2 * True }} {{ 'ab' * 3 }} {{ [1] * 2 }} {{ 3 * 'x' }} {{ 'a' + 'b' }} {{ [1] + [2, 3] }} {{ (1,) + (2,) }} {{ 'x' * 0 }}|{{ 'x' * -1 }}
{{ 'a' ~ 1 ~ none ~ true ~ 1.5 ~ [1, 'x'] }} {{ 'a' 'b' "c" }}
{{ 1 < 2 }} {{ 1 < 2 < 3 }} {{ 3 > 2 > 2 }} {{ 1 == 1.0 }} {{ 1 == true }} {{ 'a' == 'a' }} {{ 'a' < 'b' }} {{ 'a' != 1 }} {{ none == none }} {{ [1, 2] == [1, 2.0] }} {{ {'a': 1} == {'a': 1} }} {{ (1, 2) == [1, 2] }}
{{ 1 in l }} {{ 9 not in l }} {{ 'ell' in s }} {{ 'a' in d }} {{ 'z' in d }} {{ '' in '' }} {{ 'x' in undefined_name }} {{ none in [none] }} {{ 2.0 in l }}
{{ not yes }} {{ not no and yes }} {{ yes or undefined_name.x }} {{ no and undefined_name.x }} {{ '' or 'x' }} {{ 'y' and 'x' }} {{ none or 0 or [] or 'last' }} {{ not not s }}
{{ 'a' if yes else 'b' }} {{ 'a' if no else 'b' }} {{ 'a' if no }}| {{ 'a' if no else 'b' if no else 'c' }} {{ (1 if yes else 2) + 1 }}
{{ -n }} {{ +n }} {{ - -n }} {{ -f }} {{ -2 ** 2 }} {{ n|abs }} {{ -n|abs }} {{ (-n)|abs }} {{ -1|abs + 1 }}
{{ s[0] }} {{ s[-1] }} {{ s[1:4] }} {{ s[:-2] }} {{ s[::2] }} {{ s[::-1] }} {{ s[5:2] }}| {{ s[-100:3] }} {{ s[3:100] }} {{ u[0] }} {{ u[6:8] }} {{ u[::-1] }} {{ s[-3:] }} {{ s[::-2] }} {{ s[10:2:-3] }}
{{ l[0] }} {{ l[-1] }} {{ l[1:] }} {{ l[::-1] }} {{ l[:2] }} {{ l[10:] }} {{ (1,2,3)[1:] }} {{ l[none:2] }} {{ l[true] }} {{ l[::-2] }} {{ l[-2:] }} {{ l[5::-1] }}
{{ d.a }} {{ d['a'] }} {{ d.nested.k[2] }} {{ d['nested']['k'][-1] }} {{ m[0].role }} {{ m.0.content }} {{ m[-1]['content'] }} {{ d['items'] }} {{ d['é'] }}
{{ d.items()|list }} {{ d.keys()|list }} {{ d.values()|list }} {{ d.get('a') }} {{ d.get('zz') }} {{ d.get('zz', 5) }}
{{ {'a': 1, 'b': [2, {'c': none}]} }} {{ {} }} {{ {'x': 1,} }} {{ {1: 2, none: 3, true: 4} }} {{ {'a': 1, 'a': 2} }} {{ (1, 2) }} {{ (1,) }} {{ () }} {{ 1, 2 }} {{ [1, 2,] }}
{{ quote }} {{ [quote, "it's", 'a"b', "\\", "\n\t\r\x07\x7f"] }} {{ ["é", "你"] }} {{ [1.0, 1e20, 1e-7, true, none] }}
{{ "esc \n \t \\ \" \' \x41 \u00e9 \U0001F642 \101 \q" }}
{# comment #}a{#- b -#} c {#-#} d {#--#} e {#+#}
{% if yes %}A{% endif %}{% if no %}B{% else %}C{% endif %}{% if no %}1{% elif yes %}2{% else %}3{% endif %}{% if no %}x{% elif no %}y{% elif n == 7 %}z{% endif %}
{% for x in l %}{{ x }},{% endfor %}{% for x in e %}no{% else %}empty{% endfor %}{% for x in undefined_name %}{% else %}undef{% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }} {% endfor %}{% for c in 'añ🙂' %}[{{ c }}]{% endfor %}
{% for x in l if x > 1 %}{{ loop.index }}:{{ x }}/{{ loop.length }} {% else %}none{% endfor %}{% for x in l if x > 9 %}{% else %}none{% endfor %}
{% for x in [1,2,3,4] %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }}{{ loop.cycle('a', 'b') }} {% endfor %}
{% for x in [1,1,2] %}{{ loop.previtem }}|{{ loop.nextitem }}|{{ loop.changed(x) }} {% endfor %}
{% for a, b in [(1, 2), [3, 4]] %}{{ a + b }} {% endfor %}{% for (a, b) in [(1, 2)] %}{{ a }}{% endfor %}{% for x in range(5) %}{{ x }}{% endfor %}{% for x in range(1, 10, 3) %}{{ x }}{% endfor %}{% for x in range(3, 0, -1) %}{{ x }}{% endfor %}{{ range(0)|list }}{{ range(5, 1)|list }}
{% for x in range(10) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}{% endif %}{{ x }}{% endfor %}
{% for x in l %}{% for y in l %}{% if y == 1 %}{% break %}{% endif %}{{ x }}{{ y }} {% endfor %}{{ loop.index }}{% endfor %}
{% set a = 1 %}{% set b, c = 2, 3 %}{{ a + b + c }}{% set t = 1, 2 %}{{ t }}{% set a = a + 1 %}{{ a }}{% set x %}block {{ a }}{% endset %}[{{ x }}]{% set y | upper | replace('B', 'z') %}abc{% endset %}{{ y }}
{% set a = 0 %}{% for x in l %}{{ a }}{% set a = a + x %}{{ a }} {% endfor %}{{ a }}
{% set ns = namespace(a=0, b='x') %}{% for x in l %}{% set ns.a = ns.a + x %}{% endfor %}{{ ns.a }}{{ ns.b }}{% set ns.c = [1] %}{{ ns.c }}{{ ns.missing }}{{ ns['a'] }}
{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns.b }}{% if no %}{% set hidden = 1 %}{% endif %}{{ hidden is defined }}{% if yes %}{% set shown = 1 %}{% endif %}{{ shown }}
{% macro f(a, b=2, c='x') %}{{ a }}-{{ b }}-{{ c }}{% endmacro %}{{ f(1) }} {{ f(1, c=3) }} {{ f(b=5, a=4) }} {{ f() }} {{ f(1, 2, 3) }} {{ f(1)|upper }} {{ 'x' ~ f(1) }} {{ f(f(1)) }}
{% macro r(n) %}{{ n }}{% if n > 0 %}{{ r(n - 1) }}{% endif %}{% endmacro %}{{ r(5) }}{% set g = 1 %}{% macro h() %}{{ g }}{{ later }}{% endmacro %}{% set later = 2 %}{{ h() }}{% set g = 9 %}{{ h() }}
{% macro outer(x) %}{% macro inner(y) %}{{ x }}{{ y }}{% endmacro %}{{ inner(1) }}{{ inner(2) }}{% endmacro %}{{ outer('a') }}{% for i in [1,2] %}{% macro lm() %}{{ i }}{% endmacro %}{{ lm() }}{% endfor %}
{% macro d1(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ d1(1) }}{{ d1(1, 2) }}{% macro s1() %}{% set v = 5 %}{{ v }}{% endmacro %}{{ s1() }}{{ v is defined }}
{% for x in l %}{% if loop.first %}{% set first = x %}{% endif %}{{ first is defined }}{% endfor %}{{ first is defined }}
{{ s|length }} {{ u|length }} {{ l|length }} {{ d|count }} {{ undefined_name|length }} {{ s|upper }} {{ s|lower }} {{ 'hELLO wORLD'|capitalize }} {{ "foo bar-baz (qux) it's"|title }} {{ u|upper }} {{ 'ÀÉ ДЖ ΑΒ'|lower }}
{{ blank|trim }}| {{ 'xxaxx'|trim('x') }} {{ blank.strip() }}| {{ blank.lstrip() }}| {{ blank.rstrip() }}| {{ 'abcba'.strip('ab') }} {{ 'xyx'.lstrip('x') }} {{ '\u00a0\u3000x\u2003'.strip() }}| {{ none|trim }} {{ '  '.strip() }}|{{ '你好你'.strip('你') }}
{{ undefined_name|default('d') }} {{ undefined_name|d }}| {{ ''|default('d') }}| {{ ''|default('d', true) }} {{ none|default('d') }} {{ none|default('d', boolean=true) }} {{ 0|d(5, true) }} {{ undefined_name.x|default('d') if no else 'ok' }}
{{ l|join }} {{ l|join(', ') }} {{ m|join('-', attribute='role') }} {{ ['a', 1, none]|join('/') }} {{ 'abc'|join('.') }} {{ ', '.join(words) }} {{ []|join(',') }}| {{ d|join(',') }}
{{ s|replace('l', 'L') }} {{ s|replace('l', 'L', 1) }} {{ s.replace('o', '0') }} {{ s.replace('l', '', 2) }} {{ 'aaa'|replace('aa', 'b') }} {{ 5|replace(5, 6) }}
{{ l|first }} {{ l|last }} {{ 'abc'|first }} {{ 'abc'|last }} {{ []|first }}| {{ d|first }} {{ l|list }} {{ 'abc'|list }} {{ l|reverse|list }} {{ 'abc'|reverse }} {{ n|string + 'x' }} {{ [1]|string }}
{{ '42'|int }} {{ 'x'|int }} {{ 'x'|int(5) }} {{ ' 7 '|int }} {{ '3.7'|int }} {{ 3.9|int }} {{ '-3'|int }} {{ true|int }} {{ none|int }} {{ '2.5'|float }} {{ 'x'|float }} {{ 2|float }} {{ '1e3'|float }} {{ '+5'|int }} {{ ''|int }}
{{ 2.5|round }} {{ 3.5|round }} {{ 2.675|round(2) }} {{ 2.3|round(0, 'ceil') }} {{ 2.7|round(method='floor') }} {{ 7|round }} {{ 1.25|round(1) }} {{ -2.5|round }}
{{ l|sort }} {{ l|sort(reverse=true) }} {{ words|sort }} {{ words|sort(case_sensitive=true) }} {{ m|sort(attribute='n')|map(attribute='role')|join(',') }} {{ words|unique|list }} {{ words|unique(case_sensitive=true)|list }} {{ m|map(attribute='role')|unique|list }} {{ ['a', 'A', 'b']|unique|list }} {{ m|sort(reverse=true, attribute='role')|map(attribute='content')|list }}
{{ d|dictsort }} {{ {'B': 2, 'a': 1}|dictsort }} {{ {'B': 2, 'a': 1}|dictsort(true) }} {{ {'x': 2, 'y': 1}|dictsort(by='value') }} {{ {'x': 2, 'y': 1}|dictsort(false, 'value', true) }}
{{ l|sum }} {{ l|min }} {{ l|max }} {{ m|sum(attribute='n') }} {{ m|max(attribute='n') }} {{ words|min }} {{ words|max }} {{ [1.5, 2]|sum }} {{ l|sum(start=10) }} {{ []|sum }} {{ []|max }}| {{ (m|min(attribute='n')).content }}
{{ m|map(attribute='content')|list }} {{ words|map('upper')|list }} {{ m|map(attribute='zz', default='-')|list }} {{ l|map('string')|join('+') }} {{ ['a b', 'c']|map('replace', ' ', '_')|list }} {{ m|map(attribute='nested.x')|list if no else 1 }} {{ [[1, 2], [3, 4]]|map('first')|list }} {{ [[1, 2], [3, 4]]|map(attribute=1)|list }}
{{ l|select('odd')|list }} {{ l|reject('odd')|list }} {{ [0, 1, '', 'a']|select|list }} {{ m|selectattr('role', 'equalto', 'user')|map(attribute='content')|list }} {{ m|rejectattr('role', '==', 'user')|list|length }} {{ m|selectattr('n', 'gt', 1)|list|length }} {{ m|selectattr('content')|list|length }} {{ m|selectattr('role', 'in', ['assistant'])|list|length }} {{ l|select('>', 1)|list }} {{ m|selectattr('zz', 'defined')|list }}
{{ lines|indent }}| {{ lines|indent(2, true) }}| {{ 'a\nb\n\nc'|indent(3, blank=true) }}| {{ 'a\nb'|indent('> ') }} {{ 'a\n'|indent }}|
{{ d|tojson }} {{ l|tojson }} {{ s|tojson }} {{ none|tojson }} {{ true|tojson }} {{ 1.0|tojson }} {{ u|tojson }} {{ u|tojson(ensure_ascii=true) }} {{ "<&>'\"\\/\n\x01\x7f"|tojson }} {{ (1, 2)|tojson }} {{ {1: 2, none: 3, 1.5: 4}|tojson }}
{{ d|tojson(indent=2) }} {{ d|tojson(indent=None) }} {{ e|tojson(indent=2) }} {{ o|tojson(indent=2) }} {{ d|tojson(separators=(',', ':')) }} {{ d|tojson(sort_keys=true) }} {{ d|tojson(indent=1, separators=(',', ': ')) }} {{ d|tojson(true, 4) }} {{ l|tojson(indent='--') }} {{ l|tojson(indent=0) }}
{{ s is string }} {{ n is number }} {{ n is integer }} {{ f is float }} {{ yes is boolean }} {{ yes is true }} {{ no is false }} {{ nothing is none }} {{ d is mapping }} {{ l is sequence }} {{ s is sequence }} {{ d is sequence }} {{ l is iterable }} {{ n is iterable }} {{ undefined_name is defined }} {{ undefined_name is undefined }} {{ d.zz is defined }} {{ s is not string }} {{ yes is number }} {{ yes is integer }} {{ 1 is true }} {{ 1.0 is integer }} {{ undefined_name is none }} {{ undefined_name is string }} {{ (1,) is sequence }} {{ (1,) is mapping }} {{ range(3) is sequence }}
{{ n is odd }} {{ n is even }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(2) }} {{ n is eq 7 }} {{ n is equalto(7) }} {{ n is ne 7 }} {{ n is lt 8 }} {{ n is ge(7) }} {{ 1 is in l }} {{ 'x' is in 'xyz' }} {{ nothing is sameas none }} {{ yes is sameas true }} {{ n is gt 6 and yes }} {{ n is le 7 or no }} {{ n is not in l }} {{ range is callable }} {{ s is callable }} {{ not n is odd }}
{{ path.split('/') }} {{ path.split('/', 1) }} {{ path.rsplit('/', 1) }} {{ path.split('/')[-1] }} {{ blank.split() }} {{ 'a  b c'.split(none, 1) }} {{ 'a,b,,c'.split(',') }} {{ ''.split(',') }} {{ ''.split() }} {{ code.split('</think>')[-1] }} {{ 'a b c '.split(maxsplit=1) }} {{ 'abc'.split('x') }} {{ ' x '.split(' ') }} {{ 'a b c'.rsplit(' ', maxsplit=1) }} {{ '  a b  c '.split(none, 2) }} {{ 'x'.split('x') }}
{{ s.startswith('Hell') }} {{ s.endswith('ld') }} {{ s.startswith(('x', 'H')) }} {{ s.find('o') }} {{ s.rfind('o') }} {{ s.find('zz') }} {{ s.index('W') }} {{ s.count('l') }} {{ u.find('好') }} {{ s.upper() }} {{ s.lower() }} {{ 'abc DEF'.capitalize() }} {{ 'abc'.find('') }} {{ 'abc'.rfind('') }} {{ 'abc'.count('') }} {{ 'aXbX'.rindex('X') }}
{{ path.partition('/') }} {{ path.rpartition('/') }} {{ path.partition('x') }} {{ path.rpartition('x') }} {{ path.removeprefix('a/') }} {{ path.removesuffix('/d') }} {{ path.removeprefix('x') }} {{ lines.splitlines() }} {{ lines.splitlines(true) }} {{ '12'.isdigit() }} {{ '1a'.isdigit() }} {{ ''.isdigit() }} {{ 'ab'.isalpha() }} {{ 'a1'.isalnum() }} {{ ' \n'.isspace() }} {{ 'a'.isspace() }}
{{ l.index(1) }} {{ l.count(2) }} {{ (1, 2, 1).count(1) }} {{ d.copy() == d }} {{ dict(a=1, b=2) }} {{ dict({'x': 1}, y=2) }} {{ dict([('a', 1)]) }} {{ dict() }}
{% raw %}{{ not run }} {% if %} {# x #}{% endraw %} after {%- raw -%}  x  {%- endraw -%}  end
{% filter upper %}abc {{ s }}{% endfilter %}{% filter replace('a', 'b') | trim %} aaa {% endfilter %}
{{ 'a' if s is string and l is defined and not no else 'b' }}{{ ('a' if yes) ~ 'b' }}{{ [x for x in l] if no }}
{{ s|length > 5 and s|first == 'H' }} {{ (l|length - 1) * 2 }} {{ l|length-1 }} {{ 1 if l|length == 3 else 0 }} {{ 'x'|upper ~ 'y' }} {{ 'a' ~ 'b'|upper }} {{ 1 + 2|string|int }} {{ (1 + 2)|string }}
{{ "a}}b" }} {{ {'k': {'v': 1}}['k']['v'] }} {{ {'a': {'b': 2}}}} {{ '%}' }} {% if '{% x %}' %}ok{% endif %}
text with { and } and {a} and %} and }} and #}
{{ n }}% {{ '{' }}{{ '{{' }}
{{ s.split(',')[0]|lower|trim ~ '!' }} {{ (s ~ '!')[:3] }} {{ s[:5].upper() }} {{ d.nested.k|length }} {{ [1, [2, 3]][1][0] }} {{ 'abc'[1:][0] }}
{{ loop }}|{% for i in [1] %}{{ loop.index }}{% endfor %}{{ loop is defined }}
{% if not undefined_name %}U{% endif %}{% if undefined_name == none %}E{% else %}N{% endif %}{% if undefined_name == undefined_two %}S{% endif %}{% if d.x %}x{% elif d.a %}a{% endif %}
{% for msg in m %}{% set role = msg.role %}{% if loop.index0 % 2 == 0 and role != 'user' %}{{ raise_exception('bad') }}{% endif %}{{ role }}:{{ msg['content'] }} {% endfor %}
{% for msg in m[::-1] %}{{ loop.index0 }}{{ msg.content }} {% endfor %}{% for i in range(m|length - 1, -1, -1) %}{{ m[i].content }}{% endfor %}
{% set items = [] %}{% for x in l %}{% set items = items + [x] %}{% endfor %}{{ items }}{% set k = namespace(v=[]) %}{% for x in l %}{% set k.v = k.v + [x * 2] %}{% endfor %}{{ k.v }}
{% generation %}gen {{ s }}{% set inner = 1 %}{% endgeneration %}{{ inner is defined }}
{{ 7 is none or 7 }}{{ none is none and 'x' }} {{ 1 == 1 and 2 == 2 }} {{ 1 < 2 == true }} {{ 'a' in 'abc' == true }} {{ 3 in [1] or 3 in [3] }} {{ not 1 in l }} {{ not 1 == 2 }}
{{ 5 // -2 }} {{ -5 // -2 }} {{ 5 % -3 }} {{ 2 ** 62 }} {{ 9223372036854775807 }} {{ 5.0 // 0.5 }} {{ 1e308 * 10 }} {{ 3 - -3 }} {{ 2 * 3 % 4 }} {{ 2 + 3 ~ 4 }} {{ 10 - 2 - 3 }} {{ 2 ** 2 ** 3 }}
{{ d.nested|tojson|length }} {{ d|items|list }} {{ o|items|list }} {{ undefined_name|items|list }} {{ undefined_name|list }} {{ m|first|tojson }} {{ (m|last).content }}
{% set content %}{{ s }}{% if yes %} more{% endif %}{% endset %}{{ content|length }}{{ content is string }}
{%- set x = 'a' -%} {%- if x == 'a' -%} yes {%- elif x == 'b' -%} no {%- endif -%} .
{% macro m1(x) -%} [{{ x }}] {%- endmacro %}a {{ m1('q') }} b{{- m1('r') -}} c
{% macro w(messages) %}{% for q in messages %}{{ q.role }}{% endfor %}{% endmacro %}{{ w(m) }}{{ w(messages=m[1:]) }}
{{ s|safe }}{{ (s|upper)|safe }}{{ '<' ~ ('<'|safe) ~ '>' }}{{ 'a' + ('b'|safe) + 'c' }}{% set v = l|tojson|safe if yes else 's' %}{{ v }}{{ '<'|safe + ('>'|safe) }}{{ (s|safe)|length }}{{ (s|safe) is string }}
'''

ERRORS = r'''
{{ undefined_name.x }}
{{ undefined_name + 1 }}
{{ undefined_name['x'] }}
{{ 1 + 'a' }}
{{ 'a' + 1 }}
{{ none + 'a' }}
{{ [1] + (2,) }}
{{ 1 / 0 }}
{{ 1 % 0 }}
{{ 5|length }}
{{ none|length }}
{{ raise_exception('no') }}
{% for x in 5 %}{% endfor %}
{% for x in none %}{% endfor %}
{{ 1 < 'a' }}
{{ none < 1 }}
{{ undefined_name < 1 }}
{{ 5 in 5 }}
{{ 1 in 'abc' }}
{{ f2(1) }}
{{ s() }}
{{ d.a() }}
{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}
{% macro f(a) %}{% endmacro %}{{ f(b=1) }}
{% set a, b = 1 %}
{% set a, b = [1, 2, 3] %}
{% set q.x = 1 %}
{{ l.append(4) }}
{{ d.update({}) }}
{{ d.pop('a') }}
{{ undefined_name|tojson }}
{{ range(1000000) }}
{{ l|join(1, 2, 3) }}
{{ s.split('') }}
{{ s.index('zz') }}
{{ l|nofilter }}
{{ l is notest }}
{% if %}x{% endif %}
{% if yes %}
{% endif %}
{{ }}
{{ 1 + }}
{{ (1 }}
{{ 1) }}
{{ [1 }}
{{ 'a }}
{% for x l %}{% endfor %}
{% unknown %}
{% break %}
{{ a b }}
{{ 1 = 2 }}
{# open
{% raw %} open
{{ s[::0] }}
{{ s['x':] }}
{{ l|sort(attribute='x') if no else [1, 'a']|sort }}
{{ '1' is odd }}
{{ ''.join([1]) }}
{{ d|items(1) }}
{% set ns = namespace() %}{{ ns.x.y }}
{{ {'a': 1}['b']['c'] }}
{{ -'a' }}
{{ [] - [] }}
{{ 'a' - 'b' }}
{% set true = 1 %}
{{ s.__class__.__mro__ }}
'''

REFUSED = r'''
{{ '%s' % s }}
{{ s.format(1) }}
{{ strftime_now('%Y') }}
{% include 'x' %}
{% import 'x' as y %}
{% extends 'x' %}
{% block b %}{% endblock %}
{% with a = 1 %}{{ a }}{% endwith %}
{% call(x) f() %}{% endcall %}
{% for x in l recursive %}{{ x }}{% endfor %}
{{ l|groupby('x') }}
{{ l|batch(2) }}
{{ s|e }}
{{ ('x'|safe).upper() }}
{{ 'x'|safe + '<' }}
{{ 'x'|safe|upper }}
{{ ('xyz'|safe)[:1] }}
{% macro f() %}{{ varargs }}{% endmacro %}{{ f() }}
{{ 'ß'|upper }}
{{ 10000000000 * 10000000000 }}
{{ range(*l) }}
{{ l|sort(attribute='a,b') }}
{{ s.zfill(20) }}
{{ ''|replace('', 'x') }}
{{ cycler(1) }}
{{ 5.real }}
{{ s is sameas s }}
{{ '1f'|int(0, 16) }}
{{ d.é }}
{{ s.format_map }}
{{ ''['__class__'] }}
{{ s.__class__ }}
'''


def split(text):
    """One template a line."""
    return [t for t in text.strip("\n").split("\n") if t]


# Templates of several lines: white space control at line ends.
LONG = [
    "{{ \"multi\nline\" }} {{ 'tab\tin' }}\n{{ undefined_name }}", "a{#\nmulti\n#}\nb {#- x\n-#}\n\n c",
    "   {% if yes %}\n      indented\n   {% endif %}\n   tail\n", "line1\n  {%- if yes %} stripped {%- endif -%}   \n   next\n", "  {%+ if yes %}kept{% endif +%}\nafter\n",
    "{% for x in l -%}\n  {{ x }}\n{%- endfor %}\n", "{% for x in l %}\n  {{ x }}\n{% endfor %}\n\n", "{% set q = 1 %}\n{% set z = 2 %}\n{{ q }}{# c #}\n{{ z }}\n",
    "    {# indented comment #}\nx {# trailing #}\ny\n", "{{ 1 }}{{ 2 -}}\n{{ 3 }}\n", "\n\n{% if yes %}\n\n a \n\n{% endif %}\n\n b", "a\r\nb{% if yes %}\r\nc{% endif %}\rd\r\n",
    "x\n\t{% set a = 1 %}\t\ny{{ a }}\n", "  {{ s }}\n  {{- s }}\n{{ s -}}\n  z", "{#- a -#}\n\n{%- set a = 1 -%}\n\n{{- a -}}\n\n", "{%- for x in l %}\n{{- x }}\n{%- if loop.last %}\nlast\n{%- endif %}\n{%- endfor %}\nend\n",
    "{% macro a() %}\n  {{ s }}\n{% endmacro %}\n[{{ a() }}]\n", "{% set x %}\n  body\n{% endset %}\n[{{ x }}]\n", "{% raw %}\n  {{ x }}\n{% endraw %}\nafter", "  {% raw %}  a  {% endraw %}  \n",
    "a {#+ x #}\nb\n  {#+ y +#}\nc", "{% if yes %}\n{%- if no %}x{% else %}\n  y\n{%- endif %}\n{% endif %}z", "{% generation %}\n  a\n{% endgeneration %}\nb", "\n", "", "x\n", "x\n\n", "{{ s }}\n", "{% if yes %}\n",
    " \n  {% if yes %}a{% endif %} \n \t{% if yes %}b{% endif %}", "a{% if yes %}b{% endif %}\n\n  {% if yes %}c{% endif %}", "é  {% if yes %}\n你{% endif %}", "{{ '\n' }}{% if yes %}\n{% endif %}\n",
]
