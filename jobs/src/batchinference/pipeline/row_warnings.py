"""Collects the warnings that decoders and models report about single rows.

Code that changes a value calls `warn`, wherever it runs below the code that owns the row. The owner
of the row collects the warnings. Without a collector, they are dropped:

    with collect_warnings() as warnings:
        picture = images.decode(content, options)   # calls warn(WarningName.ROTATED)
    # warnings == [RowWarning(0, WarningName.ROTATED, 0)]
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from batchinference.spec.warnings import WarningName


class RowWarning(NamedTuple):
    """A warning about one row. `row` is its index in the batch that was being computed; 0 for the
    only row. `amount` is what is added up, such as the number of tokens that were cut."""

    row: int
    name: WarningName
    amount: int


_collected: ContextVar[list[RowWarning] | None] = ContextVar("warnings", default=None)


def warn(name: WarningName, *, row: int = 0, amount: int = 0) -> None:
    """Report a warning about a row of the batch that is being computed."""
    if (warnings := _collected.get()) is not None:
        warnings.append(RowWarning(row, name, amount))


@contextmanager
def collect_warnings() -> Iterator[list[RowWarning]]:
    """Yield a list to which `warn` adds warnings, until the context ends. An inner collector hides
    its warnings from the outer one."""
    warnings: list[RowWarning] = []
    token = _collected.set(warnings)
    try:
        yield warnings
    finally:
        _collected.reset(token)
