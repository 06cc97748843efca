"""Describes how a job's code, models and spec have changed since its output was begun.

`code.json` stores the hashes of the code and of the models, and `spec.json` the spec."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

from pydantic import TypeAdapter

from batchinference.pipeline.commit.output_paths import work_of
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.state_json import (
    START_OVER,
    dump_checksummed,
    load_json,
    verify_checksum,
)
from batchinference.text import cut

_CODE = TypeAdapter(dict[str, str])
MAX_CHANGES, MAX_VALUE = 3, 120
"""Maximum number of changes in a message, and of characters of each value."""
_UNSET = object()


def serialized_code(code: Mapping[str, str]) -> bytes:
    """Return the content of `code.json` for the hashes of a job's code and models."""
    return dump_checksummed({"code": dict(code)})


def parse_code(content: bytes) -> dict[str, str]:
    """Return the hashes in the content of `code.json`. Raises ValueError if it is damaged."""
    verify_checksum(content)
    try:
        return _CODE.validate_python(load_json(content)["code"], strict=True)
    except (KeyError, TypeError) as error:
        raise ValueError("it holds no hashes") from error


def describe_code_change(file: Location, code: Mapping[str, str]) -> str:
    """Return, as text, the first hash that differs between `file` and `code`, and the number of the
    others. Empty without a difference or a file. Raises BadOutput if the file is damaged."""
    try:
        stored = parse_code(file.read())
    except FileNotFoundError:  # the run died before it stored hashes
        return ""
    except ValueError:
        raise BadOutput(
            f"'{file.uri}' is damaged, so it is unknown whether the code has changed. Remove the "
            f"file to continue with the current code, or {START_OVER}"
        ) from None
    names = [name for name in stored | dict(code) if stored.get(name) != code.get(name)]
    if not names:
        return ""
    before, now = (hashes.get(names[0], "none")[:8] for hashes in (stored, code))
    more = f", and so did {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]} changed since the output was begun (from {before} to {now}){more}"


def describe_spec_change(file: Location, work: Mapping[str, Any]) -> str:
    """Return, as text, how the work of the spec in `file` differs from `work`, which `work_of` has
    returned. The text names up to MAX_CHANGES fields, but never the arguments of user code, which
    may be secret. Empty if `file` is unreadable or there is no difference."""
    from batchinference.spec.job import BatchInferenceSpec
    from batchinference.spec.secrets import without_arguments

    try:
        before = work_of(BatchInferenceSpec.model_validate(load_json(file.read())))
    except (ValueError, OSError):  # a later version may have written the file
        return ""
    now = without_arguments(work)
    changes = list(_changes(without_arguments(before), now, ""))
    if not changes:
        return "" if now == work else "the arguments of its code may differ"
    more = len(changes) - MAX_CHANGES
    return "; ".join(changes[:MAX_CHANGES]) + (f"; and {more} more" if more > 0 else "")


def _changes(before: Any, now: Any, path: str) -> Iterator[str]:
    """Yield a text for each field below `path` that differs."""
    if before == now:
        return
    if isinstance(before, dict) and isinstance(now, dict):
        for name in before | now:
            below = f"{path}.{name}".lstrip(".")
            yield from _changes(before.get(name, _UNSET), now.get(name, _UNSET), below)
    elif _has_fields(before) and _has_fields(now):
        for number, pair in enumerate(zip_longest(before, now, fillvalue=_UNSET)):
            yield from _changes(*pair, f"{path}[{number}]")
    else:
        yield f"{path} was {_shown(before)}, is {_shown(now)}"


def _has_fields(value: Any) -> bool:
    """Return whether a value is a list of mappings, such as `steps`."""
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _shown(value: Any) -> str:
    if value is _UNSET or value is None:
        return "not set"
    return cut(json.dumps(value, ensure_ascii=False), MAX_VALUE)
