"""Print source code in one style a language: no comments, one formatter.

Owns: what the demo target's code looks like. Used by: prepare_data.py. A small model that writes comments invents prose, and
prose and free formatting are what a draft predicts worst; code alone, formatted by rule, is what it predicts best.
Tools: clang-format (Debian), and the npm packages esbuild and @wasm-fmt/ruff_fmt installed in a folder of their own.
"""
import ast
import json
import multiprocessing
import os
import re
import subprocess
import tempfile
import warnings

HERE = os.path.dirname(os.path.abspath(__file__))
C_PIECE = re.compile(r"//(?:[^\n\\]|\\.|\\\n)*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.S)
C_STYLE = ("{BasedOnStyle: LLVM, IndentWidth: 4, ColumnLimit: 88, MaxEmptyLinesToKeep: 1, SortIncludes: CaseSensitive, "
           "IncludeBlocks: Merge, AllowShortFunctionsOnASingleLine: None, AlignEscapedNewlines: DontAlign, "
           "AlignAfterOpenBracket: DontAlign, AlignOperands: DontAlign, KeepEmptyLinesAtTheStartOfBlocks: false, "
           "IndentCaseLabels: false}")


def bare_c(text):
    """C without comments; lines left empty by that go, blank lines between parts stay single."""
    text = C_PIECE.sub(lambda m: " " if m[0][0] == "/" else m[0], text)
    text = "\n".join(line.rstrip() for line in text.split("\n"))
    return re.sub(r"\n{3,}", "\n\n", text)


def bare_python(text, keep_docs=False):
    """Python without comments and, unless kept, without docstrings; None where it does not parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
            for node in ast.walk(tree):
                body = getattr(node, "body", None)
                if keep_docs or not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                    continue
                if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant) \
                        and isinstance(body[0].value.value, str):
                    node.body = body[1:] or ([] if isinstance(node, ast.Module) else [ast.Pass()])
            return ast.unparse(tree) + "\n"
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def bare_js(text):
    """What esbuild leaves in: comments inside classes, objects and expressions, each on lines of its own, and its own marks."""
    if text is None:
        return None
    text = re.sub(r"(?m)^[ \t]*//.*\n", "", re.sub(r"(?ms)^[ \t]*/\*.*?\*/[ \t]*\n", "", text))
    return text.replace("/* @__PURE__ */ ", "")


def by_node(lang, texts, tools):
    """One text or None for each, through tidy.mjs."""
    lines = "".join(json.dumps({"lang": lang, "text": t}) + "\n" for t in texts)
    got = subprocess.run(["node", f"{HERE}/tidy.mjs", os.path.abspath(tools)], input=lines, capture_output=True, text=True, check=True)
    return [json.loads(x) for x in got.stdout.splitlines()]


def by_clang_format(texts):
    out = []
    with tempfile.TemporaryDirectory() as d:
        names = [f"{d}/{i}.c" for i in range(len(texts))]
        for name, t in zip(names, texts):
            with open(name, "w", encoding="utf-8") as f:
                f.write(t)
        for i in range(0, len(names), 200):
            subprocess.run(["clang-format", "-i", f"--style={C_STYLE}", *names[i:i + 200]], check=False, stderr=subprocess.DEVNULL)
        for name in names:
            with open(name, encoding="utf-8") as f:
                out.append(f.read())
    return out


def tidy_some(job):
    lang, texts, keep, tools = job
    if lang == "python":
        bare = [bare_python(t, k) for t, k in zip(texts, keep)]
        good = [t for t in bare if t is not None]
        done = iter(by_node(lang, good, tools))
        return [None if t is None else next(done) for t in bare]
    if lang == "js":
        return [bare_js(t) for t in by_node(lang, texts, tools)]
    return by_clang_format([bare_c(t) for t in texts])


def tidy(lang, texts, keep_docs, tools, workers=2, size=250):
    """The texts in the project's style, None where a tool refused one; keep_docs: a flag a text (Python docstrings)."""
    jobs = [(lang, texts[i:i + size], keep_docs[i:i + size], tools) for i in range(0, len(texts), size)]
    with multiprocessing.Pool(workers) as pool:
        return [t for part in pool.map(tidy_some, jobs, chunksize=1) for t in part]
