"""Checks the input, columns, models, code and output of a job before it runs.

Nothing is written, no user code runs, and no model is loaded."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from batchinference.pipeline.commit.append import plan_outputs
from batchinference.pipeline.commit.decision import decide, load_state
from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.error_attribution import root_cause
from batchinference.pipeline.errors import BadOutput, OutputInUse
from batchinference.pipeline.input.files import open_input
from batchinference.pipeline.output.tables import table_of
from batchinference.pipeline.prepare import (
    check_errors_path,
    check_input,
    check_step,
    request_of,
)
from batchinference.pipeline.storage.location import Location
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.problems import Problem
from batchinference.spec.steps import to_alias


def preflight(spec: BatchInferenceSpec, job: str = "") -> list[Problem]:
    """Return all problems that would end the job before it reads rows. Does not start Ray. `job` is
    the identity of the job."""
    steps = [
        problem
        for index, step in enumerate(spec.steps)
        for problem in _problems(
            f"spec.steps[{index}].{to_alias(step.kind)}", partial(check_step, step)
        )
    ]
    return [
        *steps,
        *_problems("", lambda: check_input(spec, open_input(spec.read), Layout.of(spec))),
        *_problems("", lambda: check_errors_path(Layout.of(spec))),
        *_problems("", lambda: _check_output(spec, job, read_code=not steps)),
    ]


def _problems(path: str, check: Callable[[], None]) -> Iterator[Problem]:
    try:
        check()
    except Exception as error:  # noqa: BLE001 - as in a run, storage and libraries raise any error
        yield Problem(path, root_cause(error).message)


def _check_output(spec: BatchInferenceSpec, job: str, *, read_code: bool) -> None:
    """Raise BadOutput if the job cannot or must not write to its output. Existing content is
    checked only with `read_code`, because the code hashes need all modules."""
    check_writable(Location(spec.write.path, spec.write.storage))
    if not read_code:
        return
    (target, *_) = plan_outputs(spec)
    request = request_of(spec, job)
    try:
        decide(load_state(target.layout, request, table_of(spec.write)), request)
    except OutputInUse:
        if spec.write.mode != "ignore":
            raise


def check_writable(place: Location) -> None:
    """Raise BadOutput if files cannot be created in a local directory, or in the nearest parent
    that exists."""
    if not place.local:
        return
    parents = [Path(place.path), *Path(place.path).parents]
    existing = next(path for path in parents if path.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise BadOutput(
            f"spec.write.path: '{place.uri}' cannot be used: no file can be created in "
            f"'{existing}' ({error.strerror}). Choose another path, or change its permissions"
        ) from None
