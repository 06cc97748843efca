"""Runs all checks and preparations before the first row is read, so that a job fails early."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from batchinference.pipeline.commit.append import OutputTarget, previous_versions_of
from batchinference.pipeline.commit.heartbeat import ensure_not_running
from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.commit.lease import completed
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.commit.state import (
    OutputState,
    inspect_output,
    storage_errors_as_bad_output,
)
from batchinference.pipeline.errors import BadInput, BadOutput, ModelLoad
from batchinference.pipeline.execution.attempt_run import AttemptRun
from batchinference.pipeline.input.base import NOTHING, JobInput
from batchinference.pipeline.input.listing import STATS
from batchinference.pipeline.input.open import open_input
from batchinference.pipeline.input.planning import sizing_of
from batchinference.pipeline.input.snapshot import (
    NoNewFiles,
    ProcessedFiles,
    ResumedInput,
    digest,
    read_snapshot,
    read_snapshot_with_digest,
)
from batchinference.pipeline.output.tables import table_of
from batchinference.pipeline.steps.nearest import NearestRows
from batchinference.pipeline.storage.arrow_files import read_table
from batchinference.plan.columns import check_columns
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.models import Model
from batchinference.spec.read import ReadFiles
from batchinference.spec.secrets import without_secrets
from batchinference.spec.steps import Step


@dataclass(frozen=True)
class AlreadyComplete:
    """The output is complete. `done` is its layout, or None if it belongs to another job.

    `since` says which part of the input is not in the output, if any."""

    done: Layout | None
    since: str = ""


def prepare(
    spec: BatchInferenceSpec,
    target: OutputTarget,
    job: str = "",
    load: Callable[[], None] | None = None,
) -> AttemptRun | AlreadyComplete:
    """Check the steps, write the input snapshot and open the output, unless that is complete.

    `job` identifies this job among others that write to the output. `load` is called before a
    complete output is removed, and raises if the steps cannot be loaded. Raises JobFailure that
    says what is missing.
    """
    for step in spec.steps:
        check_step(step)
    try:
        return _prepare(spec, target, job, load)
    except NoNewFiles:
        return AlreadyComplete(target.complete[0], "there are no new files in its input")


def _prepare(
    spec: BatchInferenceSpec, target: OutputTarget, job: str, load: Callable[[], None] | None
) -> AttemptRun | AlreadyComplete:
    layout = target.layout
    state, start = _inspect(spec, layout, job)
    given = open_input(spec.read, _before(spec, layout, start) or _known(spec, target))
    _check_apart(given, layout)
    with storage_errors_as_bad_output(spec.write):
        _check_new(given, previous_versions_of(spec, job))
    if problems := check_columns(spec, given.columns()):
        raise BadInput("; ".join(map(str, problems)))
    if state is None:
        done = completed(layout)
        return AlreadyComplete(done, _changed(given, target.complete or [done]) if done else "")
    if start is not None and not given.continues(start.input):
        _check_unfinished(spec, state)
        start = None
    count = given.count(start.ends if start else NOTHING)
    sizing = sizing_of(given, spec.read, count)
    if start is None and load is not None and _replaces(spec, state):
        load()
    with storage_errors_as_bad_output(spec.write):
        if start is None:
            state = state.claim_and_clear(job)
            start, gaps = _begin(layout, given), None
        else:
            gaps = start.gaps(len(given), given.rows_each)
        layout.spec.write(json.dumps(without_secrets(spec), indent=2).encode())
        return AttemptRun(given, count, sizing, state.begin_attempt(start, job), start, gaps)


def _inspect(
    spec: BatchInferenceSpec, layout: Layout, job: str
) -> tuple[OutputState | None, Snapshot | None]:
    """Return the state of the output, and the snapshot from which an attempt resumes."""
    resume, retry = spec.resume, spec.errors.retry
    table = table_of(spec.write)
    state = inspect_output(spec.write, layout, table, resume=resume, retry=retry, job=job)
    with storage_errors_as_bad_output(spec.write):
        if state is None:
            return None, None
        ensure_not_running(layout, state.lease, job)
        return state, state.load_committed()


def _replaces(spec: BatchInferenceSpec, state: OutputState) -> bool:
    with storage_errors_as_bad_output(spec.write):
        return state.replaces


def _before(
    spec: BatchInferenceSpec, layout: Layout, start: Snapshot | None
) -> ResumedInput | None:
    """Return the input snapshot of an output that is resumed; None if it is not resumed."""
    if start is None or not isinstance(spec.read, ReadFiles):
        return None
    frozen = read_snapshot_with_digest(layout.input, start.input, spec.read.storage)
    return ResumedInput(frozen, lambda rows_each: start.gaps(len(frozen), rows_each))


def _known(spec: BatchInferenceSpec, target: OutputTarget) -> ProcessedFiles | None:
    """Return the files whose rows are already in the output; None if all files must be read."""
    if not isinstance(spec.read, ReadFiles) or not (lists := target.processed):
        return None
    return ProcessedFiles([read_snapshot(one, spec.read.storage) for one in lists])


def _check_unfinished(spec: BatchInferenceSpec, state: OutputState) -> None:
    """Raise BadInput if a retry of failed rows would start a complete output over."""
    layout = state.layout
    retried = layout.end.exists() and Snapshot.read(layout.end, layout.key).attempt
    if layout.success.exists() or (retried and retried < state.attempts):
        raise BadInput(
            f"errors.retry: read.format '{spec.read.format}' cannot read only the failed rows, "
            "because it is unknown whether the source has changed. The output was not changed. "
            "Remove errors.retry, or process all rows again with write.mode: overwrite"
        )


def _begin(layout: Layout, given: JobInput) -> Snapshot:
    """Write the input snapshot of an output that starts over, and return the empty snapshot."""
    content = given.serialized()
    layout.input.write(content)
    return Snapshot(layout.key, digest(content))


def _changed(given: JobInput, complete: Sequence[Layout]) -> str:
    """Return how the input differs from that of the complete output, as text; empty if equal."""
    contents = [one.input.read() for one in complete if one.input.exists()]
    try:
        before = {part for content in contents for part in _parts(content)}
    except pa.ArrowInvalid:
        return "its input.parquet is damaged, so it is unknown whether the input has changed"
    now = _parts(given.serialized())
    if not contents or before == set(now):
        return ""
    return (
        f"the input has changed since ({len(before)} parts then, {len(now)} now) and what is new "
        "is not in it: write.mode append adds the rows of new files"
    )


def _parts(content: bytes) -> list[tuple[object, ...]]:
    """Return what identifies each part of an input."""
    table = read_table(pa.BufferReader(content))
    table = table.drop_columns([name for name in STATS.names if name in table.column_names])
    return list(zip(*table.to_pydict().values(), strict=True))


def _check_new(given: JobInput, previous: Sequence[Layout]) -> None:
    """Raise BadOutput if this job, before its spec changed, added rows of the same files."""
    if not previous:
        return
    paths = {part[0] for part in _parts(given.serialized())}
    for other in previous:
        known = (part[0] for part in _parts(other.input.read()))
        if (path := next((path for path in known if path in paths), None)) is not None:
            raise BadOutput(
                f"write.path '{other.output.uri}' holds rows of '{path}' by this job as it was "
                "before its spec changed: choose another path, set write.mode to overwrite, or "
                "give the job another metadata.name to have both"
            )


def check_step(step: Step) -> None:
    """Raise ModelLoad if a step's model or code does not exist, and BadInput if the output that it
    searches does not exist. Nothing is loaded."""
    if step.model is not None:
        _check_model(step.name, step.model)
    elif step.python is not None:
        _check_module(step.name, step.python.callable)
    elif step.nearest is not None:
        NearestRows(step.name, step.nearest)


def _check_model(step: str, model: Model) -> None:
    from batchinference.pipeline.runtimes import check_runtime
    from batchinference.pipeline.runtimes.model_files import check

    check_runtime(model)
    storage = model.storage_of_source
    for place in model.other_places:
        check(place, storage=storage)
    if model.source_or_none is not None:
        check(model.source_or_none, model.HUB_FILES, model.revision_or_none, storage)
    if model.factory_or_none is not None:
        _check_module(step, model.factory_or_none)


def _check_module(step: str, path: str) -> None:
    module = path.partition(":")[0]
    try:
        found = importlib.util.find_spec(module) is not None
    except ImportError:
        found = False
    if not found:
        raise ModelLoad(
            f"step '{step}': there is no module '{module}'. It must be in the directory of the "
            "job's file, be installed, or be in the image"
        )


def _check_apart(given: JobInput, layout: Layout) -> None:
    """Raise BadOutput if an input file is in an output path: attempts remove files there."""
    for place in (layout.output, layout.errors):
        if (inside := given.below(place)) is not None:
            raise BadOutput(
                f"'{place.uri}' is where output goes and holds a file of the input, {inside}: "
                "choose another write.path or errors.path"
            )
