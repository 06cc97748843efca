"""Converts validation errors of pydantic into problems with messages for the author of a document.

The message about an unknown field or value suggests a known one with a similar name or meaning.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_camel, to_snake
from pydantic_core import ErrorDetails

from batchinference.spec import base, unknown_names, value_fixes
from batchinference.spec.address_credentials import HIDDEN
from batchinference.spec.cron import zone_like
from batchinference.spec.databases import DATABASE_URL, TABLE_NAME
from batchinference.spec.durations import EXPECTED as A_DURATION
from batchinference.spec.durations import PATTERN as DURATION
from batchinference.spec.media import COLOUR
from batchinference.spec.problems import (
    MAX_PROBLEMS,
    MAX_SHOWN,
    Problem,
    closest,
    path_of,
    shortened,
    type_name,
)
from batchinference.spec.quantities import EXPECTED as A_QUANTITY
from batchinference.spec.uri_fields import HTTP_PREFIX, URI_PREFIX
from batchinference.spec.write.tables import COLLECTION, INDEX

MAX_LISTED = 17
"""Maximum number of known names that a message with a suggestion also lists."""
_MIN_SIMILARITY = 0.7
"""Minimum similarity of a field and a suggestion. `gpu` and `cpu` are less similar than this."""
PATTERNS = {
    base.MEMORY: A_QUANTITY,
    base.MONEY: "an amount of money such as 3.90, with at most nine decimal places",
    base.DNS_LABEL: "lower-case letters, digits and '-', beginning with a letter",
    DURATION: A_DURATION,
    base.CRON: "five fields of a crontab such as 30 2 * * MON-FRI",
    base.TIME_ZONE: "a time zone of the IANA database such as Europe/Berlin",
    base.PARAMETER_NAME: "lower-case letters, digits and '_', beginning with a letter",
    base.MODULE_PATH: "a callable written as module:name",
    base.ENV_NAME: "letters, digits, '_', '-' and '.', not beginning with a digit",
    base.DIRECTORY: "an absolute path without '.', '..' and ':'",
    base.RELATIVE_PATH: "a relative path without '.', '..' and ':'",
    base.DNS_SUBDOMAIN: "a Kubernetes name: lower-case letters, digits, '-' and '.'",
    base.DATA_KEY: "letters, digits, '-', '_' and '.'",
    base.LABEL_KEY: base.A_LABEL_KEY,
    base.TAINT_KEY: base.A_LABEL_KEY.replace("label", "taint"),
    base.CONTROLLER: "a controller such as batchinference.dev/operator",
    base.LABEL_VALUE: "letters, digits, '-', '_' and '.', a letter or digit at both ends",
    base.ACCELERATOR: "letters, digits, '-', '_' and '.', a letter or digit at both ends",
    base.KUBERNETES_RESOURCE: "the resource of a device plugin, such as nvidia.com/gpu",
    base.DEVICE_KIND: "a PyTorch device type, such as cuda or npu",
    base.START_VALUE: "letters, digits and _ . / : , = @ % + -",
    base.DELIMITER: "one ASCII character or a tab",
    base.WRITTEN_DELIMITER: "a tab, or punctuation that is not in numbers or dates",
    base.PUNCTUATION: "one ASCII character that is not a letter, digit or space, or an empty text",
    COLOUR: "a colour: black, gray, white, or one such as '#ff8000'",
    DATABASE_URL: "a SQLAlchemy URL such as sqlite:////data/x.db",
    TABLE_NAME: "the name of a table, or namespace.table",
    COLLECTION: "the name of a collection",
    INDEX: "the name of an index: small letters, digits, '-', '_' and '.'",
    base.HTTP_URL: "an address that begins with http:// or https://",
    base.WEBHOOK_PREFIX: "a URL with a valid port that ends with a slash, such as "
    "https://hooks.example.com/services/",
    base.VARIABLE: "the name of an environment variable in capitals, such as OPENAI_API_KEY",
    base.IMAGE_PREFIX: "a registry or a repository with a slash, such as registry.example/",
    URI_PREFIX: "the beginning of an address such as s3://bucket/, or of an absolute path",
    HTTP_PREFIX: "the beginning of an address such as https://example.com/",
    base.WEIGHTS: "a name in capitals, such as IMAGENET1K_V1",
    base.SQL_NAME: "an SQL name: letters, digits, '_' and '.'",
    base.ENDPOINT: "an http:// or https:// address without user and password",
}
"""The description of the expected value, by the pattern of a field."""
_PATTERN_FIXES: dict[str, Callable[[object], str]] = {
    base.CRON: value_fixes.cron_fix,
    base.MEMORY: value_fixes.memory_fix,
    DURATION: value_fixes.duration_fix,
    base.MODULE_PATH: value_fixes.module_fix,
    base.DELIMITER: lambda text: "" if str(text).strip() else ". Write delimiter: '|', in quotes",
    base.DNS_LABEL: partial(value_fixes.name_fix, sign="-"),
    base.PARAMETER_NAME: partial(value_fixes.name_fix, sign="_"),
    base.TIME_ZONE: lambda name: f". Write {zone}" if (zone := zone_like(str(name))) else "",
}
_ACCELERATOR = ". Write gpu: 1, and acceleratorType: {}"
_FIX = re.compile(
    r"\. (?:Add|Begin|Choose|Compare|Download|Give|Leave|Mount|Put|Remove|Rename|Request|Set|Store|"
    "Use|Write) "
)
"""Matches the beginning of a fix. The fix in a message begins at the last match."""
MAX_FIX = 500
"""Maximum number of characters of a fix."""
_KEY_MARK = "[key]"
"""The last part of pydantic's location of an error about a key of a mapping."""
_OR_TRUE = "literal[True]"
"""A part of pydantic's location of an error about a list that may also be true."""
_EXPECTED = {
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), "a mapping"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing", "finite_number"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    "string_type": "a text",
    "string_unicode": "a text of valid Unicode",
    "list_type": "a list",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "string_too_short": "at least {min_length} characters",
    "string_too_long": "at most {max_length} characters",
    "too_short": "at least {min_length} items",
    "too_long": "at most {max_length} items",
    "string_pattern_mismatch": "a text that matches '{pattern}'",
}
"""The description of the expected value, by the type of the pydantic error."""
_BOUND_FIXES = {
    "greater_than_equal": ". Write {ge} or more",
    "less_than_equal": ". Write {le} or less",
}
_SIGNS = {**dict.fromkeys(("tab", r"\t"), r"\t"), "comma": ",", "semicolon": ";", "pipe": "|"}
"""Words that users write for delimiters, and the delimiters as YAML has them."""
_UNITS = {"too_long": "item", "too_short": "item", "string_too_long": "character"}
"""What is counted, by the type of the pydantic error about a length."""
_NO_SHUFFLE_OF_ROWS = (
    ": a shuffle of rows would need all rows in memory at once. Write shuffle: files"
)
_NO_PART_OF_A_GPU = (
    ": a process gets whole GPUs, because models that share one can use up its memory. Write 1, or "
    "increase batchSize to use the GPU better"
)
_SECRET_PARTS = {
    *("env", "storage", "constructorArgs", "callArgs", "factoryArgs"),
    *("url", "urlEnv", "catalog", "apiKeyEnv", "headersFrom", "body", "sampling", "engine"),
}
"""Fields that may contain passwords. Messages do not show their values."""


