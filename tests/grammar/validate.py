#!/usr/bin/python3
"""validate.py FILE - holds values against JSON schemas with python3-jsonschema (2020-12).

Called by test_validator.c, which writes the file: a line for each schema with the texts of values. All must satisfy it;
with "refused" none may. Exit code 1 when that is not so. Must not: know how Salvo reads schemas.

Numbers are decimals, so that multipleOf is exact. Patterns are ECMAScript's: $ is the end alone, \\w and \\d are ASCII.
"""
import decimal
import json
import re
import sys

import jsonschema
from jsonschema import validators

Base = jsonschema.Draft202012Validator
TIME = re.compile(r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+)?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)", re.ASCII)
formats = jsonschema.FormatChecker(["date", "uuid", "email", "ipv4", "ipv6"])


@formats.checks("time")
def is_time(value):
    return not isinstance(value, str) or bool(TIME.fullmatch(value))


@formats.checks("date-time", raises=ValueError)
def is_date_time(value):
    return not isinstance(value, str) or (value[10:11] == "T" and formats.conforms(value[:10], "date") and
                                          is_time(value[11:]))


@formats.checks("json-pointer")
def is_pointer(value):
    return not isinstance(value, str) or bool(re.fullmatch(r"(/([^/~]|~[01])*)*", value, re.DOTALL))


def expression(pattern):
    return re.compile(pattern.replace("$", r"\Z"), re.ASCII)


def pattern(validator, value, instance, schema):
    if validator.is_type(instance, "string") and not expression(value).search(instance):
        yield jsonschema.ValidationError(f"{instance!r} does not match {value!r}")


def multiple_of(validator, value, instance, schema):
    with decimal.localcontext() as c:
        c.prec = 400
        if validator.is_type(instance, "number") and decimal.Decimal(instance) % decimal.Decimal(value) != 0:
            yield jsonschema.ValidationError(f"{instance} is not a multiple of {value}")


def evaluated(validator, schema, instance):
    """Names that a schema and those applied in its place speak of."""
    if not isinstance(schema, dict):
        return set()
    patterns = schema.get("patternProperties", {})
    names = {name for name in instance if name in schema.get("properties", {}) or
             any(re.search(p, name) for p in patterns)}
    if "additionalProperties" in schema or schema.get("unevaluatedProperties") is True:
        names |= set(instance)
    applied = [s for key in ("allOf", "anyOf", "oneOf") for s in schema.get(key, [])]
    if "$ref" in schema:
        applied.append(target(schema["$ref"]))
    for other in applied:
        if validator.evolve(schema=other).is_valid(instance):
            names |= evaluated(validator, other, instance)
    return names


def unevaluated(validator, value, instance, schema):
    """Debian 12's jsonschema takes additionalProperties for a list of properties here."""
    if value is False and validator.is_type(instance, "object"):
        names = set(instance) - evaluated(validator, schema, instance)
        if names:
            yield jsonschema.ValidationError(f"no subschema speaks of {sorted(names)}")


def target(ref):
    at = root
    for step in ref.split("/")[1:]:
        at = at[step]
    return at


def is_number(checker, value):
    return isinstance(value, (int, decimal.Decimal)) and not isinstance(value, bool)


def is_integer(checker, value):
    return is_number(checker, value) and decimal.Decimal(value) == decimal.Decimal(value).to_integral_value()


root = None
types = Base.TYPE_CHECKER.redefine_many({"number": is_number, "integer": is_integer})
keywords = {"pattern": pattern, "multipleOf": multiple_of, "unevaluatedProperties": unevaluated}
Validator = validators.extend(Base, keywords, type_checker=types)


def own_patterns(schema):
    """patternProperties uses re.search itself: its expressions are rewritten."""
    if isinstance(schema, list):
        return [own_patterns(x) for x in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: own_patterns(value) for key, value in schema.items()}
    if isinstance(out.get("patternProperties"), dict):
        out["patternProperties"] = {"(?a:" + p.replace("$", r"\Z") + ")": s for p, s in out["patternProperties"].items()}
    return out


def no_constant(name):
    raise ValueError(f"{name} is not JSON")


def read(text):
    return json.loads(text, parse_float=decimal.Decimal, parse_constant=no_constant)


bad = n = 0
for line in open(sys.argv[1], encoding="utf-8"):
    case = json.loads(line)
    root = own_patterns(read(case["schema"]))
    validator = Validator(root, format_checker=formats)
    for text in case["values"]:
        n += 1
        errors = [e.message for e in validator.iter_errors(read(text))]
        if bool(errors) != case.get("refused", False):
            bad += 1
            print(f"schema {case['schema']}\nvalue  {text}\n       {errors[0] if errors else 'satisfies it'}")
        if bad == 10:
            sys.exit("ten differences are enough")
print(f"{n} values held against their schemas, {bad} differ")
sys.exit(1 if bad else 0)
