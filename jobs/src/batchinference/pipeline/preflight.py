"""Checks the input, columns, models, code and output of a job before it runs, for `validate`.

The output is not changed, no user code runs, and no model is loaded."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from batchinference.pipeline.commit.output_paths import Layout
from batchinference.pipeline.commit.output_state import load_state
from batchinference.pipeline.commit.output_targets import output_targets
from batchinference.pipeline.commit.start_or_resume import decide
from batchinference.pipeline.error_classification import root_cause
from batchinference.pipeline.errors import BadInput, BadOutput, JobFailure
from batchinference.pipeline.input.file_input import FileInput, open_input
from batchinference.pipeline.input.planning import sample
from batchinference.pipeline.input.signatures import HEAD_BYTES
from batchinference.pipeline.job_checks import (
    UnsuitableColumns,
    check_caches,
    check_errors_path,
    check_input,
    check_paths,
)
from batchinference.pipeline.output.tables.kinds import table_or_none
from batchinference.pipeline.pass_start import request_of
from batchinference.pipeline.steps import check_step
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.reachable import unreachable
from batchinference.plan.column_checks import replaced_columns
from batchinference.spec.file_extensions import COMPRESSIONS
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.problems import Problem
from batchinference.spec.read import ReadFiles, ReadVersioned
from batchinference.spec.steps import to_alias

_OFFLINE = (
    "Check the network, the proxy and storage.endpoint. To check only the fields: validate "
    "--fields-only"
)
COMPARED_FILES = 3
"""Number of input files whose first bytes are compared with the declared format."""


def preflight(
    spec: BatchInferenceSpec, job: str = "", note: Callable[[str], object] = str
) -> list[Problem]:
    """Return the problems that can be detected without running the job or starting Ray. If an
    object store does not answer, only this problem is returned. `job` is the identity of the job.
    `note` is called with each remark that is not a problem."""
    if silent := unreachable(_locations(spec)):
        return [Problem(f"spec.{name}", f"{why}. {_OFFLINE}") for name, why in silent.items()]
    problems = [
        Problem(f"spec.steps[{index}].{to_alias(step.kind)}", failure.message)
        for index, step in enumerate(spec.steps)
        if (failure := _failure_of(partial(check_step, step)))
    ]
    layout = Layout.of(spec)
    about_input = _failure_of(lambda: _check_input(spec, layout, note))
    # if code cannot be imported, there are no hashes to compare; and input files in the output
    # would look like files of another program
    reads_output = not problems and not isinstance(about_input, BadOutput)
    failures = (
        about_input,
        _failure_of(lambda: check_errors_path(layout)),
        _failure_of(lambda: check_caches(spec, layout)),
        _failure_of(lambda: _check_output(spec, layout, job, reads_content=reads_output)),
    )
    for failure in filter(None, failures):
        problems += _problems_of(failure)
    return problems


def _problems_of(failure: JobFailure) -> list[Problem]:
    if isinstance(failure, UnsuitableColumns):
        return failure.problems
    return [Problem("", failure.message)]


def _locations(spec: BatchInferenceSpec) -> dict[str, Location]:
    """Return the locations of the input, the models, the caches and the output, by field."""
    read, write, by_field = spec.read, spec.write, dict[str, Location]()
    if isinstance(read, ReadFiles | ReadVersioned):
        paths = read.locations.items()
        by_field = {f"read.{name}": Location(path, read.storage) for name, path in paths}
    for number, step in enumerate(spec.steps):
        if (source := step.facts.sources.get("source")) is not None:
            by_field[f"steps[{number}].model.source"] = Location(source.uri, step.facts.storage)
        if step.cache:
            by_field[f"steps[{number}].cache.path"] = Location(step.cache.path, step.cache.storage)
    return {**by_field, "write.path": Location(write.path, write.storage)}


def _failure_of(check: Callable[[], None]) -> JobFailure | None:
    try:
        check()
    except Exception as error:  # noqa: BLE001 - storage and libraries raise any error
        return root_cause(error)
    return None


def _check_input(spec: BatchInferenceSpec, layout: Layout, note: Callable[[str], object]) -> None:
    check_paths(spec.read, layout)
    source = open_input(spec.read)
    if isinstance(source, FileInput):
        _check_beginnings(source)
    check_input(spec, source, layout)
    for text in replaced_columns(spec, source.columns()):
        note(text)


def _check_beginnings(source: FileInput) -> None:
    """Raise BadInput if all uncompressed files of a sample begin like another format. Also raise it
    if a file with the ending `.gz` is not compressed, because its rows would fail in a run."""
    files = [
        source.snapshot.address(file) for file in sample(source.snapshot.files(), COMPARED_FILES)
    ]
    plain = [file for file in files if not file.path.endswith(tuple(COMPRESSIONS))]
    formats = [source.rows.reader.other_format(file.read(HEAD_BYTES)) for file in plain]
    if formats and all(formats):
        raise BadInput(f"read.paths: {plain[0].uri} is {formats[0]}")
    for file in files:
        if file.compression == "gzip" and not file.read(2).startswith(b"\x1f\x8b"):
            name = file.uri.rpartition(".")[0]
            raise BadInput(f"read.paths: {file.uri} is not compressed. Rename it to {name}")


def _check_output(
    spec: BatchInferenceSpec, layout: Layout, job: str, *, reads_content: bool
) -> None:
    """Raise BadOutput if the job cannot or must not write to its output. Existing content is only
    checked with `reads_content`."""
    check_writable(Location(spec.write.path, spec.write.storage))
    if not reads_content:
        return
    (target, *_) = output_targets(spec, layout)
    request = request_of(spec, job)
    decide(load_state(target.layout, request, table_or_none(spec.write), target.reader), request)


def check_writable(location: Location) -> None:
    """Raise BadOutput if a local directory, or its nearest existing parent, allows no new files."""
    if not location.local:
        return
    parents = [Path(location.path), *Path(location.path).parents]
    existing = next(path for path in parents if path.exists())
    if not existing.is_dir():
        problem = f"'{existing}' is a file, but must be a directory. Choose another path"
        raise BadOutput(f"spec.write.path: '{location.uri}' cannot be used: {problem}")
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise BadOutput(
            f"spec.write.path: '{location.uri}' cannot be used: no file can be created in "
            f"'{existing}' ({error.strerror}). Choose another path, or change its permissions"
        ) from None
