"""Models of the specification, loaded as by a replica on a CPU."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from batchinference.pipeline.runtimes import Runtime
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.runtimes.kinds import load_runtime
from batchinference.spec.models import Model


def model_of(runtime: str, inputs: tuple[str, ...], **fields: Any) -> Model:
    """Return a model whose inputs read the columns of the same names."""
    columns = {name: name for name in inputs}
    document = {"runtime": runtime, "inputs": columns, "output": "out", **fields}
    model: Model = TypeAdapter(Model).validate_python(document)
    return model


def loaded(runtime: str, inputs: tuple[str, ...], **fields: Any) -> Runtime:
    return load_runtime(model_of(runtime, inputs, **fields), Device())
