"""Replaces a complete output by another one.

The replacement is an output of its own in the state directory, where readers of the output do not
see it. Its completion marker is the switch: before it, the old output counts; after it, the new
one. Only then the old output is deleted and the files of the new one are moved to its place. An
interrupted move is repeated by the next run.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from batchinference.pipeline.commit.claim import Claim
from batchinference.pipeline.commit.heartbeat import (
    ensure_not_running,
    heartbeat_file,
    keep_heartbeat,
)
from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.commit.lease import read_lease
from batchinference.pipeline.commit.missing_files import without_missing_files
from batchinference.pipeline.commit.process_id import this_process
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.errors import Incomplete
from batchinference.pipeline.storage.location import Location

MOVE_THREADS = 16


def discard_replaced(layout: Layout) -> None:
    """Delete what is left of a replacement that has taken the place of this output, or of one whose
    deletion was interrupted."""
    new, current = read_lease(layout.replacement), read_lease(layout)
    if new is None or (current is not None and new.run == current.run):
        layout.replacement.state.delete_directory()


def publish(layout: Layout, job: str = "") -> None:
    """Put the complete replacement of an output in its place. This can be repeated.

    Raises BadOutput if another run is writing to the output."""
    staged = layout.replacement
    new, current = read_lease(staged), read_lease(layout)
    if new is None:
        return
    ensure_not_running(layout, current, job)
    moving = replace(new, begun=False, errors=layout.errors.uri, process=this_process())
    if current is None or current.run != new.run:
        Claim(layout, current, overwrite=True, job=job).put()
        moving.write(layout)  # from now on, nothing in the output is deleted
    if current is None or current.run != new.run or not current.is_complete(layout):
        with keep_heartbeat(heartbeat_file(layout, moving)):
            _move_files(staged, layout)
        heartbeat_file(layout, moving).delete()
        replace(moving, begun=True).write(layout)
        new.complete(layout)
    staged.success.delete()  # first, so that the rest is not published again
    staged.state.delete_directory()


def _move_files(staged: Layout, layout: Layout) -> None:
    end = Snapshot.read(staged.end, staged.key)
    data = [file.name for entry in end.entries for file in entry.data]
    errors = [entry.errors.name for entry in end.entries if entry.errors]
    _move_all(staged.data, layout.data, data)
    _move_all(staged.errors, layout.errors, errors)
    if len(without_missing_files(layout, end).entries) < len(end.entries):
        raise Incomplete(f"files of the new output in '{staged.state.uri}' are missing")
    for name in ("spec", "input", "code", "report", "end"):
        getattr(layout, name).write(getattr(staged, name).read())


def _move_all(source: Location, target: Location, names: list[str]) -> None:
    left = {source.below(info.path) for info in source.data_files()}
    with ThreadPoolExecutor(MOVE_THREADS) as pool:
        moves = ((source.inside(name), target.inside(name)) for name in names if name in left)
        list(pool.map(lambda move: move[0].move(move[1]), moves))
