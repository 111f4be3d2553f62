#!/usr/bin/python3
"""Golden renders of chat templates, by Python's jinja2 set up as transformers does. Run with Debian 12's python3-jinja2 3.1.2:

    /usr/bin/python3 tools/golden/make_jinja.py                 # writes tests/jinja/golden.json and random.json
    /usr/bin/python3 tools/golden/make_jinja.py --fuzz N SEED   # prints N random cases
    /usr/bin/python3 tools/golden/make_jinja.py --dir DIR       # prints the templates below DIR over all contexts
    /usr/bin/python3 tools/golden/make_jinja.py --case          # writes src/jinja/case.h

What --fuzz and --dir print, put into a file, is what test_jinja compares when SALVO_JINJA_CASES names that file.

Templates: tests/jinja/*.jinja; contexts: tests/jinja/contexts.json. A result is the text, or null where the oracle
raises; raise_exception keeps its message as {"raise": text}.
"""
import datetime
import glob
import json
import os
import random
import re
import sys

import jinja2
import jinja2.ext
import jinja2.sandbox

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.normpath(os.path.join(HERE, "..", ".."))
OUT = os.path.join(ROOT, "tests", "jinja")
NOW = 1753280000  # 2025-07-23 14:13:20


class Raised(jinja2.exceptions.TemplateError):
    pass


class Generation(jinja2.ext.Extension):
    """{% generation %}: a call block whose text is printed"""
    tags = {"generation"}

    def parse(self, parser):
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("_support")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(lineno)

    def _support(self, caller):
        return caller()


def environment():
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise Raised(message)

    def strftime_now(fmt):
        return datetime.datetime.utcfromtimestamp(NOW).strftime(fmt)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                       extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.filters["from_json"] = json.loads
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


def render(env, template, context):
    try:
        text = env.from_string(template).render(**context)
        text.encode()
        return text
    except Raised as e:
        return {"raise": str(e)}
    except Exception as e:
        return {"error": type(e).__name__ + ": " + str(e)[:200]}


# ---------------------------------------------------------------- random templates

STRINGS = ["", "a", "Hello World", "hello world", "  pad\t\n", "x,y,,z", "it's", 'say "hi"', "both ' and \"", "naïve Straße",
           "日本語 テキスト", "emoji 😀 end", "line1\nline2\r\nline3", "a\\b", "\u00a0nbsp\u2003", "ΑΣΑΣ σ", "<b>&amp;</b>", "12",
           "-3", "4.5", "1e3", "user", "assistant", "<think>a</think>b", "{\"a\": [1, 2.0, null]}", "\x01\x7f\u200b\ufeff", "ǆ ﬁ ŉ",
           "tool", "UPPER lower Title", "aaa", "[1, 2", "%s and %d", "İI", "x" * 40]
NUMBERS = [0, 1, 2, 3, -1, -7, 10, 255, 1000000007, 2 ** 53 + 1, 0.5, 1.0, -2.5, 3.14159, 1e16, 1e-7, 1e17, 123456789.125, 1.5e18, 0.1, 100.0, 2.675]


def value(r, depth=0):
    k = r.random()
    if k < 0.35 or (depth > 2 and k < 0.7):
        return r.choice(STRINGS)
    if k < 0.6 or depth > 2:
        return r.choice(NUMBERS)
    if k < 0.7:
        return r.choice([True, False, None])
    if k < 0.85:
        return [value(r, depth + 1) for _ in range(r.randrange(5))]
    return {r.choice(["a", "b", "c", "role", "content", "name", "items", "x y", "é", "keys"]): value(r, depth + 1)
            for _ in range(r.randrange(5))}


def random_context(r):
    c = {k: value(r) for k in "abcd"}
    c["s"] = r.choice(STRINGS)
    c["t"] = r.choice(STRINGS)
    c["n"] = r.choice(NUMBERS)
    c["m"] = r.choice([0, 1, 2, 3, -2])
    c["l"] = [value(r, 2) for _ in range(r.randrange(6))]
    c["ls"] = [r.choice(STRINGS) for _ in range(r.randrange(6))]
    c["li"] = [r.choice(NUMBERS) for _ in range(r.randrange(6))]
    c["e"] = {r.choice("abcABC") + str(i): value(r, 2) for i in range(r.randrange(5))}
    c["ms"] = [{"role": r.choice(["user", "assistant", "tool", "system"]), "content": value(r, 2), "k": r.choice([1, 2, None, "z"])}
               for _ in range(r.randrange(5))]
    if c["ms"] and r.random() < 0.3:
        del c["ms"][0]["k"]
    return c


