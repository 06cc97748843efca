"""Adds the rows of new input files to a complete output.

An addition is a separate output inside the output of the work. It has its own input snapshot,
which lists only the new files, its own attempts and its own completion marker.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from batchinference.pipeline.commit.decision import has_failed_rows, storage_errors_as_bad_output
from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.commit.lease import name_of
from batchinference.pipeline.commit.output_reader import OutputReader
from batchinference.pipeline.storage.location import Location
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.read import ReadFiles


@dataclass(frozen=True)
class OutputTarget:
    """An output that a run of a job writes, at `layout`. `others` are the other outputs of the same
    work. `complete` are the outputs of the work that are already complete. `reader` has found
    them."""

    layout: Layout
    others: tuple[Layout, ...] = ()
    complete: tuple[Layout, ...] = ()
    reader: OutputReader = field(default_factory=OutputReader, compare=False, repr=False)

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

    def previous_versions(self, job: str) -> list[Layout]:
        """Return the outputs that a job has appended to the same path with a different spec. `job`
        is the identity of the job."""
        current = {self.layout.key, *(layout.key for layout in self.others)}
        whole = self.layout.whole
        return [
            output
            for output in (whole, *self.reader.appended(whole))
            if (lease := self.reader.lease(output)) is not None
            and lease.key not in current
            and name_of(lease.job) == name_of(job)
            and output.input.exists()
        ]


def plan_outputs(spec: BatchInferenceSpec, layout: Layout) -> Iterator[OutputTarget]:
    """Yield the outputs that a run of a job writes, one after the other. `layout` is that of the
    job. Each one is determined after the previous ones are complete. Most runs have one output. If
    failed rows are retried, the outputs are the first output and the additions that have failed
    rows, followed by the addition for new files.

    Raises BadOutput if the state of the existing outputs cannot be determined."""
    if not isinstance(spec.read, ReadFiles) or spec.write.mode == "overwrite":
        reader = OutputReader()
        with storage_errors_as_bad_output(spec.write):
            first = _first_output(layout, reader)
        yield OutputTarget(first, reader=reader)
        return
    retried = 0
    for target in _targets_with_failed_rows(spec, layout) if spec.errors.retry_failed_rows else ():
        retried += 1
        yield target
    if not retried or _adds_new_files(spec):
        with storage_errors_as_bad_output(spec.write):
            target = _next_target(spec, layout, OutputReader())
        yield target


def _adds_new_files(spec: BatchInferenceSpec) -> bool:
    # a job with a limit is complete once it has its rows, and reads no new files
    limited = isinstance(spec.read, ReadFiles) and spec.read.options.limit is not None
    return spec.write.mode == "append" and not limited


def _first_output(layout: Layout, reader: OutputReader) -> Layout:
    """Return the output to which additions are made: the output of the work, wherever it was
    started."""
    places = (layout, layout.whole)
    conditions = (reader.is_complete, partial(_was_complete, reader))
    found = (place for condition in conditions for place in places if condition(place))
    return next(found, layout)


def _was_complete(reader: OutputReader, layout: Layout) -> bool:
    """Return whether an output is complete, or was complete before a retry of its failed rows that
    has not finished."""
    return reader.is_of_work(layout) and (reader.has_marker(layout) or layout.end.exists())


def _targets_with_failed_rows(spec: BatchInferenceSpec, layout: Layout) -> Iterator[OutputTarget]:
    reader = OutputReader()
    with storage_errors_as_bad_output(spec.write):
        first = _first_output(layout, reader)
        outputs = (first, *reader.additions(layout))
    for output in outputs:
        with storage_errors_as_bad_output(spec.write):
            complete = reader.is_complete(output)
            retried = has_failed_rows(output) if complete else _was_complete(reader, output)
            target = _target(layout, output, first, reader) if retried else None
        if target is not None:
            yield target
            reader = OutputReader()  # the run has changed the output


def _next_target(spec: BatchInferenceSpec, layout: Layout, reader: OutputReader) -> OutputTarget:
    """Return the unfinished or the next addition if new files are to be added; otherwise the first
    output."""
    first = _first_output(layout, reader)
    target = _target(layout, first, first, reader)
    unfinished = [output for output in target.others if output not in target.complete]
    # without resume, an unfinished addition starts over, and no new addition is started
    if not (first in target.complete and _adds_new_files(spec) and (spec.resume or unfinished)):
        return target
    chosen = next(iter(unfinished), layout.addition(len(target.others) + 1))
    return _target(layout, chosen, first, reader)


def _target(layout: Layout, chosen: Layout, first: Layout, reader: OutputReader) -> OutputTarget:
    outputs = (first, *reader.additions(layout))
    complete = tuple(output for output in outputs if reader.is_complete(output))
    others = tuple(output for output in outputs if output != chosen)
    return OutputTarget(chosen, others, complete, reader)
