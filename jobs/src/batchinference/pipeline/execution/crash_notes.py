"""Stores notes in the control store of the Ray cluster: which rows each process is computing.

A note that remains shows on which rows its process died (see `crash_isolation`). A note costs two
requests, so only processes that replace a dead one or compute suspects store notes."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from threading import get_ident, local

import numpy as np

from batchinference.pipeline.errors import EngineDied
from batchinference.pipeline.execution.crash_isolation import CrashNote, Death
from batchinference.pipeline.input import AFTER_CRASH
from batchinference.pipeline.ray_compat import (
    lost_nodes,
    node_of_this_process,
    nodes_like_this,
    notes_below,
    owner_of_this_process,
    put_note,
    remove_note,
    replaces_dead_process,
)
from batchinference.pipeline.row_batch import READ_STEP


class _Call(local):
    """The call that the current thread runs."""

    note: str | None = None
    """The name of the note of the call; None if the call stores no notes."""


_call = _Call()
_notes: set[str] = set()
"""The names of the notes of this process."""


@cache
def _process() -> str:
    """Return a random ID of this process."""
    return uuid.uuid4().hex


def _prefix(run: str, owner: str = "") -> str:
    """Return the prefix of the names of a pass's notes, or of the notes of one task or actor
    (`owner`)."""
    return f"batchinference-computes-{run}/" + f"{owner}/" * bool(owner)


@contextmanager
def storing_notes(run: str) -> Iterator[None]:
    """Make `noted_rows` store notes for the pass `run` while the block runs."""
    before = _call.note
    _call.note = f"{_prefix(run, owner_of_this_process())}{_process()}/{get_ident()}"
    try:
        yield
    finally:
        _call.note = before


@contextmanager
def noted_rows(step: str, ids: np.ndarray) -> Iterator[None]:
    """Keep a note of these rows (int64 IDs) while the block runs. Does so only within a block of
    `storing_notes`. Errors of Ray are ignored, because its head may not answer."""
    name = _call.note
    if name is None:
        yield
        return
    _notes.add(name)
    with suppress(Exception):
        put_note(name, CrashNote.of(step, ids, node_of_this_process()).serialized())
    try:
        yield
    except EngineDied:
        raise  # the note remains, because this process ends after its engine
    except Exception:
        _remove(name)
        raise
    _remove(name)  # not after SystemExit, which ends the process


@dataclass(frozen=True)
class ReadNotes:
    """Keeps a note, and sets AFTER_CRASH, while a process that replaces a dead one reads rows. The
    note tells where the process died, but not on how many rows. So no row is isolated."""

    run: str

    @contextmanager
    def __call__(self, row: int) -> Iterator[None]:
        """Keep the note while the block reads rows. `row` is the ID of the first row."""
        if not replaces_dead_process():
            yield
            return
        token = AFTER_CRASH.set(True)
        try:
            with storing_notes(self.run), noted_rows(READ_STEP, np.array([row])):
                yield
        finally:
            AFTER_CRASH.reset(token)


def _remove(name: str) -> None:
    _notes.discard(name)
    with suppress(Exception):
        remove_note(name)


def predecessor_deaths(run: str) -> list[Death]:
    """Return the deaths of the processes that this process replaces; empty if Ray's head does not
    answer. The deaths are fetched once per task or actor."""
    with suppress(Exception):
        return _known_deaths(_prefix(run, owner_of_this_process()), _process())
    return []


def deaths_of(run: str, *, reading: bool = False) -> list[Death]:
    """Return the deaths in the steps of a pass, or with `reading` the deaths in its readers. Empty
    if Ray's head does not answer. A process that still computes counts as dead."""
    with suppress(Exception):
        return _deaths(_prefix(run), _process(), reading=reading)
    return []


def nodes_of_group() -> frozenset[str]:
    """Return the IDs of the living nodes in the worker group of this process. Empty without worker
    groups, or if Ray's head does not answer."""
    # imported here, because few workers need the plan
    from batchinference.plan.groups import GROUP_LABEL

    with suppress(Exception):
        return frozenset(nodes_like_this(GROUP_LABEL))
    return frozenset()


def take_deaths(run: str) -> list[Death]:
    """Return the deaths in the steps of a pass, and remove their notes. Call it after all processes
    have ended."""
    deaths = deaths_of(run)
    with suppress(Exception):
        for name, text in notes_below(_prefix(run)).items():
            if not _is_of_reading(CrashNote.parse(text)):
                remove_note(name)
    return deaths


def forget_notes() -> None:
    """Remove the notes of this process, which exits for a reason other than its rows."""
    for name in list(_notes):
        _remove(name)


def _is_of_reading(note: CrashNote) -> bool:
    return note.step == READ_STEP


def _deaths(prefix: str, own_process: str, *, reading: bool = False) -> list[Death]:
    """Return the deaths in steps, or with `reading` the deaths in readers. Leaves out notes of lost
    nodes and of `own_process`. Raises an error if Ray's head does not answer."""
    lost, deaths = lost_nodes(), defaultdict[str, list[CrashNote]](list)
    for name, text in sorted(notes_below(prefix).items()):
        process, note = name.rpartition("/")[0], CrashNote.parse(text)
        ignored = process.endswith(own_process) or note.node in lost
        if not ignored and _is_of_reading(note) is reading:
            deaths[process].append(note)
    return [tuple(notes) for notes in deaths.values()]


_known_deaths = lru_cache(maxsize=1)(_deaths)
