"""Finds the row at which the processes of a fused task die, so that it becomes a failed row.

Ray retries a task whose process died, and the task fails after its last retry. From the first retry
on, a task stores a note before a step computes rows, and removes it afterwards. The note names the
step and the rows. If the task fails while there is a note, and `errors` allow failed rows, the
driver runs the task again: this is an isolated run. It skips the committed rows, as each retry
does. In each batch that it reads, the noted rows come first, and are computed in small parts, in
the end one by one, while no commit is in progress. Ray does not retry an isolated run, so the
driver sees each death. If the process dies in two runs in a row on the same single row, the next
run does not compute this row: it commits it as a failed row, together with the other rows of the
task. If a node is lost, if Ray kills a process to free memory, or if a process dies outside of the
steps, the run is repeated, and no row is blamed. The number of isolated runs of a task is limited.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace

import numpy as np

from batchinference.pipeline.ray_compat import put_note, read_note, remove_note
from batchinference.pipeline.row_batch import RowBatch, unpack_ids

MAX_RUNS, MAX_REPEATS = 50, 10
"""Maximum number of isolated runs of a task, of which a row takes up to five, and of runs that are
repeated because no row can be blamed."""
PARTS = 32
"""Number of parts into which noted rows are divided. Up to this many rows are computed one by
one."""
ADJACENT_ROWS = 4
"""If this many adjacent rows kill their process, their values are not the cause, but for example a
broken device."""
CRASHED = (
    "the process died twice while it computed only this row: it was killed because memory ran out, "
    "or native code crashed"
)
"""The error of a crashed row."""


@dataclass(frozen=True)
class CrashNote:
    """The rows that a step of a process was computing: the lowest and the highest id of their input
    rows, and the number of these. Other rows may have ids in between."""

    step: str
    first: int
    last: int
    rows: int

    @classmethod
    def of(cls, step: str, ids: np.ndarray) -> CrashNote:
        """Return the note for rows with these ids of input rows (int64, at least one)."""
        found = np.unique(ids)
        return cls(step, int(found[0]), int(found[-1]), len(found))

    @property
    def is_one_row(self) -> bool:
        return self.first == self.last

    def serialized(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Isolation:
    """How a task runs after its process died: with which rows apart, and without which rows.

    `crashed` has a note for each row that has become a failed row. `runs` is the number of isolated
    runs, including this one, and `repeats` of those that follow a death without a row to blame."""

    suspect: CrashNote | None = None
    crashed: tuple[CrashNote, ...] = ()
    runs: int = 1
    repeats: int = 0

    def after_death(self, note: CrashNote) -> Isolation:
        """Return how the task runs after its process died on the rows of a note."""
        before, row = self.suspect, (note.first, note.last)
        if before is not None and note.is_one_row and row == (before.first, before.last):
            return replace(self, suspect=None, crashed=(*self.crashed, note))
        return replace(self, suspect=note)

    @property
    def is_systemic(self) -> bool:
        """Whether the last crashed rows are adjacent, so that their values are not the cause. The
        first row of a file is adjacent to any row of the file before, which may have few rows."""
        last = self.crashed[-ADJACENT_ROWS:]
        rows = np.sort(np.array([note.first for note in last], np.int64))
        files, numbers = unpack_ids(rows)
        in_file = np.diff(rows) == 1
        in_files = (np.diff(files) == 1) & (numbers[1:] == 0)
        return len(rows) == ADJACENT_ROWS and bool(np.all(in_file | in_files))

    def divided(self, batch: RowBatch) -> tuple[Iterator[RowBatch], RowBatch]:
        """Return the suspects in a batch that was read, in small parts, and the other rows."""
        if self.suspect is None:
            return iter(()), batch
        ids = batch.source
        apart = (ids >= self.suspect.first) & (ids <= self.suspect.last)
        if not apart.any():
            return iter(()), batch
        suspects = replace(batch.only(ids[apart]), ends=(), notes=())
        return _cut(suspects, math.ceil(self.suspect.rows / PARTS)), batch.only(ids[~apart])


def _cut(batch: RowBatch, rows: int) -> Iterator[RowBatch]:
    rest: RowBatch | None = batch
    while rest is not None:
        part, rest = rest.cut(rows)
        yield part


def next_isolation(
    before: Isolation | None, note: CrashNote | None, max_rows: int
) -> Isolation | None:
    """Return how a task runs again after the death of its process; None if the job must fail.

    `before` is None if the task had no isolated run yet. `note` is None if no row can be blamed.
    `max_rows` is the maximum number of crashed rows of a task."""
    if not max_rows or (before is not None and before.runs >= MAX_RUNS):
        return None
    if before is None:
        return Isolation(suspect=note) if note else None
    again = replace(before, runs=before.runs + 1)
    if note is None:
        again = replace(again, repeats=before.repeats + 1)
        return again if again.repeats <= MAX_REPEATS else None
    again = again.after_death(note)
    return again if len(again.crashed) <= max_rows and not again.is_systemic else None


_name: ContextVar[str | None] = ContextVar("name of the note", default=None)
"""The name of the note of the running task; None if it stores no notes."""


@contextmanager
def noted_as(name: str | None) -> Iterator[None]:
    """While the block runs, `put_crash_note` stores notes with this name; None stores none."""
    token = _name.set(name)
    remove_crash_note()
    try:
        yield
    finally:
        remove_crash_note()
        _name.reset(token)


def is_noted() -> bool:
    """Return whether the running task stores notes."""
    return _name.get() is not None


def put_crash_note(note: CrashNote) -> None:
    """Store the note of the running task. Ignores errors."""
    _with_name(lambda name: put_note(name, note.serialized()))


def remove_crash_note() -> None:
    """Remove the note of the running task. Ignores errors."""
    _with_name(remove_note)


def _with_name(change: Callable[[str], None]) -> None:
    name = _name.get()
    if name is not None:
        with suppress(Exception):  # the head of Ray may not answer
            change(name)


def take_crash_note(name: str) -> CrashNote | None:
    """Return the note with this name and remove it; None if there is none, or if the head of Ray
    does not answer."""
    with suppress(Exception):
        text = read_note(name)
        remove_note(name)
        return CrashNote(**json.loads(text)) if text else None
    return None
