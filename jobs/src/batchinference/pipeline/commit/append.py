"""Adding to a complete output what has come to its input since.

Each addition is an output of its own within that of the work: with its own frozen list, which names
the new files alone, its own attempts and its own mark of completeness.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from batchinference.pipeline.commit.heartbeat import name_of
from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.commit.lease import completed, is_complete, read_lease
from batchinference.pipeline.commit.state import has_failed, storage_errors_as_bad_output
from batchinference.pipeline.storage.location import Location
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.read import ReadFiles


@dataclass(frozen=True)
class OutputTarget:
    """What a run of a job writes: `layout`. Of the same work are `others`, and `complete` is what
    is complete of it already."""

    layout: Layout
    others: tuple[Layout, ...] = ()
    complete: tuple[Layout, ...] = ()

    @property
    def processed(self) -> list[Location]:
        """The lists of files whose rows others have; none where this one has its own list."""
        others = () if self.layout in self.complete else self.others
        return [one.input for one in others if one.input.exists()]


def plan_outputs(spec: BatchInferenceSpec) -> Iterator[OutputTarget]:
    """What a run of a job writes, one after the other: each is told once those before it are
    complete. Most runs have one. Where bad rows are to be tried again these are the output and the
    additions that have some, and after them what is new.

    Raises BadOutput when what is there cannot be told."""
    layout = Layout.of(spec)
    with storage_errors_as_bad_output(spec.write):
        first = _first(layout)
    if not _is_added_to(spec):
        yield OutputTarget(first)
        return
    retried = 0
    for target in _with_bad_rows(spec, first) if spec.errors.retry else ():
        retried += 1
        yield target
    if not retried or _adds(spec):
        yield _following(spec, first)


def _is_added_to(spec: BatchInferenceSpec) -> bool:
    return isinstance(spec.read, ReadFiles) and spec.write.mode != "overwrite"


def _adds(spec: BatchInferenceSpec) -> bool:
    # a limited job is done with its rows
    limited = isinstance(spec.read, ReadFiles) and spec.read.options.limit is not None
    return spec.write.mode == "append" and not limited


def _first(layout: Layout) -> Layout:
    """The output to which is added: that of the work, wherever it was begun."""
    return completed(layout) or next(
        (one for one in (layout, layout.whole) if _was_complete(one)), layout
    )


def _was_complete(layout: Layout) -> bool:
    """Whether an output is complete, or was so before its bad rows were tried again, which has not
    come to its end."""
    lease = read_lease(layout)
    ours = lease is not None and lease.key == layout.key
    return ours and (layout.success.exists() or layout.end.exists())


def _with_bad_rows(spec: BatchInferenceSpec, first: Layout) -> Iterator[OutputTarget]:
    for one in (first, *Layout.of(spec).additions()):
        with storage_errors_as_bad_output(spec.write):
            wanted = has_failed(one) if is_complete(one) else _was_complete(one)
        if wanted:
            yield _target(spec, one, first)


def _following(spec: BatchInferenceSpec, first: Layout) -> OutputTarget:
    """The addition that is unfinished or comes next, where new files are to be added."""
    begun = _target(spec, first, first)
    unfinished = [one for one in begun.others if one not in begun.complete]
    # without resume, what was begun is begun anew, and nothing else is begun
    if not (first in begun.complete and _adds(spec) and (spec.resume or unfinished)):
        return begun
    following = Layout.of(spec).addition(len(begun.others) + 1)
    layout = next(iter(unfinished), following)
    others = (first, *(one for one in begun.others if one != layout))
    return OutputTarget(layout, others, begun.complete)


def _target(spec: BatchInferenceSpec, layout: Layout, first: Layout) -> OutputTarget:
    there = (first, *Layout.of(spec).additions())
    with storage_errors_as_bad_output(spec.write):
        complete = tuple(one for one in there if is_complete(one))
    return OutputTarget(layout, tuple(one for one in there if one != layout), complete)


def previous_versions_of(spec: BatchInferenceSpec, job: str) -> list[Layout]:
    """What a job has written to the output that it adds to, when it had another spec. `job` is its
    identity."""
    if spec.write.mode != "append":
        return []
    layout = Layout.of(spec)
    own = {layout.key, *(one.key for one in layout.additions())}
    found = [(one, read_lease(one)) for one in (layout.whole, *layout.whole.appended())]
    return [
        one
        for one, lease in found
        if lease is not None
        and lease.key not in own
        and name_of(lease.job) == name_of(job)
        and one.input.exists()
    ]
