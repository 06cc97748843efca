"""Makes the fixes in messages about invalid values: what to write instead.

Functions named `..._fix` return the end of a message, such as `. Write 2`, or an empty text.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable, Sequence

from pydantic import BeforeValidator

from batchinference.spec.base import invalid
from batchinference.text import counted

_MODULE_WITH_DASH = re.compile(r"[\w.]+(?:-[\w.]+)+:[\w.]+")
_EXAMPLES = {
    "spec": "spec: {read: {...}, steps: [...], write: {...}}",
    "read": "read: {format: csv, paths: [./data]}",
    "write": "write: {format: parquet, path: ./out}",
    "name": "name: my-name",
    "paths": "paths: [./data]",
    "source": "source: ./model, or the id of a model of the Hub",
    "inputs": "inputs: {text: COLUMN}",
    "replicas": "replicas: {min: 1, max: 4}",
    "resources": "resources: {cpu: 2, memory: 4Gi}",
    "errors": "errors: {maxRows: 10}",
    "retry": "retry: {maxAttempts: 3}",
    "gate": "gate: {rows: 100, expect: mean(COLUMN) > 0.5}",
    "python": "python: {callable: 'steps:NAME'}",
    "apiVersion": "apiVersion: batchinference.dev/v1beta1",
    "steps": "steps: [{name: NAME, filter: EXPRESSION}]",
    "cache": "cache: {path: ./cache}",
    "metadata": "metadata: {name: my-name}",
    "task": "task: text-classification, or another task",
    "runtime": "runtime: transformers, or another runtime",
    "api": "api: chat, or completions, embeddings or json",
    "output": "output: result",
    "path": "path: ./DIRECTORY",
    "format": "format: csv, or another format",
    "decode.format": "format: image, or audio, text or json",
    "decode.fields": "fields: {NAME: string}",
    "spec.notifications": "notifications: [{name: NAME, urlEnv: VARIABLE}]",
    "profiles": "profiles: {GPU: {resource: nvidia.com/gpu}}",
    "patches": "patches: [{groups: ['*'], pod: {spec: {...}}}]",
    "groups": "groups: ['*'], or the names of groups",
    "warnings": "warnings: [{name: Truncated, action: fail}]",
    "backoff": "backoff: {initial: 10s, max: 10m}",
    "parallelism": "parallelism: {tensor: 2}",
    "url": "url: ADDRESS",
    "urlEnv": "urlEnv: VARIABLE, the name of a variable with the address",
    "key": "key: [COLUMN]",
    "fields": "fields: [{name: NAME, type: string}]",
    "table": "table: NAME",
    "callArgs": "callArgs: {NAME: VALUE}",
    "constructorArgs": "constructorArgs: {NAME: VALUE}",
    "addColumns": "addColumns: {NAME: EXPRESSION}",
    "renameColumns": "renameColumns: {OLD: NEW}",
    "types": "types: {COLUMN: int64}",
    "explode": "explode: {column: NAME}",
    "decode": "decode: {column: NAME, format: json}",
    "chunk": "chunk: {column: NAME, size: 500}",
    "labelFromPath": "labelFromPath: {column: label, index: -2}",
    "head": "head: {memory: 8Gi}",
    "workers": "workers: {min: 1, max: 4}",
    "nodeSelector": "nodeSelector: {LABEL: VALUE}",
    "envFrom": "envFrom: [{secretRef: {name: NAME}}]",
    "env": "env: [{name: NAME, value: TEXT}]",
    "parameters": "parameters: [{name: NAME, value: TEXT}]",
    "messages": "messages: [{role: user, content: TEXT}]",
    "tolerations": "tolerations: [{key: KEY, operator: Exists}]",
    "imagePullSecrets": "[{name: NAME}]",
    "volumes": "volumes: [{name: data, persistentVolumeClaim: {claimName: NAME}}]",
    "volumeMounts": "volumeMounts: [{name: data, mountPath: /data}]",
    "persistentVolumeClaim": "persistentVolumeClaim: {claimName: NAME}",
    "hostPath": "hostPath: {path: /data}",
    "configMap": "configMap: {name: NAME}",
    "secret": "secret: {secretName: NAME}",
    "emptyDir": "emptyDir: {}",
    "secretRef": "secretRef: {name: NAME}",
    "configMapRef": "configMapRef: {name: NAME}",
    "secretKeyRef": "secretKeyRef: {name: NAME, key: KEY}",
    "configMapKeyRef": "configMapKeyRef: {name: NAME, key: KEY}",
    "ttl": "ttl: {afterFinished: 7d}",
    "deadlines": "deadlines: {total: 2h}",
}
"""Examples of fields that are often missing or have a value of the wrong type. `PARENT.NAME` is
only for the field NAME of PARENT."""
_MEMORY = re.compile(r"\s*([0-9]{1,6}(?:\.[0-9]{1,3})?) ?([kmgt])i? ?b?\s*", re.IGNORECASE)
_DURATION = re.compile(
    r"\s*([0-9]{1,4}(?:\.[0-9]{1,2})?) ?"
    r"(s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?)\s*",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\s*(-?[0-9]{1,9}(?:\.[0-9]{1,9})?)\s*([%kM]?)\s*")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_FACTORS = {"k": 10**3, "M": 10**6}
_PLAIN = re.compile(r"[^\W_][\w./-]*|\./[\w./-]*")
"""Matches texts that need no quotes in YAML, even within brackets."""
_FLAGS = {
    **dict.fromkeys(("yes", "on", "y", "1", "true"), "true"),
    **dict.fromkeys(("no", "off", "n", "0", "false"), "false"),
}
MAX_ITEMS = 60
"""Maximum length of a text that a fix shows as a list."""
_MAX_NUMBER = 2**50


def refuse_numbers(expected: str, fix: Callable[[object], str]) -> BeforeValidator:
    """Return a validator that rejects a number without a unit, with the fix that `fix` returns."""

    def check(value: object) -> object:
        if isinstance(value, int | float) and not isinstance(value, bool):
            raise invalid(f"expected {expected}{fix(value)}")
        return value

    return BeforeValidator(check)


def name_of_example(names: Sequence[str]) -> str:
    """Return the name of a field in _EXAMPLES, if it has an example. `names` is its path."""
    with_parent = ".".join(names[-2:])
    return with_parent if with_parent in _EXAMPLES else "".join(names[-1:])


def example_fix(verb: str, field: str) -> str:
    """Return a fix with an example of a field; empty if there is no example."""
    return f". {verb} {_EXAMPLES[field]}" if field in _EXAMPLES else ""


def _plain(value: object) -> str:
    """Return a value as text; empty for a list or mapping. Their text may be very long, because
    aliases of YAML repeat items."""
    return "" if isinstance(value, list | dict) else str(value)


def mapping_fix(field: str, value: object, *, is_item: bool = False) -> str:
    """Return the fix for a value in place of a mapping: a mapping that contains the value, or an
    example. With `is_item`, the mapping is an item of the list `field`."""
    text = "" if isinstance(value, bool) or value is None else _plain(value)
    if is_item:
        item = re.search(r"\[(\{.*\})\]", _EXAMPLES.get(field, ""))
        return f". Write {_filled(item[1], field, text)}" if item else ""
    if field == "errors" and isinstance(value, str) and (fix := percent_fix("maxRows", value)):
        return fix.replace("Write ", "Write errors: {") + "}"
    pattern, fields = _SHORT_FORMS.get(field, ("", ""))
    if text and re.fullmatch(pattern, text):
        return f". Write {field}: {{{fields.format(text)}}}"
    return _filled(example_fix("Write", field), field, text)


_FILLED = {
    **dict.fromkeys(
        (
            "imagePullSecrets",
            "persistentVolumeClaim",
            "secret",
            "configMap",
            "secretRef",
            "configMapRef",
        ),
        ("NAME", r"[a-z][a-z0-9-]*"),
    ),
    "hostPath": ("/data", r"/[\w./-]*"),
    "python": ("steps:NAME", r"[\w.]+:[\w.]+"),
    "read": ("./data", r"[\w./-]+\.csv"),
    "write": ("./out", r"[\w./:-]+"),
    "gate": ("mean(COLUMN) > 0.5", r"(?:mean|count|fraction|min|max)\(.*\) *[<>=]=? *[0-9.]+"),
    "cache": ("./cache", r"[\w./-]+"),
}
"""By field: the part of its example that a value may replace, and the pattern of such values."""


def _filled(example: str, field: str, text: str) -> str:
    """Return the example of a field, with the text filled in if it fits the pattern in _FILLED."""
    old, pattern = _FILLED.get(field, ("", "(?!)"))
    return example.replace(old, text) if re.fullmatch(pattern, text) else example


_SHORT_FORMS = {
    "deadlines": ("([1-9][0-9]{0,3}[dhms])+", "total: {}"),
    "ttl": ("([1-9][0-9]{0,3}[dhms])+", "afterFinished: {}"),
    "errors": ("[1-9][0-9]?", "maxRows: {}"),
    "retry": ("[1-9][0-9]?", "maxAttempts: {}"),
    **dict.fromkeys(("replicas", "workers"), ("[1-9][0-9]{0,3}", "min: {0}, max: {0}")),
}
"""By field: the pattern of values that users write instead of a mapping, and its fields."""


def percent_fix(field: str, value: object) -> str:
    """Return the fix for a percentage in place of a number of rows; empty for other values."""
    percent = re.fullmatch(r"\s*([0-9]{1,2}(?:\.[0-9]{1,3})?) ?%\s*", _plain(value))
    other = {"rows": "percent", "maxRows": "maxPercent"}.get(field)
    return f". Write {other}: {percent[1]}" if percent and other and float(percent[1]) else ""


def list_fix(field: str, value: object) -> str:
    """Return the fix for a value in place of a list."""
    if field in _EXAMPLES and not (field == "paths" and isinstance(value, str)):
        return _filled(example_fix("Write", field), field, _plain(value))
    if not isinstance(value, str) or len(value) > MAX_ITEMS:
        return ". Write the items in brackets: [a, b]"
    items = [item.strip(" []") for item in value.split(",")]
    return f". Write [{', '.join(map(_in_brackets, items))}]"


def _in_brackets(text: str) -> str:
    import yaml  # imported here, because it takes memory and is rarely needed

    is_word = _PLAIN.fullmatch(text) and not isinstance(yaml.safe_load(text), bool | int | float)
    return text if is_word else repr(text)


def flag_fix(value: object) -> str:
    """Return the fix for a list, or for a word such as yes or off; empty for another value."""
    flag = _FLAGS.get(_plain(value).lower(), "true" if value and isinstance(value, list) else "")
    return f". Write {flag}" if flag else ""


def name_fix(value: object, sign: str) -> str:
    """Return the fix with a similar name of lower-case letters, digits and `sign`; empty if the
    value cannot become a name."""
    name = label_name(value, sign)
    is_digit = bool(re.match("[^A-Za-z]*[0-9]", _plain(value)))
    return f". {'Begin it with a letter: write' if is_digit else 'Write'} {name}" if name else ""


def label_name(value: object, sign: str = "-") -> str:
    """Return a value as a name of lower-case letters, digits and `sign`; empty if impossible."""
    text = _plain(value)
    if not re.fullmatch(r"[\w .@#%&*!/-]{1,40}", text, re.ASCII):
        return ""
    name = re.sub("[^a-z0-9]+", sign, text.lower()).strip(sign)
    if name and not name[0].isalpha():
        name = f"run{sign}{name}"
    return name if len(name) <= 40 else ""  # no job and no step has a longer name


def memory_fix(value: object) -> str:
    """Return the fix for a size of memory with a unit such as GB, or without a unit."""
    if isinstance(value, str):
        match = _MEMORY.fullmatch(value)
        return _quoted(f"{match[1]}{match[2].upper()}i") if match else ""
    number = _number_in(value) or 0
    if number >= 1024:
        return _quoted(f"{int(number) if number < 2**20 else int(number) >> 20}Mi")
    return _quoted(f"{number:g}Gi") if number >= 0.1 else ""


def duration_fix(value: object) -> str:
    """Return the fix for a duration in words, or for a number of seconds."""
    if isinstance(value, str):
        match = _DURATION.fullmatch(value)
        if match is None:
            return _compact_duration(value)
        unit = match[2][0].lower()
        part = float(match[1]) * _SECONDS[unit]
        return _quoted(in_units(part) if "." in match[1] else f"{match[1]}{unit}")
    fix = _quoted(in_units(value))
    if isinstance(value, int) and 60 <= value < 24 * 60:  # YAML reads 1:30 as 90
        fix += f', or "{in_units(value * 60)}" for {value // 60}:{value % 60:02}'
    return fix


def _compact_duration(text: str) -> str:
    """Return the fix for a duration in weeks, with spaces, in ISO 8601, or such as 01:30:00."""
    text = re.sub(r"(\d+):(\d+):(\d+)", r"\1h\2m\3s", text.lower())
    known = r"(\d{1,4})\s*([dhms]|w(?:eeks?)?)(?![a-su-z])"
    parts = ((int(number), unit) for number, unit in re.findall(known, text) if int(number))
    compact = "".join(f"{n * 7}d" if unit[0] == "w" else f"{n}{unit}" for n, unit in parts)
    ordered = re.fullmatch(r"(\d+d)?(\d+h)?(\d+m)?(\d+s)?", compact)
    has_months = re.match("p[^t]*m", text)
    known_only = re.fullmatch(r"[pt\s]*", re.sub(known, "", text))
    return _quoted(compact) if ordered and known_only and not has_months else ""


def in_units(value: object) -> str:
    """Return a positive number of seconds, rounded up, as a duration; empty for other values."""
    number = None if isinstance(value, str) else _number_in(value)
    minutes, seconds = divmod(max(0, math.ceil(number or 0)), 60)
    parts = ((minutes // 60, "h"), (minutes % 60, "m"), (seconds, "s"))
    return "".join(f"{number}{unit}" for number, unit in parts if number > 0)


def quantity_fix(value: object) -> str:
    """Return the fix for a number in another notation, such as 5 %, 1e3 or 1.2345."""
    text = re.sub("[ %]", "", _plain(value))
    if re.fullmatch("[0-9]{1,12}m", text):
        return f". Write {text}"
    try:
        number = round(float(text), 3)
    except ValueError:
        return ""
    if "%" in _plain(value):
        fix = f". Write {number:.15g}, or {number / 100:.15g} for a fraction"
        return fix if 0 < number <= 100 else ""
    return f". Write {number:.15g}" if 0 < number < _MAX_NUMBER else ""


def number_fix(value: object, *, integer: bool) -> str:
    """Return the fix for a text, boolean or fraction in place of a (whole) number."""
    number = None if integer and "%" in _plain(value) else _number_in(value)
    if integer and re.fullmatch(r"[0-9.]+ *[kKMGT]i?B", _plain(value)):
        return ". Write a number such as 100000, and not a size"
    if number is None or (integer and not number.is_integer()):
        return ". Write a whole number such as 2" if integer else ". Write a number such as 0.5"
    return f". Write {int(number) if number.is_integer() else number}"


def length_fix(length: int, bound: int, unit: str) -> str:
    """Return how many items or characters (`unit`) to add or remove to reach the length `bound`."""
    verb = "Add" if length < bound else "Remove"
    return f". {verb} {counted(abs(bound - length), unit)}"


def above_max(
    minimum: float | str, maximum: float | str, low: str = "min", high: str = "max"
) -> str:
    """Return the message about a minimum above a maximum. `low` and `high` name the fields."""
    fix = f"Set {high} to {minimum} or more, or {low} to {maximum} or less"
    return f"{low} ({minimum}) is above {high} ({maximum}). {fix}"


def _number_in(value: object) -> float | None:
    """Return a number, boolean or text such as `5 %` as a float; None for other or large values."""
    if isinstance(value, str):
        value = value.replace(",", "").replace("_", "")
        if re.fullmatch(r"[1-9](\.[0-9]+)?[eE]\+?[0-9]{1,2}", value):
            return float(value)
        match = _NUMBER.fullmatch(value)
        return float(match[1]) * _FACTORS.get(match[2], 1) if match else None
    if isinstance(value, int | float) and abs(value) < _MAX_NUMBER:  # false for NaN
        return float(value)
    return None


def _quoted(text: str) -> str:
    return f'. Write "{text}"' if text else ""


def constant_fix(value: object) -> str:
    """Return the fix for a constant in place of an expression; empty for NaN and infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return ""
    return _quoted(repr(str(value)) if isinstance(value, dt.date) else str(value))


