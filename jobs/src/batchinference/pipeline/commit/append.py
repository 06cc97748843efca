"""Adds the rows of new input files to a complete output.

An addition is a separate output inside the output of the work. It has its own input snapshot,
which lists only the new files, its own attempts and its own completion marker.
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
        return [layout.input for layout in others if layout.input.exists()]

    @property
    def earlier(self) -> list[Location]:
        """The input snapshots of the outputs to which this one is an addition."""
        number = self.layout.addition_number
        earlier = [layout for layout in self.others if layout.addition_number < number]
        return [layout.input for layout in earlier if layout.input.exists()]


def plan_outputs(spec: BatchInferenceSpec) -> Iterator[OutputTarget]:
    """Yield the outputs that a run of a job writes, one after the other. Each one is determined
    after the previous ones are complete. Most runs have one output. If failed rows are retried, the
    outputs are the first output and the additions that have failed rows, followed by the addition
    for new files.

    Raises BadOutput if the state of the existing outputs cannot be determined."""
    layout = Layout.of(spec)
    with storage_errors_as_bad_output(spec.write):
        first = _first_output(layout)
    if not isinstance(spec.read, ReadFiles) or spec.write.mode == "overwrite":
        yield OutputTarget(first)
        return
    retried = 0
    for target in _targets_with_failed_rows(spec, first) if spec.errors.retry else ():
        retried += 1
        yield target
    if not retried or _adds_new_files(spec):
        yield _next_target(spec, first)


def _adds_new_files(spec: BatchInferenceSpec) -> bool:
    # a job with a limit is complete once it has its rows, and reads no new files
    limited = isinstance(spec.read, ReadFiles) and spec.read.options.limit is not None
    return spec.write.mode == "append" and not limited


def _first_output(layout: Layout) -> Layout:
    """Return the output to which additions are made: the output of the work, wherever it was
    started."""
    places = (layout, layout.whole)
    conditions = (is_complete, _was_complete)
    found = (place for condition in conditions for place in places if condition(place))
    return next(found, layout)


def _was_complete(layout: Layout) -> bool:
    """Return whether an output is complete, or was complete before a retry of its failed rows that
    has not finished."""
    lease = read_lease(layout)
    same_work = lease is not None and lease.key == layout.key
    return same_work and (layout.success.exists() or layout.end.exists())


def _targets_with_failed_rows(spec: BatchInferenceSpec, first: Layout) -> Iterator[OutputTarget]:
    for layout in (first, *Layout.of(spec).additions()):
        with storage_errors_as_bad_output(spec.write):
            retried = has_failed_rows(layout) if is_complete(layout) else _was_complete(layout)
        if retried:
            yield _target(spec, layout, first)


def _next_target(spec: BatchInferenceSpec, first: Layout) -> OutputTarget:
    """Return the unfinished or the next addition if new files are to be added; otherwise the first
    output."""
    target = _target(spec, first, first)
    unfinished = [layout for layout in target.others if layout not in target.complete]
    # without resume, an unfinished addition starts over, and no new addition is started
    if not (first in target.complete and _adds_new_files(spec) and (spec.resume or unfinished)):
        return target
    new = Layout.of(spec).addition(len(target.others) + 1)
    layout = next(iter(unfinished), new)
    others = (first, *(other for other in target.others if other != layout))
    return OutputTarget(layout, others, target.complete)


def _target(spec: BatchInferenceSpec, layout: Layout, first: Layout) -> OutputTarget:
    with storage_errors_as_bad_output(spec.write):
        outputs = (first, *Layout.of(spec).additions())
        complete = tuple(output for output in outputs if is_complete(output))
    others = tuple(output for output in outputs if output != layout)
    return OutputTarget(layout, others, complete)


def previous_versions_of(spec: BatchInferenceSpec, job: str) -> list[Layout]:
    """Return the outputs that a job has written with a different spec to the path that it appends
    to. `job` is the identity of the job."""
    if spec.write.mode != "append":
        return []
    layout = Layout.of(spec)
    current = {layout.key, *(addition.key for addition in layout.additions())}
    outputs = (layout.whole, *layout.whole.appended())
    return [
        output
        for output, lease in zip(outputs, map(read_lease, outputs), strict=True)
        if lease is not None
        and lease.key not in current
        and name_of(lease.job) == name_of(job)
        and output.input.exists()
    ]
