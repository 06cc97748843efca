"""A document with nearly every field, and variations of documents in one place."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from support.documents.yaml_files import read_yaml

Document = dict[str, Any]
Place = tuple[str | int, ...]
"""Keys and indexes that lead to a value."""

REMOVED = Enum("Removed", ["REMOVED"]).REMOVED
"""Used instead of a value to remove the field."""


def full_document(name: str = "full") -> Document:
    """Return a copy of full_document.yaml with this name."""
    full = copy.deepcopy(_full())
    full["metadata"]["name"] = name
    return full


@cache
def _full() -> Document:
    return read_yaml(Path(__file__).with_name("full_document.yaml"))


def places(value: Any, place: Place = ()) -> Iterator[Place]:
    """Yield every place below a value."""
    below = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in below:
        yield (*place, key)
        if isinstance(child, dict | list):
            yield from places(child, (*place, key))


def at(value: Any, place: Place) -> Any:
    for key in place:
        value = value[key]
    return value


def changed(original: Document, place: Place, value: Any) -> Document:
    """Return a copy of the document with another value in one place, which may be new."""
    result = copy.deepcopy(original)
    parent = at(result, place[:-1])
    if value is REMOVED:
        del parent[place[-1]]
    elif isinstance(parent, list) and place[-1] == len(parent):
        parent.append(value)
    else:
        parent[place[-1]] = value
    return result


def named(place: Place) -> str:
    """Return the path of a place, as in messages of the API server and the parser."""
    parts = (f"[{key}]" if isinstance(key, int) else f".{key}" for key in place)
    return "".join(parts).removeprefix(".")


def place_of(name: str) -> Place:
    """Return the place that a path such as `spec.steps.0.name` names."""
    return tuple(int(key) if key.isdigit() else key for key in name.split("."))
