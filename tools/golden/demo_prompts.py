"""The prompts of tests/golden/demo.jsonl: short maths questions in the chat form and beginnings of source files. Written for
this project. Imported by make_drafts.py."""

MATHS = """\
Anna has {a} apples. She buys {b} more bags with {c} apples in each bag. How many apples does she have now?
A train travels {a} miles every hour. How many miles does it travel in {c} hours?
Tom earns ${a} per day and works {c} days a week. How much money does he earn in {b} weeks?
There are {a} students in a class. Half of them are girls. How many boys are there?
A shop sells pens for ${c} each. Mia buys {b} pens and pays with a ${a} bill. How much change does she get?
Ben reads {b} pages in the morning and {c} pages in the evening. How many pages does he read in {c} days?
A farmer has {a} hens. Each hen lays {c} eggs a week. How many eggs does he collect in {b} weeks?
Sara had {a} stickers. She gave {b} to her brother and {c} to her friend. How many stickers are left?
A box holds {b} cups. How many boxes are needed for {a} cups?
John is {b} years old. His father is {c} times as old. How old will his father be in {b} years?
A ticket costs ${b} for adults and ${c} for children. How much do {c} adults and {b} children pay?
Lily saves ${c} every week. How many weeks does she need to save ${a}?
""".splitlines()
NUMBERS = [(60, 4, 3), (48, 6, 2), (90, 10, 5)]

CODE = [
    "def add(a, b):\n    \"\"\"Return the sum of a and b.\"\"\"\n",
    "def is_prime(n):\n    if n < 2:\n        return False\n",
    "import os\nimport sys\n\n\ndef main():\n",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    "def factorial(n):\n",
    "for i in range(10):\n    if i % 2 == 0:\n",
    "#include <stdio.h>\n#include <stdlib.h>\n\nint main(int argc, char **argv)\n{\n",
    "static int max(int a, int b)\n{\n",
    "struct node {\n\tstruct node *next;\n\tint value;\n};\n\nstatic void list_free(struct node *head)\n{\n",
    "for (int i = 0; i < n; i++) {\n",
    "function sum(values) {\n  let total = 0;\n",
    "const fs = require('fs');\n\nfunction readFile(path) {\n",
    "export default class Button {\n  constructor(name) {\n",
    "package main\n\nimport \"fmt\"\n\nfunc main() {\n",
    "public class Main {\n    public static void main(String[] args) {\n",
    "def read_lines(path):\n    with open(path) as f:\n",
    "if __name__ == \"__main__\":\n",
    "void swap(int *a, int *b)\n{\n",
    "def test_add():\n    assert add(1, 2) == 3\n",
    "try:\n    import json\nexcept ImportError:\n",
    "    def __repr__(self):\n        return ",
    "#ifndef UTIL_H\n#define UTIL_H\n\n",
    "while (p != NULL) {\n",
    "def fibonacci(n):\n    a, b = 0, 1\n",
    "static inline size_t align_up(size_t n, size_t a)\n{\n",
    "var x = document.getElementById(",
]


def prompts():
    """-> [(name, text)], maths and code by turns"""
    maths = [q.format(a=a, b=b, c=c) for a, b, c in NUMBERS for q in MATHS]
    maths = [("maths%02d" % i, "<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n" % q) for i, q in enumerate(maths)]
    code = [("code%02d" % i, t) for i, t in enumerate(CODE)]
    both = [x for pair in zip(maths, code) for x in pair]
    return both + maths[len(code):] + code[len(maths):]
