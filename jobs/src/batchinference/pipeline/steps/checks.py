"""Checks before a job runs that the models and the code of its steps exist."""

from __future__ import annotations

from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.runtimes import check_runtime
from batchinference.pipeline.runtimes.model_files import check
from batchinference.pipeline.steps.decode import decoder_of
from batchinference.pipeline.steps.nearest import NearestRows
from batchinference.pipeline.steps.signatures import signature_problem
from batchinference.pipeline.steps.user_modules import check_callable
from batchinference.spec.chunk import Chunk
from batchinference.spec.models import Model
from batchinference.spec.python_step import PythonStep
from batchinference.spec.steps import Step


def check_step(step: Step) -> None:
    """Raise ModelLoad if a step's model or code does not exist, and BadInput if the output that it
    searches does not exist. Nothing is loaded."""
    if step.model is not None:
        _check_model(step.name, step.model)
    elif step.python is not None:
        _check_python(step.name, step.python)
    elif step.decode is not None:
        decoder_of(step.name, step.decode)
    elif step.chunk is not None:
        _check_chunk(step.chunk)
    elif step.nearest is not None:
        NearestRows(step.name, step.nearest)


def _check_python(step: str, python: PythonStep) -> None:
    module = check_callable(step, python.callable)
    if module is not None and (problem := signature_problem(python, module)) is not None:
        raise ModelLoad(f"step '{step}': {problem}")


def _check_chunk(chunk: Chunk) -> None:
    if chunk.tokenizer is not None:
        files = ("tokenizer.json", "tokenizer_config.json")
        check(chunk.tokenizer, files, chunk.revision, chunk.storage)


def _check_model(step: str, model: Model) -> None:
    check_runtime(model)
    storage = model.storage_of_source
    for place in model.other_locations:
        check(place, storage=storage)
    if model.source_or_none is not None:
        check(model.source_or_none, model.HUB_FILES, model.revision_or_none, storage)
    if model.factory_or_none is not None:
        check_callable(step, model.factory_or_none)
