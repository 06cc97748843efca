"""The interface of model runtimes, and the table of all runtimes. Each runtime is a module of this
package that loads and runs models."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass
from functools import partial, reduce
from importlib.machinery import PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from batchinference.pipeline.errors import (
    PIPELINE_EXTRA,
    RUNTIMES_EXTRA,
    VISION_EXTRA,
    VLLM_PACKAGE,
    ModelLoad,
    describe,
    require_package,
)
from batchinference.pipeline.runtimes.device import Device
from batchinference.spec.models.generation import GeneratingModel
from batchinference.spec.profiles import OTHER_IMAGES

if TYPE_CHECKING:
    import pyarrow as pa

    from batchinference.spec.models import Model


class Runtime(Protocol):
    """A loaded model."""

    def __call__(self, inputs: dict[str, np.ndarray]) -> Any:
        """Return the results for a batch: an array (or Arrow array) whose first axis is the row.
        `inputs` maps the model's input names to arrays of shape rows x the column's own shape, or
        to lists if `model.uses_texts`. A runtime that detects errors per row returns a list. In
        this list, an exception replaces the result of a failed row. If the call itself raises an
        error that may be about a row, the caller splits the batch in halves and calls again. The
        runtime of a model with `tokenized_inputs` has a second parameter `prepared`: the token
        columns of `steps.tokenization`. The runtime ignores columns of other tokenizers."""


def load_callable(path: str) -> Any:
    """Return the object at `module:name`. Raises ModelLoad if it cannot be loaded."""
    module_name, _, name = path.partition(":")
    try:
        return reduce(getattr, name.split("."), importlib.import_module(module_name))
    except Exception as error:  # importing a module can raise any error
        raise ModelLoad(
            f"cannot load '{path}': {describe(error)}. The module must be in "
            "the directory of the job's file, be installed, or be in the image"
        ) from error


@dataclass(frozen=True)
class Entry:
    """The location of a runtime: a module of this package, and the name of a class or factory
    function in it. The runtime imports `library`, which the pip package `package` provides. If
    `has_check` is true, the module has a function `check_model`, which raises ModelLoad for an
    invalid model without loading the model."""

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
    """Raise ModelLoad if the runtime's library is missing or hidden by a file of the user, or if
    the runtime does not support the model. Do nothing if the library is missing here and other pods
    of the job have other images, which may contain the library."""
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
    """Return the numbers of tokens of prompts without nulls; None if only a loaded model knows."""
    find = getattr(_module_of(model), "prompt_lengths", None)
    return cast(list[int] | None, find(model, rows) if find else None)


def _module_of(model: Model) -> ModuleType:
    return importlib.import_module(f"{__name__}.{RUNTIMES[model.runtime].module}")