def text_fix(value: object, field: str = "", *, is_item: bool = False) -> str:
    """Return the fix for a value in place of a text."""
    if field == "schedule":
        return '. Write five fields, such as "30 2 * * *"'
    if isinstance(value, bool):
        words = ("yes", "on", "true") if value else ("no", "off", "false")
        read = f"YAML reads {words[0]}, {words[1]} and {words[2]} as {words[2]}"
        quoted = f"'{words[0]}' or '{words[2]}'"
        return f": {read}. Write such words in small letters and in quotes, such as {quoted}"
    if isinstance(value, int | float) and field == "name":
        return ": YAML reads a text such as 7 or 1:30 as a number. Begin the name with a letter"
    if isinstance(value, int | float | dt.date):
        name = label_name(str(value).partition(" ")[0]) if field == "name" else ""
        return f". Write {name}" if name else ". Put it in quotes"
    if value is None and is_item:
        return ". Give it a value, or write 'null' in quotes for this text"
    if value is None:
        name, _, rest = field.partition(" ")
        return f". Write '{name}: {rest}'" if rest else ". Give it a value, or remove the field"
    if isinstance(value, list):
        texts = [item for item in value if isinstance(item, str)]
        if len(texts) == len(value) > 0 and (len(value) == 1 or field in ("filter", "when")):
            return f". Write {' and '.join(texts)}"
        return ". Write one text"
    return _callable_fix(value) if callable(value) else ""


