"""Commits the rows of a job to a table, at most once. A table stores two marks with each commit.
The mark of the pass proves the commit if its driver dies right afterwards. The mark of the series
is the same for all passes with the same rows. It keeps delayed drivers from committing them
again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from batchinference.pipeline.errors import BadOutput, JobFailure, redact
from batchinference.pipeline.storage.retry import RetryPolicy

if TYPE_CHECKING:
    import pyarrow as pa

    from batchinference.spec.write import WriteTable

MARK, SERIES = "batchinference.commit", "batchinference.series"
TRIES, FIRST_WAIT, MAX_WAIT = 60, 0.1, 10.0
"""A commit that conflicts with other writers is tried TRIES times, and waits FIRST_WAIT to MAX_WAIT
seconds between tries. All waits together take about 7 minutes."""


@dataclass(frozen=True)
class TableFiles:
    """The rows of a job, in files at the location of the table's files."""

    schema: pa.Schema
    files: list[Any]
    """For each file, the data with which the table registers it. Empty if there are no rows."""
    keys: Any = None
    """The keys of the rows (`output.tables.keys.Keys`), if they update rows of the table."""
    origin: Callable[[], tuple[int, Any]] | None = None
    """Returns the version of the dataset that the job has read, and the row IDs of each part of the
    input. None if the input has no row IDs."""


@dataclass(frozen=True)
class Fence:
    """Prevents duplicate rows in a table if another driver takes over right before a delayed driver
    commits. A commit is refused if the table has a commit of the same series."""

    commit_id: str
    series_id: str
    check: Callable[[], None]
    """Raises BadOutput if another pass has begun."""
    has_earlier_passes: bool = False
    """Whether a delayed earlier pass of the series may still commit."""
    tries: int = TRIES
    """The number of tries of a commit that conflicts with other writers."""

    @property
    def marks(self) -> dict[str, str]:
        """The marks to store with the commit, by property name."""
        return {MARK: self.commit_id, SERIES: self.series_id}

    def has_committed(self, commits: Callable[[str], int]) -> bool:
        """Return whether this pass has already committed. Raises BadOutput if another pass of the
        series has committed. `commits` returns the number of commits with a mark in the current
        version of the table."""
        if commits(self.commit_id):
            return True
        if commits(self.series_id):
            raise BadOutput("another attempt has already committed the rows to the table")
        return False

    def retry_conflicts(
        self, commit: Callable[[], None], conflicts: tuple[type[Exception], ...]
    ) -> None:
        """Call `commit`, and retry it after a conflict with another writer. `commit` must read the
        table again each time. Raises BadOutput if every try has a conflict. The staged rows remain
        for the next run."""
        is_conflict = lambda error: isinstance(error, conflicts)  # noqa: E731
        try:
            RetryPolicy(self.tries, FIRST_WAIT, is_conflict, MAX_WAIT).call(commit)
        except conflicts as error:
            raise BadOutput(
                f"write: other writers have changed the table during each of {self.tries} tries to "
                f"commit the rows ({type(error).__name__}). Run the job again when there are fewer "
                "writers. No row is computed again"
            ) from None


@contextmanager
def table_errors_as_bad_output() -> Iterator[None]:
    """Convert the exceptions of a table format's library, except OSError, into BadOutput."""
    try:
        yield
    except (JobFailure, OSError):
        raise
    except Exception as error:
        text = redact(" ".join(str(error).split()))
        problem = f"{type(error).__name__}: {text}"
        raise BadOutput(f"write: the table cannot be used ({problem})") from error


def has_rows_error(write: WriteTable) -> BadOutput:
    """Return the error for a table with rows that the write mode must not append to or replace."""
    return BadOutput(
        f"write.mode: the table has rows already ({write.format}, "
        f"'{getattr(write, 'table', write.path)}'). Set the mode to append or overwrite, or choose "
        "another table"
    )


class CommittedTable(Protocol):
    """The table operations that the commit protocol uses."""

    def holds_rows(self) -> bool:
        """Return whether the table exists and has rows."""

    def commit_count(self, mark: str) -> int:
        """Return the number of commits with this mark of a pass or a series."""

    def register(self, rows: TableFiles, fence: Fence) -> None:
        """Commit the rows of all files, and create the table if it does not exist. In overwrite
        mode, remove all other rows. Raises BadOutput if another pass has committed or has begun."""