def literal(r):
    k = r.random()
    if k < 0.4:
        s = r.choice(STRINGS)
        return json.dumps(s, ensure_ascii=r.random() < 0.5) if "\\" not in json.dumps(s) else "'" + s.replace("\\", "\\\\").replace("'", "\\'") + "'"
    if k < 0.7:
        return repr(r.choice(NUMBERS)) if r.random() < 0.5 else str(r.randrange(-3, 12))
    return r.choice(["true", "false", "none", "True", "None", "[]", "{}", "()", "[1, 2, 3]", "['b', 'a', 'B']", "{'k': 1, 2: 'v'}", "(1, 'x')", "''"])


SIMPLE_FILTERS = ["upper", "lower", "title", "capitalize", "trim", "string", "length", "count", "list", "first", "last", "reverse", "reverse|list",
                  "sort", "unique|list", "sum", "min", "max", "int", "float", "abs", "round", "tojson", "e", "safe", "items|list", "dictsort",
                  "join", "default('d')", "d('d', true)", "join(', ')", "tojson(indent=2)", "tojson(indent=1, sort_keys=true)",
                  "tojson(ensure_ascii=true)", "tojson(separators=(',', ':'))", "indent", "indent(2, true)", "indent('> ', blank=true)",
                  "replace('a', 'bb')", "replace('l', '', 1)", "trim('ax ')", "round(1)", "round(1, 'ceil')", "round(0, 'floor')", "map('upper')|list", "batch(2)|list",
                  "batch(3, 'f')|list", "map(attribute='role')|list", "map(attribute='k', default='D')|join('-')", "selectattr('role')|list",
                  "selectattr('role', 'equalto', 'user')|list", "rejectattr('k', 'none')|list|length", "selectattr('k', 'defined')|list", "select|list",
                  "select('string')|list", "reject('number')|list", "select('gt', 1)|list", "sort(reverse=true)", "sort(attribute='role')", "sort(case_sensitive=true)",
                  "unique(attribute='role')|list", "sum(attribute='k')", "dictsort(by='value')", "dictsort(reverse=true)", "wordcount", "center(20)",
                  "truncate(10)", "truncate(8, true, '..')", "int(7)", "int(base=16)", "float(1.5)", "from_json", "attr('upper')", "groupby('role')", "slice(2)|list",
                  "format('z')", "format(1, 2)", "forceescape", "map('int')|sum", "map('tojson')|join", "length > 1", "map('default', 'q')|list", "max(attribute='k')", "list|tojson"]
TESTS = ["defined", "undefined", "string", "none", "mapping", "iterable", "sequence", "boolean", "true", "false", "number", "integer", "float", "odd", "even",
         "divisibleby 3", "divisibleby(2)", "in l", "in 'Hello'", "equalto 1", "eq(2)", "ne 'a'", "lt 5", "gt 0", "ge(1)", "le 2", "callable", "lower", "upper", "sameas none", "not none",
         "not defined", "not string", "escaped", "== 1", "filter", "test"]
METHODS = ["upper()", "lower()", "title()", "capitalize()", "strip()", "lstrip()", "rstrip('\\n')", "strip('ax')", "split()", "split(',')", "split('l', 1)", "rsplit('l', 1)", "rsplit(None, 1)",
           "split(maxsplit=1)", "startswith('a')", "endswith(('d', 'e'))", "startswith('e', 1)", "replace('l', 'L')", "replace('', '-')", "replace('a', 'b', 1)", "find('l')", "rfind('l')", "find('o', 5)",
           "index('a')", "count('l')", "count('')", "join(ls)", "get('a')", "get('zz', 1)", "get('role')", "items()", "keys()", "values()", "items()|list", "keys()|list|length", "append(1)", "pop()", "update({})", "copy()",
           "splitlines()", "splitlines(true)", "isdigit()", "isalpha()", "isupper()", "islower()", "isspace()", "isalnum()", "swapcase()", "zfill(8)", "ljust(6, '.')", "rjust(12)", "center(9, '*')", "partition(' ')",
           "rpartition('l')", "removeprefix('He')", "removesuffix('ld')", "isnumeric()", "count(1)", "index(1)", "format(1)", "isascii()"]
