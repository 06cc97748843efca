"""How the rows of a table become visible: in one commit, at most once.

The commit carries a mark, by which a driver that died right after it is known to have made it, and
the mark of a series, which keeps drivers apart that were held up."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from batchinference.pipeline.errors import MAX_MESSAGE, BadOutput, JobFailure
from batchinference.pipeline.storage.location import Location
from batchinference.spec.write import WriteTable

MARK, SERIES = "batchinference.commit", "batchinference.series"


CONFLICT_WAITS = (0.1, 0.2, 0.4, 0.8, 1.6)
"""Seconds, more or less."""


@dataclass(frozen=True)
class Fence:
    """What keeps rows from being in a table twice, when a driver is held up right at its commit and
    others do the work: a table takes one commit with the mark of a series. `check` raises BadOutput
    when another attempt has begun."""

    mark: str
    series: str
    check: Callable[[], None]

    @property
    def marks(self) -> dict[str, str]:
        """As properties of a commit."""
        return {MARK: self.mark, SERIES: self.series}

    def is_passed(self, commits: Callable[[str], int]) -> bool:
        """Whether this very commit was made, and only the answer was lost. `commits` counts in what
        the table was when the commit was based on it. Raises BadOutput when another was made."""
        if commits(self.mark):
            return True
        if commits(self.series):
            raise BadOutput("an attempt that began later has put the rows into the table already")
        return False

    def put(self, commit: Callable[[], None], conflicts: tuple[type[Exception], ...]) -> None:
        """Make a commit that begins with a look at the table, again after each conflict with a
        commit of somebody else."""
        for wait in (*CONFLICT_WAITS, None):
            try:
                commit()
                return
            except conflicts:
                if wait is None:
                    raise
                time.sleep(wait * random.uniform(0.5, 1))  # noqa: S311 - no secret


@contextmanager
def table_errors_as_bad_output() -> Iterator[None]:
    """Tell what a format's library raises as a fault of the output."""
    try:
        yield
    except (JobFailure, OSError):
        raise
    except Exception as error:
        said = " ".join(str(error).split())[:MAX_MESSAGE]
        raise BadOutput(
            f"the table that write names cannot be used: {type(error).__name__}: {said}"
        ) from error


def table_has_rows(write: WriteTable) -> BadOutput:
    """What to raise of a table whose rows the mode does not allow to add to or to replace."""
    return BadOutput(
        f"the table that write names ({write.format}, '{getattr(write, 'table', write.path)}') "
        "has rows already: set write.mode to append, or to overwrite, or choose another one"
    )


class CommittedTable(Protocol):
    """What the commit protocol needs of a table."""

    def holds_rows(self) -> bool:
        """Whether the table is there and has rows."""

    def commits(self, mark: str) -> int:
        """How many commits with this mark, or of the series with this mark, were made: where the
        table takes but one, that or none."""

    def commit(self, receipts: list[Location], fence: Fence) -> None:
        """Make the rows of all receipts visible, and with overwrite no others. Raises BadOutput
        when another attempt has done that, or may be about to."""
