"""The cases, in the order of their numbers."""

from __future__ import annotations

import importlib

from traps.case import Case

_MODULES = (
    "files",
    "types",
    "dialects",
    "containers",
    "pictures",
    "recordings",
    "inference",
    "runs",
)
_COLLECTED = [importlib.import_module(f"traps.cases.{name}").CASES for name in _MODULES]
CASES: dict[str, Case] = {
    case.id: case
    for case in sorted((case for each in _COLLECTED for case in each.list), key=lambda c: c.id)
}
"""All cases by id."""
KINDS = dict(sorted(kind for each in _COLLECTED for kind in each.kinds.items()))
"""The title of each kind by its number."""