OPS = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]
NAMES = ["a", "b", "c", "d", "s", "t", "n", "m", "l", "ls", "li", "e", "ms", "missing", "s", "n", "ls", "ms", "ms[0]", "e.a0", "l[0]", "l[-1]", "ms[-1].role", "ms[0]['content']", "s[0]", "a.b", "range(3)", "range(5, 0, -2)",
         "dict(k=1, j=s)", "namespace(x=n)", "s[1:]", "s[::-1]", "s[-3:]", "l[1:3]", "ls[::2]", "li[-2::-1]", "s[2:-1]", "(s, n)", "a[b]", "e['A1']", "missing.x", "[s, n, a]", "{s: n}"]


def typed(r, kind, depth=0):
    """an expression of one type: most of these do not raise, so results are compared and not only errors"""
    deep = depth > 3
    s, n, l, b, d = (lambda: typed(r, "s", depth + 1)), (lambda: typed(r, "n", depth + 1)), (lambda: typed(r, "l", depth + 1)), \
        (lambda: typed(r, "b", depth + 1)), (lambda: typed(r, "d", depth + 1))
    pick = lambda *options: r.choice(options)
    if kind == "any":
        return typed(r, r.choice("ssnlbd"), depth)
    if r.random() < 0.06 and not deep:
        return "(%s if %s else %s)" % (typed(r, kind, depth + 1), b(), typed(r, kind, depth + 1))
    if kind == "s":
        if deep or r.random() < 0.25:
            return pick("s", "t", "'%s'" % r.choice(["a", " b ", "Hello", "é", "", ", ", "l"]), "ms|map(attribute='role')|join(' ')", "ls|join('|')", literal_text(r))
        return pick(lambda: "(%s ~ %s)" % (s(), typed(r, "any", depth + 1)), lambda: "(%s + %s)" % (s(), s()), lambda: s() + "." + pick("upper()", "lower()", "title()", "capitalize()", "strip()", "lstrip()", "rstrip()", "swapcase()", "strip('aHl ')",
                    "replace('l', 'L')", "replace('', '.', 3)", "zfill(7)", "center(11, '*')", "removeprefix('He')", "ljust(8)", "rjust(9, 'é')"),
                    lambda: s() + "|" + pick("upper", "lower", "title", "capitalize", "trim", "string", "e", "safe", "reverse", "indent", "indent(2, true)", "indent('> ', blank=true)", "replace('a', 'bb')", "truncate(9)", "truncate(8, true, '..')",
                                             "center(20)", "default('d', true)", "first", "last", "tojson", "list|join('.')", "forceescape", "wordcount|string"),
                    lambda: "%s[%s:%s]" % (s(), pick("", "1", "-3", "2"), pick("", "4", "-1", "99")), lambda: "%s[::%s]" % (s(), pick("-1", "2", "-2")), lambda: "(%s * %s)" % (s(), pick("2", "0", "m", "-1")),
                    lambda: "%s|tojson%s" % (typed(r, "any", depth + 1), pick("", "(indent=2)", "(sort_keys=true)", "(separators=(',', ':'))", "(ensure_ascii=true)", "(indent=0)")), lambda: "%s|string" % typed(r, "any", depth + 1),
                    lambda: "%s|join(%s)" % (l(), s()), lambda: "%s.join(ls)" % s(), lambda: "('%%s|%%r|%%5s' %% (%s, %s, %s))" % (typed(r, "any", depth + 1), typed(r, "any", depth + 1), s()),
                    lambda: "('%%d|%%05.1f|%%x' %% (%s, %s, 255))" % (n(), n()), lambda: "'{} {a} {{{b[0]!r}}}'.format(%s, a=%s, b=%s)" % (s(), n(), l()),
                    lambda: "%s.split(%s)[0]" % (s(), pick("'l'", "',', 1", "' '")), lambda: "%s.partition('l')[2]" % s())()
    if kind == "n":
        if deep or r.random() < 0.25:
            return pick("m", "loop_count|default(3)", "1", "2", "-3", "0.5", "7", "10", "1.25", "li|length", "n")
        return pick(lambda: "(%s %s %s)" % (n(), pick("+", "-", "*"), n()), lambda: "(%s %s %s)" % (n(), pick("/", "//", "%"), pick("2", "-3", "1.5", "7", "0.3")), lambda: "%s|length" % pick(s, l, d)(), lambda: "%s|%s" % (n(), pick("abs", "int", "float", "round", "round(1)", "round(2, 'ceil')", "round(1, 'floor')", "round(-1)")),
                    lambda: "li|%s" % pick("sum", "min", "max", "first", "last", "map('int')|sum", "map('abs')|max"), lambda: "%s.%s" % (s(), pick("find('l')", "count('l')", "rfind('o')", "count('')", "find('a', 1)")), lambda: "(%s ** %s)" % (pick("2", "m", "1.5", "-2"), pick("2", "3", "0", "-1")) if r.random() < .5 else "-%s" % n(),
                    lambda: "%s|int(%s)" % (s(), pick("7", "0", "-1, 16")), lambda: "%s|float" % s(), lambda: "(%s|%s)" % (b(), pick("int", "abs", "float")))()
    if kind == "l":
        if deep or r.random() < 0.2:
            return pick("ls", "li", "[1, 2, 3]", "['b', 'A', 'a']", "ms", "range(4)|list", "[]", "l", "(1, 'x', none)", "[[1, 2], [0]]")
        return pick(lambda: "ls|%s|list" % pick("sort", "unique", "map('upper')", "select", "reject('in', 'abc')", "reverse", "map('length')", "map('trim')|map('title')", "sort(reverse=true)", "sort(case_sensitive=true)", "batch(2)", "batch(3, 'z')", "select('eq', s)", "map('replace', 'a', 'b')", "map('default', 'q', true)"),
                    lambda: "li|%s|list" % pick("sort", "unique", "map('string')", "select('gt', 1)", "reverse", "reject('lt', 0)", "map('round', 1)", "select('odd')", "map('int')", "sort(reverse=true)", "slice(2)"),
                    lambda: "ms|%s|list" % pick("map(attribute='role')", "selectattr('role', 'equalto', 'user')", "rejectattr('k', 'none')", "selectattr('k')", "sort(attribute='role')", "unique(attribute='role')", "map(attribute='content')", "map(attribute='zz', default='D')", "groupby('role')", "selectattr('k', 'defined')", "selectattr('role', 'in', ['user', 'tool'])", "map('tojson')", "map('items')|map('list')", "sort(attribute='role', reverse=true)"),
                    lambda: "(%s + [%s])" % (pick("ls", "li", "[0]", "ms"), typed(r, "any", depth + 1)), lambda: "[%s, %s]" % (typed(r, "any", depth + 1), typed(r, "any", depth + 1)), lambda: "(%s, %s)" % (typed(r, "any", depth + 1), typed(r, "any", depth + 1)),
                    lambda: "%s.%s" % (s(), pick("split()", "split('l')", "rsplit('l', 1)", "splitlines()", "split(',', 2)", "split(None, 1)", "rsplit(None, 1)", "partition(' ')", "rpartition('l')", "splitlines(true)")), lambda: "%s|%s" % (d(), pick("dictsort", "list", "items|list", "dictsort(reverse=true)")),
                    lambda: "%s.%s|list" % (d(), pick("keys()", "values()", "items()")), lambda: "(%s|list)[%s:%s]" % (l(), pick("", "1", "-2"), pick("", "2", "-1", "2:-1", ":-1", ":2")), lambda: "(%s|list * %s)" % (l(), pick("2", "0")), lambda: "%s|list" % s())()
    if kind == "d":
        if deep or r.random() < 0.4:
            return pick("e", "{}", "{'k': s, 'j': n}", "dict(a=1, b=s)", "{1: 'x', 'é': none, none: true}", "{'role': 'user'}")
        return pick(lambda: "{'a': %s, %s: %s}" % (typed(r, "any", depth + 1), s(), typed(r, "any", depth + 1)), lambda: "dict(%s, z=%s)" % (d(), typed(r, "any", depth + 1)), lambda: "%s.copy()" % d(), lambda: "dict(%s|items)" % d(), lambda: "dict([(%s, %s)])" % (s(), n()))()
    if deep or r.random() < 0.15:
        return pick("true", "false", "missing", "s", "m", "ls", "none")
    return pick(lambda: "(%s %s %s)" % (n(), pick("==", "!=", "<", "<=", ">", ">="), n()), lambda: "(%s %s %s)" % (s(), pick("==", "!=", "<", ">=", "in", "not in"), s()), lambda: "(%s %s %s)" % (typed(r, "any", depth + 1), pick("==", "!="), typed(r, "any", depth + 1)),
                lambda: "(%s %s %s)" % (typed(r, "any", depth + 1), pick("in", "not in"), l()), lambda: "(%s %s %s)" % (b(), pick("and", "or"), b()), lambda: "(not %s)" % b(), lambda: "(%s is %s%s)" % (typed(r, "any", depth + 1), pick("", "not "), pick("defined", "undefined", "string", "none", "mapping", "iterable", "sequence", "boolean", "true", "false", "number", "integer", "float", "callable", "lower", "upper", "escaped", "in l", "eq 1", "sameas none")),
                lambda: "%s.%s" % (s(), pick("startswith('H')", "endswith('d')", "startswith(('a', 's'))", "isdigit()", "isalpha()", "isupper()", "islower()", "isspace()", "isalnum()", "isnumeric()", "isascii()")), lambda: "(%s < %s <= %s)" % (n(), n(), n()), lambda: "(%s in %s)" % (s(), d()), lambda: "(%s is %s)" % (pick("m", "7", "li|length"), pick("odd", "even", "divisibleby 3", "divisibleby(2)", "gt 1", "le(2)")))()


