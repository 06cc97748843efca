"""The table of all runtimes. A module is imported when it is needed."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass
from functools import partial
from importlib.machinery import PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, cast

from batchinference.pipeline.errors import (
    PIPELINE_EXTRA,
    RUNTIMES_EXTRA,
    VISION_EXTRA,
    VLLM_PACKAGE,
    ModelLoad,
    require_package,
)
from batchinference.pipeline.runtimes import Runtime
from batchinference.pipeline.runtimes.device import Device
from batchinference.spec.models.generation import GeneratingModel
from batchinference.spec.profiles import OTHER_IMAGES

if TYPE_CHECKING:
    import pyarrow as pa

    from batchinference.spec.models import Model


@dataclass(frozen=True)
class Entry:
    """The location of a runtime: a module of this package, and the name of a class or function in
    it. The pip package `package` provides `library`, which the runtime imports. With `has_check`,
    the module has a function `check_model` that raises ModelLoad for an invalid model."""

    module: str
    name: str
    library: str
    package: str
    has_check: bool = False


RUNTIMES = {
    "http": Entry("http_client", "HttpRuntime", "aiohttp", RUNTIMES_EXTRA, has_check=True),
    "onnx": Entry("onnx", "OnnxRuntime", "onnxruntime", RUNTIMES_EXTRA),
    "sentenceTransformers": Entry(
        "sentence_transformers",
        "SentenceTransformersRuntime",
        "sentence_transformers",
        RUNTIMES_EXTRA,
    ),
    "torch": Entry("torch", "TorchRuntime", "torch", PIPELINE_EXTRA),
    "torchvision": Entry(
        "torchvision", "TorchvisionRuntime", "torchvision", VISION_EXTRA, has_check=True
    ),
    "transformers": Entry(
        "transformers", "load_transformers", "transformers", PIPELINE_EXTRA, has_check=True
    ),
    "vllm": Entry("vllm", "load_vllm", "vllm", VLLM_PACKAGE, has_check=True),
}
"""The runtimes by their name in the specification. A module is imported when it is needed."""


def check_runtime(model: Model) -> None:
    """Raise ModelLoad if the runtime's library is missing or hidden by a file of the user. Also
    raise it if the runtime does not support the model. Check nothing if the library is missing
    here, but may be in the images of other pods of the job."""
    library = RUNTIMES[model.runtime].library
    if os.environ.get(OTHER_IMAGES) and importlib.util.find_spec(library) is None:
        return
    _check_library(model)
    check_hidden(library)
    if RUNTIMES[model.runtime].has_check:
        _module_of(model).check_model(model)


def check_hidden(library: str) -> None:
    """Raise ModelLoad if a user file, such as `torch.py` beside the job, hides `library` or torch.
    Packages that Ray needs are checked in `shadowing_files`."""
    installed = [path for path in sys.path if _is_installed(path)]
    for module in (library, "torch"):
        spec = PathFinder.find_spec(module, sys.path)
        origin = spec.origin if spec else None
        if origin and not _is_installed(origin) and PathFinder.find_spec(module, installed):
            raise ModelLoad(f"'{origin}' hides the package '{module}'. Rename it")


def _is_installed(path: str) -> bool:
    return not {"site-packages", "dist-packages"}.isdisjoint(path.split(os.sep))


def _check_library(model: Model) -> None:
    entry = RUNTIMES[model.runtime]
    require_package(f"the runtime '{model.runtime}'", entry.library, entry.package, ModelLoad)


def load_runtime(model: Model, device: Device) -> Runtime:
    """Load a model on a device, and return its runtime. Raises ModelLoad or errors of libraries."""
    _check_library(model)
    make = getattr(_module_of(model), RUNTIMES[model.runtime].name)
    if not isinstance(model, GeneratingModel) or model.answer_schema is None:
        return cast(Runtime, make(model, device))
    from batchinference.pipeline.runtimes.structured_answers import StructuredRuntime

    load = partial(make, device=device)
    return cast(Runtime, StructuredRuntime(model, model.answer_schema, load))


def prompt_lengths(model: Model, rows: pa.Table) -> list[int] | None:
    """Return the number of tokens of each prompt, without rows that have nulls. Return None if only
    a loaded model knows these numbers."""
    find = getattr(_module_of(model), "prompt_lengths", None)
    return cast(list[int] | None, find(model, rows) if find else None)


def _module_of(model: Model) -> ModuleType:
    return importlib.import_module(f"{__package__}.{RUNTIMES[model.runtime].module}")
