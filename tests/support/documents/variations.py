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
Keys = tuple[str | int, ...]
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


def keys_in(value: Any, keys: Keys = ()) -> Iterator[Keys]:
    """Yield every place below a value."""
    below = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in below:
        yield (*keys, key)
        if isinstance(child, dict | list):
            yield from keys_in(child, (*keys, key))


def at(value: Any, keys: Keys) -> Any:
    for key in keys:
        value = value[key]
    return value


def changed(original: Document, keys: Keys, value: Any) -> Document:
    """Return a copy of the document with another value in one place, which may be new."""
    result = copy.deepcopy(original)
    parent = at(result, keys[:-1])
    if value is REMOVED:
        del parent[keys[-1]]
    elif isinstance(parent, list) and keys[-1] == len(parent):
        parent.append(value)
    else:
        parent[keys[-1]] = value
    return result


def named(keys: Keys) -> str:
    """Return the path of a place, as in messages of the API server and the parser."""
    parts = (f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)
    return "".join(parts).removeprefix(".")


def keys_of(name: str) -> Keys:
    """Return the place that a path such as `spec.steps.0.name` names."""
    return tuple(int(key) if key.isdigit() else key for key in name.split("."))