def problems_of(error: ValidationError, model: type[BaseModel]) -> Iterator[Problem]:
    """Yield the problems of a document that pydantic has validated as `model`, without repetitions
    and consequences of other problems."""
    errors = [one for one in error.errors(include_url=False) if _OR_TRUE not in one["loc"]]
    unknown = (at for at, details in enumerate(errors) if details["type"] == "extra_forbidden")
    described = {at: _problem(errors[at], model) for at in islice(unknown, MAX_PROBLEMS)}
    for at, problem in described.items():
        is_unknown = problem.message.startswith("unknown field")
        is_of_pods = _is_pod_template(errors[at]["input"])
        if problem.path in unknown_names.OF_OTHER_KINDS and is_unknown and not is_of_pods:
            yield Problem(*unknown_names.OF_OTHER_KINDS[problem.path])
            return
    repeated = _repetitions(errors)
    meant = {_meant_path(each) for at, each in described.items() if at not in repeated}
    for at, details in enumerate(errors):
        problem = described.get(at) or _problem(details, model)
        if at not in repeated and (details["type"] != "missing" or problem.path not in meant):
            yield problem


def _is_pod_template(value: object) -> bool:
    """Return whether a value is the template of a pod, as in a Job of Kubernetes."""
    spec = value.get("spec") if isinstance(value, dict) else None
    return isinstance(spec, dict) and "containers" in spec


