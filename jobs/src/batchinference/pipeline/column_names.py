"""Checks the column names of files, and makes them unique."""

from __future__ import annotations

from collections.abc import Sequence

from batchinference.pipeline.errors import BadInput
from batchinference.spec.reserved import OWN_PREFIX

SHOWN_NAMES = 20


def check_names(names: Sequence[str], field: str, fix: str = "Rename one of them") -> None:
    """Raise BadInput for duplicate column names, and for names with the reserved prefix. `field`
    names the file or field. The message about duplicate names ends with `fix`."""
    earlier: set[str] = set()
    for name in names:
        if name.startswith(OWN_PREFIX):
            raise BadInput(
                f"{field} has a column '{name}': names that begin with {OWN_PREFIX} are reserved"
            )
        if name in earlier:
            raise BadInput(f"{field} has two columns '{name}'. {fix}")
        earlier.add(name)


def check_known(option: str, name: str, known: Sequence[str], table: str = "") -> None:
    """Raise BadInput if `name`, a column in the read option `option`, is not in `known`. These are
    the columns of `table`, or of the sampled files if `table` is empty."""
    if name not in known:
        lacks = f"{table} has no column" if table else "no sampled file has a column"
        raise BadInput(
            f"read.options.{option}: {lacks} '{name}', only {', '.join(known[:SHOWN_NAMES])}. "
            "Correct the name"
        )


RENAME = "Rename one of them, or set read.options.duplicateColumns: rename"
"""The fix for duplicate names, in formats with the option `duplicateColumns`."""


def unique_names(names: Sequence[str]) -> list[str]:
    """Return the names with numbers after duplicates, ignoring case: v, v, V -> v, v_1, V_2."""
    originals = {name.lower() for name in names}
    used: set[str] = set()
    unique: list[str] = []
    for name in names:
        new, number = name, 0
        while new.lower() in used or (number and new.lower() in originals):
            number += 1
            new = f"{name}_{number}"
        used.add(new.lower())
        unique.append(new)
    return unique
