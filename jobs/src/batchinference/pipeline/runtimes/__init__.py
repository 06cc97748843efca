"""Model runtimes. Each module has a class that loads a model and runs it on batches."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, cast

from batchinference.pipeline.errors import (
    PIPELINE_EXTRA,
    RUNTIMES_EXTRA,
    VISION_EXTRA,
    ModelLoad,
    require_package,
)
from batchinference.pipeline.runtimes.base import Runtime
from batchinference.pipeline.runtimes.device import Device

if TYPE_CHECKING:
    from batchinference.spec.models import Model


@dataclass(frozen=True)
class Entry:
    """The location of a runtime: a module of this package, and the name of a class or factory
    function in it. `library` is the library that the runtime imports, and `package` is the pip
    package that provides it. If `checks` is true, the module has a function `checks`, which
    validates a model without loading it."""

    module: str
    name: str
    library: str
    package: str
    checks: bool = False


RUNTIMES = {
    "http": Entry("http.client", "HttpRuntime", "aiohttp", RUNTIMES_EXTRA, checks=True),
    "keras": Entry("keras", "KerasRuntime", "keras", RUNTIMES_EXTRA, checks=True),
    "onnx": Entry("onnx", "OnnxRuntime", "onnxruntime", RUNTIMES_EXTRA),
    "sentenceTransformers": Entry(
        "sentence_transformers",
        "SentenceTransformersRuntime",
        "sentence_transformers",
        RUNTIMES_EXTRA,
    ),
    "torch": Entry("torch", "TorchRuntime", "torch", PIPELINE_EXTRA),
    "torchvision": Entry(
        "torchvision", "TorchvisionRuntime", "torchvision", VISION_EXTRA, checks=True
    ),
    "transformers": Entry("transformers", "load_transformers", "transformers", PIPELINE_EXTRA),
    # not one class in one actor, but several Ray Data operators: see runtimes/vllm
    "vllm": Entry("", "", "vllm", "ray[llm]"),
}
"""Maps runtime names in the specification to runtimes. A module is imported when it is needed."""


def check_runtime(model: Model) -> None:
    """Raise ModelLoad if the runtime's library is missing or does not support the model."""
    _check_library(model)
    if RUNTIMES[model.runtime].checks:
        _module_of(model).checks(model)


def _check_library(model: Model) -> None:
    entry = RUNTIMES[model.runtime]
    require_package(f"the runtime '{model.runtime}'", entry.library, entry.package, ModelLoad)


def load_runtime(model: Model, device: Device) -> Runtime:
    """Return a model, loaded and ready on a device. Raises ModelLoad if its library is missing."""
    _check_library(model)
    runtime = getattr(_module_of(model), RUNTIMES[model.runtime].name)
    return cast(Runtime, runtime(model, device))


def _module_of(model: Model) -> ModuleType:
    return importlib.import_module(f"{__name__}.{RUNTIMES[model.runtime].module}")


__all__ = ["Runtime", "check_runtime", "load_runtime"]