def _repetitions(errors: Sequence[ErrorDetails]) -> set[int]:
    """Return the indexes of errors that repeat another error. An earlier item of a list has the
    same problem, or ` b)` is a part of a call such as `{a: f(x, b)}`."""
    known: set[tuple[object, ...]] = set()
    repeated, rests = set(), set()
    for at, details in enumerate(errors):
        loc, kind = details["loc"], details["type"]
        if details["input"] is None and str(loc[-1:]).endswith(")',)"):
            rests.add(at)
        if loc and isinstance(loc[-1], int) and kind.endswith("_type"):
            key = (*loc[:-1], kind, type(details["input"]))
            repeated |= {at} if key in known else set()
            known.add(key)
    others = {each["loc"][:-1] for at, each in enumerate(errors) if at not in repeated | rests}
    return repeated | {at for at in rests if errors[at]["loc"][:-1] in others}


def _meant_path(problem: Problem) -> str | None:
    """Return the path of the suggested field in a message about an unknown field, if any."""
    meant = re.match(r"unknown field(?:; did you mean '(\w+)'|\. Write (\w+):)", problem.message)
    return f"{problem.path.rpartition('.')[0]}.{meant[1] or meant[2]}" if meant else None


def _problem(details: ErrorDetails, model: type[BaseModel]) -> Problem:
    location, owners = _resolve(details["loc"], model)
    kind = details["type"]
    if kind.startswith("union_tag"):
        location.append(details["ctx"]["discriminator"].strip("'"))
    is_webhook = location[:2] == ["spec", "notifications"] and "://" in str(details["input"])
    secret = kind == HIDDEN or is_webhook or not _SECRET_PARTS.isdisjoint(location)
    value = _Value(details["input"], secret)
    if kind == "invalid_key" or (location[-1:] != [_KEY_MARK] == list(details["loc"][-1:])):
        location[-1] = str(details["input"])  # pydantic turns true into 1
        message = f"as a key: {_message(details, value)}"
    elif kind == "extra_forbidden":
        message = _unknown_field(details["loc"], location, owners, details["input"])
    elif kind == "union_tag_invalid":
        message = _not_one_of(value.child(location[-1]), location, details["ctx"]["expected_tags"])
    elif location == ["apiVersion"] and str(details["input"]).endswith("/v1alpha1"):
        new = details["ctx"]["expected"].strip("'")
        message = f"{value} is an older version. Use {new}, and convert the file: docs/upgrades.md"
    elif kind in ("literal_error", "enum"):
        message = _not_one_of(value, location, details["ctx"]["expected"])
        message += _of_other_variants(location, owners, value.value)
        if (location[-1], details["input"]) == ("shuffle", "rows"):
            message += _NO_SHUFFLE_OF_ROWS
    else:
        names = [word for word in location if isinstance(word, str)]
        message = _message(details, value, value_fixes.name_of_example(names))
    return Problem(path_of(location), message)


