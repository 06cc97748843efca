"""Makes the rows of a table visible in one commit, at most once.

The commit carries two marks. The first identifies the attempt: it shows that a driver that died
right after the commit has made it. The second identifies the series of attempts: it prevents
delayed drivers from committing the same rows again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from batchinference.pipeline.errors import BadOutput, JobFailure, shown
from batchinference.pipeline.storage.retry import RetryPolicy

if TYPE_CHECKING:
    import pyarrow as pa

    from batchinference.spec.write import WriteTable

MARK, SERIES = "batchinference.commit", "batchinference.series"
ATTEMPTS, FIRST_WAIT, MAX_WAIT = 60, 0.1, 10.0
"""Attempts of a commit that conflicts with other writers, and the first and the longest backoff in
seconds. In all, a commit waits for about 7 minutes for other writers."""


@dataclass(frozen=True)
class TableFiles:
    """The schema of the rows of a job, and the files with the rows, where a table has its files.
    Each is what the format needs to register the file. There are no files if there are no rows."""

    schema: pa.Schema
    files: list[Any]
    keys: Any = None
    """The keys of the rows (output.tables.keys.Keys), if they update rows of the table."""
    origin: Callable[[], tuple[int, Any]] | None = None
    """Returns the version of the dataset that the job has read, and the row IDs of each part of its
    input; None if rows have no such IDs."""


@dataclass(frozen=True)
class Fence:
    """Prevents duplicate rows in a table when a driver is delayed right at its commit and another
    driver takes over. A table accepts one commit with the mark of a series. `check` raises
    BadOutput if another attempt has begun."""

    commit_id: str
    series: str
    check: Callable[[], None]
    follows: bool = False
    """Whether an earlier attempt of the series may still be about to commit."""

    @property
    def marks(self) -> dict[str, str]:
        """The marks as properties of a commit."""
        return {MARK: self.commit_id, SERIES: self.series}

    def is_passed(self, commits: Callable[[str], int]) -> bool:
        """Return whether this commit was made and only the response was lost. `commits` counts the
        commits with a mark in the version of the table that the commit is based on. Raises
        BadOutput if another attempt has committed."""
        if commits(self.commit_id):
            return True
        if commits(self.series):
            raise BadOutput("an attempt that began later has put the rows into the table already")
        return False

    def put(self, commit: Callable[[], None], conflicts: tuple[type[Exception], ...]) -> None:
        """Call `commit`, which must begin by reading the table. Retry it after each conflict with a
        commit of another writer.

        Raises BadOutput if all tries have had conflicts. The rows remain stored then."""
        policy = RetryPolicy(
            ATTEMPTS, FIRST_WAIT, lambda error: isinstance(error, conflicts), MAX_WAIT
        )
        try:
            policy.call(commit)
        except conflicts as error:
            raise BadOutput(
                f"write: other writers have changed the table during each of {ATTEMPTS} tries to "
                f"commit the rows ({type(error).__name__}). Run the job again when there are fewer "
                "writers. It computes no row again"
            ) from None


@contextmanager
def table_errors_as_bad_output() -> Iterator[None]:
    """Convert the exceptions of a table format's library into BadOutput."""
    try:
        yield
    except (JobFailure, OSError):
        raise
    except Exception as error:
        text = shown(" ".join(str(error).split()))
        raise BadOutput(
            f"write: the table cannot be used ({type(error).__name__}: {text})"
        ) from error


def table_has_rows(write: WriteTable) -> BadOutput:
    """Return the error for a table with rows that the write mode does not allow to append to or to
    replace."""
    return BadOutput(
        f"write.mode: the table has rows already ({write.format}, "
        f"'{getattr(write, 'table', write.path)}'). Set the mode to append or overwrite, or choose "
        "another table"
    )


class CommittedTable(Protocol):
    """The operations of a table that the commit protocol uses."""

    def holds_rows(self) -> bool:
        """Return whether the table exists and has rows."""

    def commits(self, mark: str) -> int:
        """Return the number of commits with this mark of an attempt or a series. The number is 0 or
        1 for tables that accept a mark only once."""

    def register(self, rows: TableFiles, fence: Fence) -> None:
        """Make the rows of all files visible. In overwrite mode, remove all other rows. Create a
        table that does not exist. Raises BadOutput if another attempt has committed the rows, or
        may be about to."""
