"""Adds the rows of new input files to a complete output.

Each addition is an output of its own within the output of the work. It has its own input snapshot,
which names only the new files, its own attempts and its own completion marker.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from batchinference.pipeline.commit.decision import has_failed_rows, storage_errors_as_bad_output
from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.commit.lease import is_complete, name_of, read_lease
from batchinference.pipeline.storage.location import Location
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.read import ReadFiles


@dataclass(frozen=True)
class OutputTarget:
    """An output that a run of a job writes, at `layout`. `others` are the other outputs of the same
    work. `complete` are the outputs of the work that are already complete."""

    layout: Layout
    others: tuple[Layout, ...] = ()
    complete: tuple[Layout, ...] = ()

    @property
    def processed(self) -> list[Location]:
        """The input snapshots of the other outputs, whose files are processed already. Empty if
        this output is complete, because it then has its own input snapshot."""
        others = () if self.layout in self.complete else self.others
        return [one.input for one in others if one.input.exists()]

    @property
    def earlier(self) -> list[Location]:
        """The input snapshots of the outputs to which this one is an addition."""
        number = self.layout.addition_number
        before = [one for one in self.others if one.addition_number < number]
        return [one.input for one in before if one.input.exists()]


def plan_outputs(spec: BatchInferenceSpec) -> Iterator[OutputTarget]:
    """Yield the outputs that a run of a job writes, one after the other. Each one is determined
    after the previous ones are complete. Most runs have one output. If failed rows are retried, the
    outputs are the first output and the additions that have failed rows, followed by the addition
    for new files.

    Raises BadOutput if the state of the existing outputs cannot be determined."""
    layout = Layout.of(spec)
    with storage_errors_as_bad_output(spec.write):
        first = _first(layout)
    if not isinstance(spec.read, ReadFiles) or spec.write.mode == "overwrite":
        yield OutputTarget(first)
        return
    retried = 0
    for target in _with_bad_rows(spec, first) if spec.errors.retry else ():
        retried += 1
        yield target
    if not retried or _adds(spec):
        yield _following(spec, first)


def _adds(spec: BatchInferenceSpec) -> bool:
    # a job with a limit is complete once it has its rows, and takes no new files
    limited = isinstance(spec.read, ReadFiles) and spec.read.options.limit is not None
    return spec.write.mode == "append" and not limited


def _first(layout: Layout) -> Layout:
    """Return the output to which additions are made: the output of the work, wherever it was
    started."""
    places = (layout, layout.whole)
    found = (one for condition in (is_complete, _was_complete) for one in places if condition(one))
    return next(found, layout)


def _was_complete(layout: Layout) -> bool:
    """Return whether an output is complete, or was complete before a retry of its failed rows that
    has not finished."""
    lease = read_lease(layout)
    ours = lease is not None and lease.key == layout.key
    return ours and (layout.success.exists() or layout.end.exists())


def _with_bad_rows(spec: BatchInferenceSpec, first: Layout) -> Iterator[OutputTarget]:
    for one in (first, *Layout.of(spec).additions()):
        with storage_errors_as_bad_output(spec.write):
            wanted = has_failed_rows(one) if is_complete(one) else _was_complete(one)
        if wanted:
            yield _target(spec, one, first)


def _following(spec: BatchInferenceSpec, first: Layout) -> OutputTarget:
    """Return the unfinished or the next addition if new files are to be added; otherwise the first
    output."""
    begun = _target(spec, first, first)
    unfinished = [one for one in begun.others if one not in begun.complete]
    # without resume, an unfinished addition starts over, and no new addition is started
    if not (first in begun.complete and _adds(spec) and (spec.resume or unfinished)):
        return begun
    following = Layout.of(spec).addition(len(begun.others) + 1)
    layout = next(iter(unfinished), following)
    others = (first, *(one for one in begun.others if one != layout))
    return OutputTarget(layout, others, begun.complete)


def _target(spec: BatchInferenceSpec, layout: Layout, first: Layout) -> OutputTarget:
    with storage_errors_as_bad_output(spec.write):
        there = (first, *Layout.of(spec).additions())
        complete = tuple(one for one in there if is_complete(one))
    return OutputTarget(layout, tuple(one for one in there if one != layout), complete)


def previous_versions_of(spec: BatchInferenceSpec, job: str) -> list[Layout]:
    """Return the outputs that a job has written with a different spec to the output that it appends
    to. `job` is the identity of the job."""
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