def _callable_fix(value: object) -> str:
    """Return the fix for a Python function or class in place of its name."""
    module, name = getattr(value, "__module__", ""), getattr(value, "__qualname__", "")
    if not re.fullmatch(r"[\w.]+", name):
        return ". Put a function into a file such as steps.py, and write 'steps:NAME'"
    if module in (None, "", "__main__", "builtins"):
        return f". Put it into a file such as steps.py, and write 'steps:{name}'"
    return f". Write '{module}:{name}'"


def cron_fix(value: object) -> str:
    """Return the fix for a word such as @daily, for six fields with seconds, or for a time."""
    text = _plain(value).strip().lower().removeprefix("@")
    if every := re.fullmatch("every ([1-9][0-9]?) ?(h(?:(?:ou)?rs?)?|m(?:in(?:ute)?s?)?)", text):
        number, is_hours = int(every[1]), every[2][0] == "h"
        if (24 if is_hours else 60) % number == 0:  # */45 would pause for 45 and 15 minutes in turn
            return _quoted(f"0 */{number} * * *" if is_hours else f"*/{number} * * * *")
    if text in _CRON_WORDS:
        return _quoted(_CRON_WORDS[text])
    if time := re.fullmatch("([01]?[0-9]|2[0-3]):([0-5][0-9])", text):
        return _quoted(f"{int(time[2])} {int(time[1])} * * *")
    fields = _plain(value).replace("?", "*").split()
    if zone := re.fullmatch("(?:CRON_)?TZ=(.+)", fields[0]) if len(fields) == 6 else None:
        return f"{_quoted(' '.join(fields[1:]))}, and timeZone: {zone[1]}"
    with_seconds = len(fields) == 6 and fields[0] == "0"
    return _quoted(" ".join(fields[-5:])) if with_seconds or len(fields) == 5 else ""


