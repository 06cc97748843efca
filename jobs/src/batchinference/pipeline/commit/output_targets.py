"""Determines which outputs a run of a job writes: the first output, or additions to it.

An addition is a separate output inside the first output. It has its own passes and completion
marker. Its own input snapshot lists only input files that are new."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from batchinference.pipeline.commit.lease import without_uid
from batchinference.pipeline.commit.output_paths import Layout
from batchinference.pipeline.commit.output_state import (
    CachedReader,
    has_failed_rows,
    storage_errors_as_bad_output,
)
from batchinference.pipeline.storage.location import Location
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.read import ReadFiles, ReadVersioned

HasChanges = Callable[[Layout], bool]


@dataclass(frozen=True)
class OutputTarget:
    """An output that a run of a job writes."""

    layout: Layout
    others: tuple[Layout, ...] = ()
    """The first output and its additions, without this output."""
    complete: tuple[Layout, ...] = ()
    """The complete outputs among the first output, its additions and this output."""
    reader: CachedReader = field(default_factory=CachedReader, compare=False, repr=False)
    recompute: bool = False
    """Whether to replace the rows of input files that have changed or are gone."""

    @property
    def processed(self) -> list[Location]:
        """The input snapshots of the other outputs, whose files this output skips. Empty if this
        output is complete, because its own snapshot lists its input files."""
        others = () if self.layout in self.complete else self.others
        return [layout.input for layout in others if layout.input.exists()]

    @property
    def earlier(self) -> list[Location]:
        """The input snapshots of the outputs that were begun before this addition."""
        number = self.layout.addition_number
        earlier = [layout for layout in self.others if layout.addition_number < number]
        return [layout.input for layout in earlier if layout.input.exists()]

    def previous_versions(self, job: str) -> list[Layout]:
        """Return the outputs that the job with identity `job` has written here with other specs."""
        current = {self.layout.key, *(layout.key for layout in self.others)}
        main = self.layout.main
        return [
            output
            for output in (main, *self.reader.all_appended(main))
            if (lease := self.reader.lease(output)) is not None
            and lease.key not in current
            and without_uid(lease.job) == without_uid(job)
            and output.input.exists()
        ]


def output_targets(
    spec: BatchInferenceSpec, layout: Layout, has_changes: HasChanges = lambda _: False
) -> Iterator[OutputTarget]:
    """Yield the outputs that a run of a job writes. The caller must complete each output before it
    asks for the next one. Most runs have one output. A run that retries failed rows, or replaces
    rows of changed files, first writes the outputs with such rows. An addition for new files
    follows. `has_changes` returns whether a complete output has rows of changed files. Raises
    BadOutput if the state of the existing outputs cannot be read."""
    if not isinstance(spec.read, ReadFiles | ReadVersioned) or spec.write.mode == "overwrite":
        reader = CachedReader()
        with storage_errors_as_bad_output(spec.write):
            first = _first_output(spec, layout, reader)
        yield OutputTarget(first, reader=reader)
        return
    reopened = 0
    resumes = _reads_new_files(spec) and spec.resume
    replaces = resumes and isinstance(spec.read, ReadFiles) and spec.read.replaces_rows is not None
    reopens = spec.errors.retry_failed_rows or replaces
    changed = has_changes if replaces else lambda _: False
    for target in _reopened_targets(spec, layout, changed) if reopens else ():
        reopened += 1
        yield target
    if not reopened or _reads_new_files(spec):
        with storage_errors_as_bad_output(spec.write):
            target = _next_target(spec, layout, CachedReader())
        yield target


def _reads_new_files(spec: BatchInferenceSpec) -> bool:
    # a job with a limit or a version never reads new files after it is complete
    read = spec.read
    limited = isinstance(read, ReadFiles | ReadVersioned) and read.options.limit is not None
    pinned = isinstance(read, ReadVersioned) and read.is_pinned
    return spec.write.adds and not limited and not pinned


def _first_output(spec: BatchInferenceSpec, layout: Layout, reader: CachedReader) -> Layout:
    """Return the first output, to which additions are made. It may have been begun with another
    write mode than that of the job."""
    others = () if spec.write.mode == "overwrite" else (layout.main, layout.append_layout)
    return next(filter(reader.is_of_work, (layout, *others)), layout)


def _was_complete(reader: CachedReader, layout: Layout) -> bool:
    """Return whether an output is complete, or was until a run retried or replaced rows."""
    if not reader.is_of_work(layout):
        return False
    return reader.has_success_marker(layout) or layout.final_snapshot.exists()


def _reopened_targets(
    spec: BatchInferenceSpec, layout: Layout, has_changes: HasChanges
) -> Iterator[OutputTarget]:
    """Yield the outputs that were complete and have rows to retry or to replace."""
    reader, retries = CachedReader(), spec.errors.retry_failed_rows
    with storage_errors_as_bad_output(spec.write):
        first = _first_output(spec, layout, reader)
        outputs = (first, *reader.own_additions(layout))
    for output in outputs:
        with storage_errors_as_bad_output(spec.write):
            reader.forget(output, output.replacement)  # writing the outputs before took long
            complete = reader.is_complete(output)
            changed = complete and has_changes(output)
            failed = complete and retries and has_failed_rows(output)
            if changed or failed or (not complete and _was_complete(reader, output)):
                yield replace(_target(layout, output, first, reader), recompute=changed)


def _next_target(spec: BatchInferenceSpec, layout: Layout, reader: CachedReader) -> OutputTarget:
    """Return the first output if it is unfinished or if the job reads no new files. Otherwise,
    return the unfinished addition or a new one."""
    first = _first_output(spec, layout, reader)
    target = _target(layout, first, first, reader)
    unfinished = [output for output in target.others if output not in target.complete]
    # a job without `resume` starts an unfinished addition over, or else the first output
    if not (first in target.complete and _reads_new_files(spec) and (spec.resume or unfinished)):
        return target
    chosen = next(iter(unfinished), layout.addition(len(target.others) + 1))
    return _target(layout, chosen, first, reader)


def _target(layout: Layout, chosen: Layout, first: Layout, reader: CachedReader) -> OutputTarget:
    """Return the target for `chosen`, which is the output `first` or an addition to it."""
    outputs = (first, *reader.own_additions(layout))
    complete = tuple(output for output in outputs if reader.is_complete(output))
    others = tuple(output for output in outputs if output != chosen)
    return OutputTarget(chosen, others, complete, reader)
