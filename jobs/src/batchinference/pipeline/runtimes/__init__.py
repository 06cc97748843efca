"""One module a model runtime: a class that loads a model and runs it over batches."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from typing import cast

from batchinference.pipeline.devices import Device
from batchinference.pipeline.failures import ModelLoad
from batchinference.pipeline.runtimes.base import Runtime
from batchinference.spec.models import Model


@dataclass(frozen=True)
class Entry:
    """Where a runtime is: a class of a module in this package. `library` is what it imports, and
    `extra` the one of this package that installs it."""

    module: str
    name: str
    library: str
    extra: str


RUNTIMES = {
    "http": Entry("http", "HttpRuntime", "aiohttp", "runtimes"),
    "torch": Entry("torch", "TorchRuntime", "torch", "pipeline"),
    "transformers": Entry("transformers", "TransformersRuntime", "transformers", "pipeline"),
}
"""The runtimes by their names in the specification. A module is imported when a model needs it."""


def check_library(model: Model) -> None:
    """Raise ModelLoad that says what to install when the runtime's library is missing."""
    entry = RUNTIMES[model.runtime]
    if importlib.util.find_spec(entry.library) is None:
        raise ModelLoad(
            f"the runtime '{model.runtime}' needs the package {entry.library}: "
            f"pip install 'batchinference[{entry.extra}]', or an image that has it"
        )


def load_runtime(model: Model, device: Device) -> Runtime:
    """A model, loaded and ready on a device."""
    check_library(model)
    entry = RUNTIMES[model.runtime]
    module = importlib.import_module(f"{__name__}.{entry.module}")
    return cast(Runtime, getattr(module, entry.name)(model, device))


__all__ = ["Runtime", "check_library", "load_runtime"]