def _unknown_field(
    loc: tuple[str | int, ...],
    location: list[str | int],
    owners: list[type[BaseModel] | None],
    value: object,
) -> str:
    """Return the message about an unknown field."""
    parent = owners[-1]
    if text := _of_another_version(location, parent, value):
        return text
    if value is True and (field := _field_with(parent, loc[-1])):
        return f"unknown field; did you mean '{field}: {loc[-1]}'?"
    known = [*_fields(parent)]
    near = _suggestion(loc[-1], known)
    if loc[-2:-1] == ("options",):
        *_, format_, _, option = loc  # read, its format, options, the unknown option
        return f"unknown option '{option}' for {format_}{near}"
    other_word = unknown_names.meant_by(str(loc[-1]), known)
    for count in range(len(location) - 2, 0, -1) if not other_word else ():
        if loc[-1] in _fields(owners[count]) and loc[-1] != location[count]:
            return f"unknown field; it is a field of {path_of(location[:count])}. Move it there"
    inner = _field_below(parent, str(loc[-1]))
    if near.startswith(";") and (other_word or not inner or f"{{{loc[-1]}:" not in inner):
        written = _with_value(near.split("'")[1], parent, value)
        return f"unknown field. {written}" if written else f"unknown field{near}"
    if inner:
        inner = inner.replace("gpu: ...", "gpu: 1") if value in ("cuda", "gpu", True) else inner
        return f"unknown field; did you mean '{inner}'?"
    around = unknown_names.meant_by(str(loc[-1]), _fields((None, *owners)[-2]))
    near = f"; did you mean '{around}' of {path_of(location[:-2])}?" if around else near
    return _field_of_another_variant(loc, location, owners) or f"unknown field{near}"


def _with_value(name: str, model: type[BaseModel] | None, value: object) -> str:
    """Return the fix for an unknown field that means `name`; empty if only the name changes."""
    kind = _fields(model).get(name)
    if name == "callable" and ":" not in str(value):
        return (
            value_fixes.module_fix(value).removeprefix(". ").replace("Write ", "Write callable: ")
        )
    is_list = typing.get_origin(kind) is list and not _is_model(_plain(typing.get_args(kind)[0]))
    if isinstance(value, str) and is_list and len(value) <= MAX_SHOWN:
        return f"Write {name}: {value_fixes.list_fix('', value).removeprefix('. Write ')}"
    match value:
        case [str(text)] if kind is str:
            return f"Write {name}: {text}"
    return ""


def _of_another_version(
    location: list[str | int], parent: type[BaseModel] | None, value: object
) -> str:
    """Return the message about a field of v1alpha1 or of another tool; empty for other fields."""
    name = _last_names(location)
    if new := _new_name(location, parent, value):
        return f"was renamed. Use {new}"
    if new := unknown_names.REMOVED.get(name):
        return f"was removed. Use {new}"
    if name in unknown_names.METHODS:
        path = value.get("callable", value.get("function")) if isinstance(value, dict) else value
        known = isinstance(path, str) and re.fullmatch(base.MODULE_PATH, path)
        fields = (
            f"callable: '{path if known else 'steps:NAME'}', method: {unknown_names.METHODS[name]}"
        )
        return f"unknown field. Write python: {{{fields}}}"
    fix = unknown_names.UNSUPPORTED.get(to_snake(name))
    if str(location[-1]).startswith("x-"):
        fix = "Write an anchor where it is first used, as in resources: &small {cpu: 2}"
    return f"unknown field. {fix}" if fix else ""


def _new_name(
    location: list[str | int], parent: type[BaseModel] | None, value: object
) -> str | None:
    """Return the new name of a field that was renamed after v1alpha1; None for other fields."""
    name = to_camel(str(location[-1]))
    if location[-2:-1] == ["options"] and name != location[-1] and name in _fields(parent):
        return name
    new = unknown_names.RENAMED.get(_last_names(location))
    duration = value_fixes.in_units(value) if name.endswith("Seconds") else ""
    return f"{new}: {duration}" if new and duration else new


