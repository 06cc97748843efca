"""Names the fields in which a job differs from the job that began an output."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

from batchinference.pipeline.commit.layout import work_of
from batchinference.pipeline.storage.json import load_json
from batchinference.pipeline.storage.location import Location

MAX_CHANGES, MAX_VALUE = 3, 120
"""How many changes a message has, and how many characters of each value."""
_UNSET = object()


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
