"""Repairs one line of a text that is not valid YAML, to show the fix in the error message. Repairs
are tried one by one, and the first repair that removes the error is shown."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import accumulate, islice

import yaml
from yaml.error import MarkedYAMLError

from batchinference.spec.expression import columns_in, parse_expression
from batchinference.spec.value_fixes import label_name

MAX_TEXT = 8192
"""Maximum number of characters of a text to repair, because each repair parses the text again."""
MAX_TRIES, MAX_PARSED = 20, 40_000
"""Maximum number of repairs to try, and of characters to parse for all of them."""
MAX_DEPTH = 30
"""Maximum depth of nested brackets, because PyYAML is slow for deep nesting."""
MAX_FIELD = 100
_LINE = re.compile(r"(\s*(?:- +)*)(?:([A-Za-z]\w*)(:? *|:(?=\S)))?(.*)")
_SAFE = (
    *("apiVersion", "kind", "metadata", "spec", "name", "read", "write", "steps", "format", "path"),
    *("paths", "filter", "when", "expect", "gate", "model", "python", "callable", "method", "task"),
    *("runtime", "source", "inputs", "output", "prompt", "schedule", "timeZone", "template"),
    "mode",
    *("addColumns", "selectColumns", "dropColumns", "renameColumns", "partitionBy", "types"),
)
"""Names of fields whose values may be shown, because they hold no passwords."""
_SECRET = re.compile(
    r"(?:key|token|secret|password|pwd|value|auth|Args|ur[il]|dsn|connection|cookie)\w*['\"]?:",
    re.IGNORECASE,
)
"""Matches names of fields that may hold passwords. A line with such a field is not shown."""
_CLOSING = {"[": "]", "{": "}"}
_SIGNS = "*@%>!&|`"
"""Signs with which a value without quotes cannot begin."""
_VALUE = re.compile(
    r"(?:(\w+): +)?"
    r"((?:\{\{.*?\}\}|\bin \[[^\[\]]*\]|\([^()]*\)|'[^']*'|\"[^\"]*\"|[^\[\]{},'\"(])+)"
)
"""Matches a value within brackets, with the name before it, if any."""
Load = Callable[[str], object]


def repair(text: str, error: MarkedYAMLError, load: Load) -> str | None:
    """Return the number of the wrong line, the problem and the fix; None if no repair removes the
    error. `load` parses a text, and raises an error if it is invalid."""
    mark = error.problem_mark or error.context_mark
    lines = text.splitlines()
    if mark is None or len(text) > MAX_TEXT or not lines or _is_deep(text):
        return None
    last = min(mark.line, len(lines) - 1)
    start = min(error.context_mark.line, last) if error.context_mark else last
    before = [number for number in range(last) if lines[number].strip(" -")]
    numbers = [*dict.fromkeys([last, start, *before[-1:]])]
    tries = min(MAX_TRIES, MAX_PARSED // len(text))
    with suppress(RecursionError):  # the rest of the text may be nested too deeply
        for number, problem, line, fix in islice(_repairs(lines, numbers), tries):
            repaired = "\n".join([*lines[:number], line, *lines[number + 1 :]])
            if _error_line(repaired, load) > mark.line:
                return f"line {number + 1}: {problem}{fix}"
    return None


def _is_deep(text: str) -> bool:
    """Return whether brackets are nested more than MAX_DEPTH levels deep."""
    steps = (1 if sign in _CLOSING else -1 for sign in text if sign in "[]{}")
    return max(accumulate(steps), default=0) > MAX_DEPTH


def _repairs(lines: list[str], numbers: list[int]) -> Iterator[tuple[int, str, str, str]]:
    """Yield the number of a line, what may be wrong in it, the repaired line, and the fix."""
    for repairs in (_repaired_values, _repaired_brackets, _repaired_indentation):
        is_indentation = repairs is _repaired_indentation
        for number in numbers[:1] if is_indentation else numbers:
            for problem, line in repairs(lines, number):
                if line != lines[number]:
                    yield number, problem, line, "" if is_indentation else _fix_with(line)


def _error_line(text: str, load: Load) -> float:
    """Return the number of the first line with an error, from 0; infinity if the text is valid.
    Raises RecursionError if it is nested too deeply."""
    try:
        load(text)
    except MarkedYAMLError as error:
        return float(error.problem_mark.line) if error.problem_mark else 0
    except yaml.YAMLError:
        return 0
    return float("inf")


def _fix_with(line: str) -> str:
    """Return the fix that shows the repaired line; empty if it may hold a password, or is long."""
    field = line.strip().removeprefix("- ")
    name, _, value = field.partition(": ")
    expression = value[1:-1] if value[:1] == '"' else ""
    is_safe = name.rstrip(":") in _SAFE or bool(expression and columns_in(expression))
    is_shown = len(field) <= MAX_FIELD and is_safe and not _SECRET.search(field)
    return f". Write {field}" if is_shown else ""


def _repaired_values(lines: list[str], number: int) -> Iterator[tuple[str, str]]:
    """Yield what may be wrong in the name or value of a line, and the repaired line."""
    line = lines[number]
    match = _LINE.fullmatch(line)
    if match is None:
        return
    indent, name, colon, value = match.groups("")
    if name and value and colon == ":":
        yield "a space is missing after the ':'", f"{indent}{name}: {value}"
    if name and not colon.strip():
        field = f"{name}: {value.removeprefix('=').strip()}".strip()
        yield f"the ':' after '{name}' is missing", f"{indent}{field}"
    if value[:1] in ("'", '"') and value.count(value[0]) % 2:
        yield "the quote is not closed", f"{line}{value[0]}"
    elif value and value[0] not in _CLOSING and (colon.endswith(" ") or "-" in indent):
        sign = f"a value cannot begin with {value[0]} without quotes"
        if fixed := _fixed(name, value):
            problem = sign if value[0] in _SIGNS else "the value needs quotes"
            yield problem, f"{indent}{name}{colon}{fixed}"


def _repaired_brackets(lines: list[str], number: int) -> Iterator[tuple[str, str]]:
    """Yield what may be wrong in a list or mapping in brackets, and the repaired line. The line has
    the missing bracket, or quotes around one value."""
    match = _LINE.fullmatch(lines[number])
    value = match[4] if match else ""
    if value[:1] not in _CLOSING:
        return
    start = lines[number].removesuffix(value)
    code = re.sub(r"'[^']*'|\"[^\"]*\"|[^\[\]{}]", "", value)
    while (left := re.sub(r"\[\]|\{\}", "", code)) != code:
        code = left
    if code and set(code) <= {*_CLOSING}:
        closed = "".join(_CLOSING[sign] for sign in reversed(code))
        yield f"the '{code[-1]}' is not closed", f"{start}{value}{closed}"
    for match in _VALUE.finditer(value):
        if text := match[2].strip():
            at = value.index(text, match.start(2))
            other = value[:at] + _fixed(match[1] or "", text) + value[at + len(text) :]
            yield "a value needs quotes", f"{start}{other}"


def _fixed(name: str, value: str) -> str:
    """Return a value, in quotes or corrected; empty for an expression that cannot be corrected."""
    if name in ("filter", "when") or re.match("f?['\"]", value):
        expression = _corrected_expression(value)
        if expression or name in ("filter", "when"):
            return json.dumps(expression, ensure_ascii=False) if expression else ""
    if name == "name" and (label := label_name(value)):
        return label
    if name == "callable":
        value = re.sub(" *: *", ":", value)
    return json.dumps(value, ensure_ascii=False) if "'" in value else f"'{value}'"


def _corrected_expression(text: str) -> str:
    """Return an expression, corrected if it is invalid; empty if it cannot be corrected."""
    if re.match(r"[<>=!]=? ", text):
        return f"COLUMN {text}"
    text = text.rstrip(" ;:,")
    try:
        parse_expression(text)
    except ValueError as error:
        return str(error).partition(". Write ")[2]
    return text


def _repaired_indentation(lines: list[str], number: int) -> Iterator[tuple[str, str]]:
    """Yield the problem, and the line with the indentation of another line nearby."""
    line = lines[number].lstrip(" ")
    begins, before = len(lines[number]) - len(line), "" if line.startswith("-") else "-"
    for other in (*range(number - 1, max(-1, number - 4), -1), number + 1):
        text = lines[other] if other < len(lines) else ""
        indent = len(text) - len(text.lstrip(f" {before}"))
        if text.strip() and indent != begins:
            like = f"Let it begin in column {indent + 1}, like line {other + 1}"
            yield f"it begins in column {begins + 1}. {like}", " " * indent + line