def _last_names(location: list[str | int]) -> str:
    """Return the names of the outer field and of the field itself, such as `limits.gpu`."""
    return ".".join([word for word in location if isinstance(word, str)][-2:])


def _field_with(model: object, value: str | int) -> str | None:
    """Return the field of a model that allows `value` as one of several values, if any."""
    named = ((name, typing.get_args(kind)) for name, kind in _fields(model).items())
    return next((name for name, known in named if len(known) > 1 and value in known), None)


def _field_below(parent: object, name: str) -> str | None:
    """Return how to write a field of this name or meaning one level below `parent`, such as
    `resources: {gpu: ...}`. None if no field or several fields of `parent` have such a field."""
    fields = {
        f"{key}: {{{inner}: ...}}"
        for key, kind in _fields(parent).items()
        if (inner := name if name in _fields(kind) else unknown_names.meant_by(name, _fields(kind)))
    }
    return fields.pop() if len(fields) == 1 else None


def _field_of_another_variant(
    loc: tuple[str | int, ...], location: list[str | int], owners: list[type[BaseModel] | None]
) -> str:
    """Return the message about a field of another variant, such as a runtime, or no text."""
    for tag, kind in _fields(owners[-1]).items() if len(location) > 1 else ():
        variants = _variants_around(location, owners)
        if loc[-2] in typing.get_args(kind) and (
            names := [typing.get_args(each[tag])[0] for each in variants if loc[-1] in each]
        ):
            where = f"it is a field of {tag} {' and '.join(names)}, not of {loc[-2]}"
            return f"unknown field; {where}. Remove it, or change {tag}"
    return ""


def _of_other_variants(
    location: list[str | int], owners: list[type[BaseModel] | None], value: object
) -> str:
    """Return the end of a message about a value that other formats allow; empty if none does."""
    names = [
        str(typing.get_args(fields["format"])[0])
        for fields in _variants_around(location, owners)
        if "format" in fields and value in typing.get_args(fields.get(str(location[-1])))
    ]
    return f". It is for the format {', '.join(names)}" if names else ""


def _variants_around(
    location: list[str | int], owners: list[type[BaseModel] | None]
) -> list[dict[str, Any]]:
    """Return the fields of each variant of the tagged union around the location of an error."""
    parent = _fields(owners[-2]) if len(owners) > 1 else {}
    return [_fields(each) for each in _variants(parent.get(str(location[-2:][0])))]


def _message(details: ErrorDetails, value: _Value, field: str = "") -> str:
    """Return the message about an invalid or missing value of a field."""
    kind, context = details["type"], details.get("ctx", {})
    if kind in ("missing", "union_tag_not_found"):
        return f"required, but missing{value_fixes.example_fix('Add', field)}"
    if expected := PATTERNS.get(context.get("pattern", "")) or _EXPECTED.get(kind):
        actual = len(details["input"]) if kind in _UNITS else value
        got = f"{actual}{_if_short(_fix(details, value, field))}"
        return f"expected {_with_numbers(expected, context)}, got {got}"
    if value.nested and not kind.endswith("_type"):
        return details["msg"]
    fix = list(_FIX.finditer(details["msg"]))[-1:]
    end = fix[0].start() if fix else len(details["msg"])
    other = _ACCELERATOR.format(value.value) if _is_gpu_name(field, value.value) else ""
    written = details["msg"][end:]
    if both := re.fullmatch(r"\. Write (.+), or (.+) for a fraction", written):
        written = f". Write {both[1 if field.lower().endswith('percent') else 2]}"
    return f"{details['msg'][:end]}, got {value}{_if_short(written)}{other}"


def _if_short(fix: str) -> str:
    """Return a fix; empty if it is long, because it then repeats a long text of the document."""
    return fix if len(fix) <= MAX_FIX else ""


def _is_gpu_name(field: str, value: object) -> bool:
    """Return whether the value of `gpu` is the name of a GPU model instead of a number."""
    is_model = isinstance(value, str) and re.fullmatch("[A-Za-z]+[0-9]+", value)
    return field == "gpu" and bool(is_model)


