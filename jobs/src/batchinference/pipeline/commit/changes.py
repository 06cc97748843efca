"""How the code, the models and the spec of a job differ from those with which its output was begun.

The hashes of the code and of the models are in `code.json`, and the spec is in `spec.json`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

from pydantic import TypeAdapter

from batchinference.pipeline.commit.layout import work_of
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.state_json import (
    START_OVER,
    dump_checksummed,
    load_json,
    verify_checksum,
)

_CODE = TypeAdapter(dict[str, str])
MAX_CHANGES, MAX_VALUE = 3, 120
"""How many changes a message has, and how many characters of each value."""
_UNSET = object()


def write_code(place: Location, code: Mapping[str, str]) -> None:
    """Store the hashes of the code and of the models with which an output is begun."""
    place.write(dump_checksummed({"code": dict(code)}))


def parse_code(content: bytes) -> dict[str, str]:
    """Return stored hashes. Raises ValueError if they are damaged."""
    verify_checksum(content)
    try:
        return _CODE.validate_python(load_json(content)["code"], strict=True)
    except (KeyError, TypeError) as error:
        raise ValueError("it holds no hashes") from error


def changed_code(place: Location, code: Mapping[str, str]) -> str:
    """Return a message if the stored hashes differ from `code`; empty if they do not. Raises
    BadOutput if they are damaged."""
    try:
        stored = parse_code(place.read())
    except FileNotFoundError:  # the run died before it stored them
        return ""
    except ValueError:
        raise BadOutput(
            f"'{place.uri}' is damaged, so it is unknown whether the code has changed. Remove the "
            f"file to continue with the current code, or {START_OVER}"
        ) from None
    names = [name for name in stored | dict(code) if stored.get(name) != code.get(name)]
    if not names:
        return ""
    before, now = (hashes.get(names[0], "none")[:8] for hashes in (stored, code))
    more = f", and so did {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]} changed since the output was begun (from {before} to {now}){more}"


def changed_spec(place: Location, work: Mapping[str, Any]) -> str:
    """Return the fields in which the stored spec differs from this work, with both values, as text.
    Values of arguments of user code are not stored, and not shown. Empty if nothing is known."""
    from batchinference.spec.job import BatchInferenceSpec
    from batchinference.spec.secrets import without_arguments

    try:
        before = work_of(BatchInferenceSpec.model_validate(load_json(place.read())))
    except (ValueError, OSError):  # another version may have stored it
        return ""
    now = without_arguments(work)
    changes = list(_changes(without_arguments(before), now, ""))
    if not changes:
        return "" if now == work else "the arguments of its code may differ"
    more = len(changes) - MAX_CHANGES
    return "; ".join(changes[:MAX_CHANGES]) + (f"; and {more} more" if more > 0 else "")


def _changes(before: Any, now: Any, path: str) -> Iterator[str]:
    """Yield a text for each field that differs."""
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
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]}..."
