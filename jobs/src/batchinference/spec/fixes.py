"""The last part of a message about an invalid value: what to write instead.

The functions named `...fix` return a sentence with the separator before it, or an empty text.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from batchinference.text import counted

_MODULE_WITH_DASH = re.compile(r"[\w.]+(?:-[\w.]+)+:[\w.]+")
_EXAMPLES = {
    "read": "read: {format: csv, paths: [./data]}",
    "write": "write: {format: parquet, path: ./out}",
    "name": "name: my-name",
    "paths": "paths: [./data]",
    "source": "source: ./model, or the id of a model of the Hub",
    "inputs": "inputs: {text: COLUMN}",
    "replicas": "replicas: {min: 1, max: 4}",
    "resources": "resources: {cpu: 2, memory: 4Gi}",
    "errors": "errors: {maxRows: 10}",
}
"""Examples of fields that are often missing or have the wrong form."""
_MEMORY = re.compile(r"\s*([0-9]{1,6}(?:\.[0-9]{1,3})?) ?([kmgt])i?b?\s*", re.IGNORECASE)
_DURATION = re.compile(
    r"\s*([0-9]{1,4}) ?(s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?)\s*", re.IGNORECASE
)
_NUMBER = re.compile(r"\s*(-?[0-9]{1,9}(?:\.[0-9]{1,9})?)\s*%?\s*")
_MAX_NUMBER = 2**50


def refuse_numbers(expected: str, fix: Callable[[object], str]) -> BeforeValidator:
    """Return a validator of texts with units that refuses a number, and names the unit."""

    def check(value: object) -> object:
        if isinstance(value, int | float) and not isinstance(value, bool):
            context = {"message": f"expected {expected}{fix(value)}"}
            raise PydanticCustomError("unit", "{message}", context)
        return value

    return BeforeValidator(check)


def example_fix(verb: str, field: str) -> str:
    """Return a fix with an example of a field, if there is one."""
    return f". {verb} {_EXAMPLES[field]}" if field in _EXAMPLES else ""


def same_count_fix(field: str, value: object) -> str:
    """Return the fix for a number in place of bounds."""
    is_count = isinstance(value, int) and not isinstance(value, bool) and value > 0
    if field != "replicas" or not is_count:
        return ""
    return f". Write replicas: {{min: {value}, max: {value}}}"


def memory_fix(value: object) -> str:
    """Return the fix for a quantity of memory with another unit, or without a unit."""
    if isinstance(value, str):
        found = _MEMORY.fullmatch(value)
        return _quoted(f"{found[1]}{found[2].upper()}i") if found else ""
    number = _number_in(value) or 0
    if number >= 1024:
        return _quoted(f"{int(number) if number < 2**20 else int(number) >> 20}Mi")
    return _quoted(f"{number:g}Gi") if number >= 0.1 else ""


def duration_fix(value: object) -> str:
    """Return the fix for a duration in words, or for one without a unit: a number of seconds."""
    if isinstance(value, str):
        found = _DURATION.fullmatch(value)
        if found is None:
            return ""
        return _quoted(f"{found[1]}{found[2][0].lower()}")
    return _quoted(in_units(value))


def in_units(value: object) -> str:
    """Return a number of seconds, rounded up, as a duration; empty if it is none or zero."""
    number = None if isinstance(value, str) else _number_in(value)
    minutes, seconds = divmod(max(0, math.ceil(number or 0)), 60)
    parts = ((minutes // 60, "h"), (minutes % 60, "m"), (seconds, "s"))
    return "".join(f"{number}{unit}" for number, unit in parts if number > 0)


def quantity_fix(value: object) -> str:
    """Return the fix for a number in another notation, such as 5 %, 1e3 or 1.2345."""
    try:
        number = round(float(re.sub("[ %]", "", str(value))), 3)
    except ValueError:
        return ""
    return f". Write {number:.15g}" if 0 < number < _MAX_NUMBER else ""


def number_fix(value: object, *, whole: bool) -> str:
    """Return the fix for a number that is written as a text, a boolean or a fraction."""
    number = _number_in(value)
    if number is None or (whole and not number.is_integer()):
        return ". Write a whole number such as 2" if whole else ". Write a number such as 0.5"
    return f". Write {int(number) if number.is_integer() else number}"


def length_fix(length: int, bound: int, unit: str) -> str:
    """Return how many items or characters to add to, or to remove from, a value of this length."""
    number = abs(bound - length)
    verb = "Add" if length < bound else "Remove"
    return f". {verb} {counted(number, unit)}"


def above_max(least: int, most: int) -> str:
    """Return the message about a minimum above the maximum, with the fix."""
    fix = f"Set max to {least} or more, or min to {most} or less"
    return f"min ({least}) is above max ({most}). {fix}"


def _number_in(value: object) -> float | None:
    """Return the number of a text such as 5 or 5 %, or a boolean as 0 or 1; None if it is no
    number or a large one."""
    if isinstance(value, str):
        found = _NUMBER.fullmatch(value)
        return float(found[1]) if found else None
    if isinstance(value, int | float) and abs(value) < _MAX_NUMBER:  # false for NaN
        return float(value)
    return None


def _quoted(text: str) -> str:
    return f'. Write "{text}"' if text else ""


def text_fix(value: object) -> str:
    """Return how to write a value that is no text."""
    if isinstance(value, int | float | dt.date):
        return ". Put it in quotes"
    return _callable_fix(value) if callable(value) else ""


def _callable_fix(value: object) -> str:
    """Return how to name a function or class in a job."""
    module, name = getattr(value, "__module__", ""), getattr(value, "__qualname__", "")
    if not re.fullmatch(r"[\w.]+", name):
        return ". Put a function into a file such as steps.py, and write 'steps:NAME'"
    if module in (None, "", "__main__", "builtins"):
        return f". Put it into a file such as steps.py, and write 'steps:{name}'"
    return f". Write '{module}:{name}'"


def module_fix(value: object) -> str:
    """Return how to write a callable that names a file, has no module, or has one with '-'."""
    text = value.strip() if isinstance(value, str) else ""
    if text.startswith("lambda"):
        return ". Put a function into a file such as steps.py, and write steps:NAME"
    path, colon, name = text.removeprefix("./").removesuffix("()").rpartition(":")
    if not colon and re.fullmatch(r"\w+(\.\w+)*", name):
        path, _, name = name.rpartition(".")
        return f". Write {path or 'steps'}:{name}" + ("" if path else ", if steps.py defines it")
    path = path.removesuffix(".py").replace("/", ".")
    if text != f"{path}:{name}" and re.fullmatch(r"\w+(\.\w+)*", path) and name.isidentifier():
        return f". Write {path}:{name}"
    if not _MODULE_WITH_DASH.fullmatch(text):
        return ""
    return f". A module cannot have '-' in its name. Rename it, and write {text.replace('-', '_')}"
