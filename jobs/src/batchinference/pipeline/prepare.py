"""All that is done before the first row is read, so that what cannot work is told at once."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from batchinference.pipeline.attempt import Attempt
from batchinference.pipeline.failures import BadInput, BadOutput, ModelLoad
from batchinference.pipeline.job_input import JobInput, open_input
from batchinference.pipeline.layout import Layout
from batchinference.pipeline.output import begin
from batchinference.pipeline.owner import is_complete
from batchinference.pipeline.sizing import RowCount, Sizing, sizing_of
from batchinference.pipeline.steps.nearest import NearestRows
from batchinference.plan.columns import check_columns
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.models import Model
from batchinference.spec.secrets import without_secrets
from batchinference.spec.steps import Step


@dataclass(frozen=True)
class Prepared:
    """A job that can begin."""

    input: JobInput
    count: RowCount | None
    sizing: Sizing
    attempt: Attempt


@dataclass(frozen=True)
class NothingToDo:
    """The output is there. `since` says what of the input is not in it, if anything."""

    since: str = ""


def prepare(spec: BatchInferenceSpec, layout: Layout) -> Prepared | NothingToDo:
    """Check the steps, freeze the input and open the output, unless that is complete.

    Raises JobFailure that says what is missing.
    """
    for step in spec.steps:
        check_step(step)
    given = open_input(spec.read)
    _check_apart(given, layout)
    if problems := check_columns(spec, given.columns()):
        raise BadInput("; ".join(map(str, problems)))
    count = given.count()
    attempt = begin(spec.write, layout)
    if attempt is None:
        return NothingToDo(_changed(given, layout))
    layout.input.write(given.serialized())
    layout.spec.write(json.dumps(without_secrets(spec), indent=2).encode())
    return Prepared(given, count, sizing_of(given, spec.read, count), attempt)


def _changed(given: JobInput, layout: Layout) -> str:
    """How the input differs from that of the complete output."""
    done = next((one for one in (layout, layout.whole) if is_complete(one)), None)
    if done is None or not done.input.exists():
        return ""
    before, now = (pq.read_table(pa.BufferReader(content)).to_pylist()
                   for content in (done.input.read(), given.serialized()))  # fmt: skip
    if before == now:
        return ""
    return (
        f"the input has changed since ({len(before)} parts then, {len(now)} now) and what is new "
        "is not in it: for that, write a job over the new files alone, with write.mode append"
    )


def check_step(step: Step) -> None:
    """Raise ModelLoad when a step's model or code is plainly not there, and BadInput when the
    output that it searches is not; nothing is loaded."""
    if step.model is not None:
        _check_model(step.name, step.model)
    elif step.python is not None:
        _check_module(step.name, step.python.callable)
    elif step.nearest is not None:
        NearestRows(step.name, step.nearest)


def _check_model(step: str, model: Model) -> None:
    from batchinference.pipeline.runtimes import check_runtime
    from batchinference.pipeline.runtimes.sources import check

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
            f"step '{step}': there is no module '{module}'. It must lie beside the job's file, be "
            "installed, or be in the image"
        )


def _check_apart(given: JobInput, layout: Layout) -> None:
    """Raise BadOutput when input lies where output goes: an attempt removes the one before it."""
    for place in (layout.output, layout.errors):
        if (inside := given.below(place)) is not None:
            raise BadOutput(
                f"'{place.uri}' is where output goes and holds a file of the input, {inside}: "
                "choose another write.path or errors.path"
            )
