"""A document that uses nearly every field, and documents that differ from another in one place."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

Document = dict[str, Any]
Place = tuple[str | int, ...]
"""Keys and indexes that lead to a value."""

REMOVED = object()
"""Instead of a value: the field is taken away."""


def full_document(name: str = "full") -> Document:
    """full_document.yaml under a name, for the caller to change."""
    full = copy.deepcopy(_full())
    full["metadata"]["name"] = name
    return full


@cache
def _full() -> Document:
    text = Path(__file__).with_name("full_document.yaml").read_text()
    full: Document = yaml.safe_load(text)
    return full


def places(value: Any, place: Place = ()) -> Iterator[Place]:
    """Every place below a value."""
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
    """The document with another value in one place, which need not be there yet."""
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
    """The place as it stands in messages of the API server and of the parser."""
    words = (f"[{key}]" if isinstance(key, int) else f".{key}" for key in place)
    return "".join(words).removeprefix(".")


def place_of(name: str) -> Place:
    """The other way round, from `spec.steps.0.name`."""
    return tuple(int(word) if word.isdigit() else word for word in name.split("."))