def _with_numbers(expected: str, context: dict[str, Any]) -> str:
    """Return a text with numbers for placeholders: 5 for 5.0, and `1 item` for `1 items`."""
    numbers = {
        key: int(value) if isinstance(value, float) and value.is_integer() else value
        for key, value in context.items()
    }
    return re.sub(r"\b1 (item|character)s", r"1 \1", expected.format(**numbers))


def _fix(details: ErrorDetails, value: _Value, field: str) -> str:
    """Return the fix for an invalid value; empty if the expected value says enough."""
    kind, context = details["type"], details.get("ctx", {})
    known = None if value.secret else value.value
    is_item = isinstance((None, *details["loc"])[-1], int)
    match _EXPECTED.get(kind):
        case "a text" if value.secret and value.value is not None:
            return "" if value.nested else ". Put it in quotes"
        case "a text":
            is_constant = details["loc"][-2:-1] == ("addColumns",) and not value.nested
            text = value_fixes.text_fix(value.value, field, is_item=is_item)
            return value_fixes.constant_fix(value.value) if is_constant else text
        case "a list":
            return value_fixes.list_fix(field, known) or _null_fix(value)
        case "a mapping":
            return value_fixes.mapping_fix(field, known, is_item=is_item) or _null_fix(value)
        case "a whole number" if field == "gpu" and isinstance(known, float):
            return _NO_PART_OF_A_GPU
        case "a number" | "a whole number" as expected:
            return value_fixes.percent_fix(field, known) or value_fixes.number_fix(
                known, integer=expected == "a whole number"
            )
    if kind in _UNITS:
        is_sign = kind == "string_too_long" and context["max_length"] == 1
        fix = _length_fix(kind, context, len(details["input"]), field)
        return _sign_fix(field, known) if is_sign else fix
    if kind.startswith("bool"):
        return value_fixes.flag_fix(known)
    pattern = context.get("pattern", "")
    return (
        _pattern_fix(pattern, value, known)
        or _empty_fix(value, "" if is_item or pattern == base.PARAMETER_NAME else field)
        or _with_numbers(_BOUND_FIXES.get(kind, ""), context)
    )


def _empty_fix(value: _Value, field: str) -> str:
    """Return the fix for an empty text; empty for other values."""
    if value.value != "":
        return ""
    return value_fixes.example_fix("Write", field) or ". Give it a value"


def _null_fix(value: _Value) -> str:
    """Return the fix for a field that YAML reads as null; empty for other values."""
    return ". Give it a value, or remove the field" if value.value is None else ""


def _pattern_fix(pattern: str, value: _Value, known: object) -> str:
    """Return the fix for a text that does not match a pattern; empty if there is none."""
    if pattern == DATABASE_URL and str(value.value).startswith("jdbc:"):
        return ". Leave out 'jdbc:'"
    return _PATTERN_FIXES[pattern](known) if pattern in _PATTERN_FIXES else ""


def _sign_fix(field: str, value: object) -> str:
    """Return the fix for a word in place of a delimiter, such as `tab`; empty for other values."""
    sign = _SIGNS.get(str(value).strip().lower()) if field == "delimiter" else None
    return f'. Write "{sign}"' if sign else ""


def _length_fix(kind: str, context: dict[str, Any], length: int, field: str) -> str:
    """Return the fix for a text or a list that is too short or too long."""
    example = "" if length else value_fixes.example_fix("Write", field)
    bound = context["min_length" if kind == "too_short" else "max_length"]
    return example or value_fixes.length_fix(length, bound, _UNITS[kind])


@dataclass(frozen=True)
class _Value:
    """A value of the document, formatted for a message."""

    value: Any
    secret: bool

    @property
    def nested(self) -> bool:
        return isinstance(self.value, dict | list)

    def child(self, field: str | int) -> _Value:
        return _Value(self.value.get(field), self.secret)

    def __str__(self) -> str:
        if self.nested:
            return type_name(self.value)
        if self.secret:
            return f"{type_name(self.value)} (not shown)"
        if isinstance(self.value, dt.date):
            return self.value.isoformat()
        if self.value is None or isinstance(self.value, bool):
            return json.dumps(self.value)  # null, true or false, as in YAML
        return shortened(repr(self.value))