_CRON_WORDS = {
    "hourly": "0 * * * *",
    **dict.fromkeys(("daily", "nightly", "midnight"), "0 0 * * *"),
    "weekly": "0 0 * * 0",
    "monthly": "0 0 1 * *",
    **dict.fromkeys(("yearly", "annually"), "0 0 1 1 *"),
}


def module_fix(value: object) -> str:
    """Return the fix for a callable whose module is a file, is missing, or has '-' in its name."""
    text = value.strip() if isinstance(value, str) else ""
    if text.startswith("lambda"):
        return ". Put a function into a file such as steps.py, and write steps:NAME"
    bare = re.sub(" *: *", ":", text)
    path, colon, name = bare.removeprefix("./").removesuffix("()").rpartition(":")
    if not colon and re.fullmatch(r"\w+(/\w+)*\.py", name):
        return f". Write {name.removesuffix('.py').replace('/', '.')}:NAME"
    if not colon and re.fullmatch(r"\w+(\.\w+)*", name):
        path, _, name = name.rpartition(".")
        return f". Write {path or 'steps'}:{name}" + ("" if path else ", if steps.py defines it")
    path = path.removesuffix(".py").replace("/", ".")
    if text != f"{path}:{name}" and re.fullmatch(r"\w+(\.\w+)*", path) and name.isidentifier():
        return f". Write {path}:{name}"
    if not _MODULE_WITH_DASH.fullmatch(text):
        return ""
    return f". A module cannot have '-' in its name. Rename it, and write {text.replace('-', '_')}"