def literal_text(r):
    return "'" + r.choice(["x", "it\\'s", "q\\n", "\\u00e9", "ΑΣ", "ß", "<b>", "1e3", "12", " 4 "]) + "'"


def expression(r, depth=0):
    return typed(r, "any", 1 + depth // 2) if r.random() < 0.75 else wild(r, depth)


def wild(r, depth=0):
    k = r.random()
    if depth > 3 or k < 0.2:
        return r.choice(NAMES) if r.random() < 0.7 else literal(r)
    if k < 0.38:
        return postfix(r, depth) + "|" + r.choice(SIMPLE_FILTERS)
    if k < 0.52:
        return postfix(r, depth) + "." + r.choice(METHODS)
    if k < 0.62:
        return postfix(r, depth) + " is " + r.choice(TESTS)
    if k < 0.85:
        return "%s %s %s" % (operand(r, depth), r.choice(OPS), operand(r, depth))
    if k < 0.9:
        return "%s%s" % (r.choice(["not ", "-", "+", "not not "]), operand(r, depth))
    if k < 0.96:
        return "(%s if %s else %s)" % (expression(r, depth + 1), expression(r, depth + 1), expression(r, depth + 1))
    if k < 0.98:
        return "(%s if %s)" % (expression(r, depth + 1), expression(r, depth + 1))
    return "%s < %s <= %s" % (operand(r, depth), operand(r, depth), operand(r, depth))


def postfix(r, depth):
    return r.choice(NAMES) if r.random() < 0.6 else "(" + expression(r, depth + 1) + ")"


def operand(r, depth):
    return r.choice([lambda: r.choice(NAMES), lambda: literal(r), lambda: "(" + expression(r, depth + 1) + ")", lambda: expression(r, depth + 1)])()


def text(r):
    return r.choice(["", " ", "\n", "  \n", "x", " y ", "\n  ", "z\n", "\n\n", "é", "<|im_end|>\n", "{", "}", "% }", "a\r\n", "\t"])


def tag(r, body):
    return "{%" + r.choice(["", "", "-", "+"]) + r.choice([" ", "", "\n"]) + body + " " + r.choice(["", "", "-", "+"]) + "%}"


def out(r, e):
    return "{{" + r.choice(["", "", "-"]) + " " + e + " " + r.choice(["", "", "-"]) + "}}"


def block(r, depth=0):
    k = r.random()
    if depth > 3 or k < 0.3:
        return text(r) + out(r, expression(r, 2)) + text(r)
    inner = lambda: "".join(block(r, depth + 1) for _ in range(r.randrange(1, 3)))
    name = r.choice(["x", "y", "s", "ns"])
    if k < 0.45:
        target, it = r.choice([("x", "l"), ("x", "ls"), ("m", "ms"), ("k, v", "e.items()"), ("x", "range(3)"), ("x", "s"), ("x", "missing"), ("k, v", "e|dictsort"), ("x", expression(r, 2)), ("x", "ms|selectattr('role', 'eq', 'user')"), ("k", "e")])
        cond = r.choice(["", "", "", " if x", " if " + expression(r, 2)])
        extra = r.choice(["", "", out(r, r.choice(["loop.index", "loop.first", "loop.last", "loop.length", "loop.revindex0", "loop.previtem", "loop.nextitem is defined", "loop.cycle('a', 'b')", "loop.changed(x)", "loop.depth"])), tag(r, "if loop.index > 2") + tag(r, r.choice(["break", "continue"])) + tag(r, "endif")])
        other = tag(r, "else") + inner() if r.random() < 0.3 else ""
        return tag(r, "for %s in %s%s" % (target, it, cond)) + extra + inner() + out(r, r.choice(["x", "k", "m", "loop.index0"])) + other + tag(r, "endfor")
    if k < 0.6:
        parts = tag(r, "if " + expression(r, 2)) + inner()
        if r.random() < 0.4:
            parts += tag(r, "elif " + expression(r, 2)) + inner()
        if r.random() < 0.5:
            parts += tag(r, "else") + inner()
        return parts + tag(r, "endif")
    if k < 0.72:
        return tag(r, "set %s = %s" % (name, expression(r, 2))) + text(r) + out(r, name)
    if k < 0.77:
        return tag(r, "set ns = namespace(v=%s)" % expression(r, 3)) + tag(r, "for x in ls") + tag(r, "set ns.v = x") + tag(r, "endfor") + out(r, "ns.v")
    if k < 0.81:
        return tag(r, "set y" + r.choice(["", " | upper", " | trim | length"])) + inner() + tag(r, "endset") + out(r, "y")
    if k < 0.88:
        call = r.choice(["f(1)", "f(s, b=2)", "f(b=s)", "f()", "f(*ls)", "f(1, 2, 3)", "f(**e)", "f(c=1)"])
        return tag(r, "macro f(a, b=%s)" % r.choice(["1", "a", "s", "none"])) + inner() + out(r, "a ~ b" + r.choice(["", "", " ~ varargs", " ~ kwargs"])) + tag(r, "endmacro") + out(r, call)
    if k < 0.91:
        return tag(r, "macro g(a)") + "[" + out(r, "caller(a)") + "]" + tag(r, "endmacro") + tag(r, "call(z) g(%s)" % expression(r, 3)) + out(r, "z") + inner() + tag(r, "endcall")
    if k < 0.94:
        return tag(r, "filter " + r.choice(["upper", "trim", "replace('a', 'b')", "indent(2)", "trim | length"])) + inner() + tag(r, "endfilter")
    if k < 0.97:
        return tag(r, "with x = %s, y = x" % expression(r, 3)) + inner() + tag(r, "endwith")
    return r.choice(["{# note #}", "{#- note -#}\n", tag(r, "raw") + " {{ x }} {% y %} " + tag(r, "endraw"), tag(r, "generation") + inner() + tag(r, "endgeneration")])


def random_case(r):
    c = random_context(r)
    if r.random() < 0.5:
        t = "{{ " + expression(r) + " }}"
    else:
        t = "".join(block(r) for _ in range(r.randrange(1, 4)))
    return {"t": t, "c": c}


def fuzz(n, seed):
    env = environment()
    r = random.Random(seed)
    for _ in range(n):
        case = random_case(r)
        case["want"] = render(env, case["t"], case["c"])
        yield case


# ---------------------------------------------------------------- golden files

def golden():
    env = environment()
    with open(os.path.join(OUT, "contexts.json")) as f:
        contexts = json.load(f)
    results = {}
    for path in sorted(glob.glob(os.path.join(OUT, "*.jinja"))):
        with open(path, newline="") as f:
            template = f.read()
        row = {}
        for name, context in contexts.items():
            got = render(env, template, context)
            row[name] = None if isinstance(got, dict) and "error" in got else got
        results[os.path.basename(path)] = row
        bad = sum(not isinstance(v, str) for v in row.values())
        print("%-24s %d renders, %d refused" % (os.path.basename(path), len(row), bad), file=sys.stderr)
    return {"now": NOW, "jinja2": jinja2.__version__, "results": results}


CASE_HEAD = """/*
 * jinja_case.h - code points whose upper or title case is several code points (Python 3.11, Unicode 14).
 *
 * Included by jinja_text.c only. Written by tools/golden/make_jinja.py --case. Must not: be edited.
 */
#ifndef SV_TEXT_JINJA_CASE_H
#define SV_TEXT_JINJA_CASE_H

#include <stdint.h>

struct sv_jcase {
    uint16_t from, to[3];
};
"""


def case_table():
    """code points whose upper or title case is several code points"""
    def rows(fn):
        cps = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
        return [(c, [ord(k) for k in fn(chr(c))]) for c in cps if len(fn(chr(c))) > 1]

    assert rows(str.lower) == [(0x130, [0x69, 0x307])]
    with open(os.path.join(ROOT, "src", "jinja", "case.h"), "w") as f:
        f.write(CASE_HEAD)
        for name, table in (("upper", rows(str.upper)), ("title", rows(str.title))):
            f.write("\nstatic const struct sv_jcase special_%s[] = {\n" % name)
            line = "   "
            for c, to in table:
                entry = " {0x%04X, {%s}}," % (c, ", ".join("0x%04X" % k for k in to))
                if len(line) + len(entry) > 100:
                    f.write(line + "\n")
                    line = "   "
                line += entry
            f.write(line + "\n};\n")
        f.write("\n#endif\n")


def write(name, data):
    with open(os.path.join(OUT, name), "w") as f:
        if "cases" in data:
            f.write('{"now": %d, "cases": [\n%s\n]}\n' %
                    (data["now"], ",\n".join(json.dumps(c, ensure_ascii=False) for c in data["cases"])))
        else:
            f.write(json.dumps(data, ensure_ascii=False, indent=0) + "\n")


def directory(path):
    """every template below path over every context"""
    env = environment()
    with open(os.path.join(OUT, "contexts.json")) as f:
        contexts = json.load(f)
    for name in sorted(glob.glob(os.path.join(path, "**", "*.jinja"), recursive=True)):
        with open(name, newline="") as f:
            template = f.read()
        for context in contexts.values():
            yield {"t": template, "c": context, "want": render(env, template, context)}


def print_cases(cases):
    cases = (c for c in cases if " at 0x" not in str(c["want"]))  # addresses differ from run to run
    print('{"now": %d, "cases": [\n%s\n]}' % (NOW, ",\n".join(json.dumps(c) for c in cases)))


def main():
    if sys.argv[1:2] == ["--fuzz"]:
        print_cases(fuzz(int(sys.argv[2]), int(sys.argv[3])))
    elif sys.argv[1:2] == ["--dir"]:
        print_cases(directory(sys.argv[2]))
    elif sys.argv[1:2] == ["--case"]:
        case_table()
    else:
        write("golden.json", golden())
        keep, n_errors = [], 0
        for case in fuzz(1200, 1):
            if isinstance(case["want"], dict) and "error" in case["want"]:
                case["want"] = None
                n_errors += 1
            case["c"] = {k: v for k, v in case["c"].items() if re.search(r"\b%s\b" % k, case["t"])}
            small = len(json.dumps(case)) < 1500 and " at 0x" not in str(case["want"])
            if small and len(keep) < 400 and (case["want"] is not None or n_errors % 8 == 0):
                keep.append(case)
        write("random.json", {"now": NOW, "cases": keep})


if __name__ == "__main__":
    main()