def _not_one_of(value: _Value, location: list[str | int], expected: str) -> str:
    known = re.findall(r"'([^']*)'", expected)
    if new := unknown_names.REMOVED.get(f"{location[-1]}.{value.value}"):
        return f"{value} was removed. Use {new}"
    if isinstance(value.value, str) and (fix := unknown_names.UNSUPPORTED.get(value.value.lower())):
        return f"{value} is not supported. {fix}"
    near = "" if value.nested else _suggestion(value.value, known, listed=True)
    if len(known) == 1 and value.value is True:
        near = f". Write {known[0]}"
    if near and len(known) > MAX_LISTED:
        return f"{value} is unknown{near}"
    return f"{value} is not one of {', '.join(known)}" + near


def _resolve(
    loc: tuple[str | int, ...], model: type[BaseModel]
) -> tuple[list[str | int], list[type[BaseModel] | None]]:
    """Return the location of an error in the document, and the model that has each part of it as a
    field. The model is None for keys and indexes.

    Tags of unions and the mark for invalid keys are removed from pydantic's location `loc`. Numbers
    in the result are indexes of lists.
    """
    location: list[str | int] = []
    owners: list[type[BaseModel] | None] = []
    current: Any = model
    for word in loc:
        if variant := _variant(current, word):
            current = variant
            continue
        origin = typing.get_origin(current)
        if _is_union(current) and str(word).startswith("list["):
            members = map(_plain, typing.get_args(current))
            current = next(each for each in members if typing.get_origin(each) is list)
            continue
        if word == _KEY_MARK and origin is not dict and not _is_model(current):
            continue
        location.append(word if origin is list else str(word))
        owners.append(current if _is_model(current) else None)
        if _is_model(current):
            current = _fields(current).get(str(word))
        else:
            current = _plain((None, *typing.get_args(current))[-1])  # the type of items or values
    return location, owners


def _fields(kind: object) -> dict[str, Any]:
    """Return the types of the fields of a model, by their names in YAML; empty for other types."""
    if not _is_model(kind):
        return {}
    fields = typing.cast(type[BaseModel], kind).model_fields
    return {field.alias or name: _plain(field.annotation) for name, field in fields.items()}


def _plain(annotation: Any) -> Any:
    """Return a type without annotations and without `| None`."""
    if typing.get_origin(annotation) is typing.Annotated:
        return _plain(typing.get_args(annotation)[0])
    if _is_union(annotation):
        types_ = [each for each in typing.get_args(annotation) if each is not type(None)]
        return _plain(types_[0]) if len(types_) == 1 else annotation
    return annotation


def _variants(union: object) -> list[type[BaseModel]]:
    """Return the models of a union; none for another type."""
    types_ = typing.get_args(union) if _is_union(union) else ()
    return [each for each in map(_plain, types_) if _is_model(each)]


def _variant(union: object, tag: str | int) -> type[BaseModel] | None:
    """Return the model with this tag in a tagged union; None if there is none."""
    for each in _variants(union):
        if any(typing.get_args(field.annotation) == (tag,) for field in each.model_fields.values()):
            return each
    return None


def _is_union(annotation: object) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _is_model(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _suggestion(word: object, known: list[str], *, listed: bool = False) -> str:
    by_lower_case = {name.lower(): name for name in known}
    lower_case = str(word).lower()
    nearest = closest(lower_case, by_lower_case.keys(), _MIN_SIMILARITY)
    meant = unknown_names.meant_by(lower_case, known) or (
        by_lower_case[nearest] if nearest else None
    )
    if meant:
        return f"; did you mean '{meant}'?"
    return f". Use one of {', '.join(known)}" if known and not listed else ""
