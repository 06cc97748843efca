"""Model runtimes: their interface, and one module per runtime that loads and runs a model."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Mapping
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

Batch = dict[str, np.ndarray]


class Runtime(Protocol):
    """A loaded model."""

    def __call__(self, inputs: dict[str, np.ndarray]) -> Any:
        """Return the results for a batch: an array (or Arrow array) whose first axis is the row.

        `inputs` maps the model's input names to arrays of shape rows x the column's own shape.
        A runtime that detects errors per row returns a list instead. In this list, an exception
        replaces the result of a failed row. If the call itself raises, the batch is split in
        halves and run again to find the row that causes the error.

        The runtime of a model with `tokenized_inputs` has a second parameter `prepared`: the
        columns that `load_preparation` makes, of which it ignores those that are not for it.
        """


def numbers(name: str, values: np.ndarray) -> np.ndarray:
    """Return the values of an input as one numeric array of shape rows x any shape.

    Raises TypeError if the rows have different shapes or are not numbers.
    """
    values = _stacked(values)
    if values.dtype.kind not in "biufc":
        raise TypeError(
            f"input '{name}' has rows of different shapes or no numbers: a tensor needs "
            "numbers of one shape"
        )
    return values


def _stacked(values: np.ndarray) -> np.ndarray:
    """Return rows of equal shape, nested to any depth, as one array; other values unchanged."""
    if values.dtype != object:
        return values
    rows = [_stacked(row) if isinstance(row, np.ndarray) else row for row in values]
    return np.stack(rows) if len({np.shape(row) for row in rows}) == 1 else values


def in_parts(run: Callable[[Batch], np.ndarray], inputs: Batch, rows: int | None) -> np.ndarray:
    """Run a model on a batch in parts of `rows` rows and return the results: rows x any shape.

    `rows` is the fixed batch size of the model; None if it accepts any batch size. The last part
    is padded to `rows` with copies of the last row.
    """
    if rows is None:
        return run(inputs)
    count = len(next(iter(inputs.values())))
    parts = []
    for start in range(0, count, rows):
        taken = np.minimum(np.arange(start, start + rows), count - 1)
        parts.append(run({name: values[taken] for name, values in inputs.items()}))
    return np.concatenate(parts)[:count]


def check_image(image: Any) -> None:
    """Raise TypeError unless the value is an image of height x width x 3, uint8."""
    if not isinstance(image, np.ndarray):
        raise TypeError(f"expected an image, got {type(image).__name__}")
    if image.ndim != 3 or image.shape[-1] != 3 or image.dtype != np.uint8:
        raise TypeError(
            f"expected an image of height x width x 3, uint8, got {image.shape}, {image.dtype}: "
            "options.mode: RGB makes the reader give such images"
        )


def chosen(output: Any, name: str | None) -> Any:
    """Return one output of a model: `name` is a key of a dict or a position in a list or tuple.

    Any other value is the only output and is returned as is. Raises ModelLoad if the model has no
    output `name`, or if it has several outputs and `name` is None.
    """
    if isinstance(output, Mapping):
        outputs = {str(key): value for key, value in output.items()}
    elif isinstance(output, list | tuple):
        outputs = {str(position): value for position, value in enumerate(output)}
    else:
        return output
    return outputs[output_name(outputs, name)]


def output_name(outputs: Iterable[str], wanted: str | None) -> str:
    """Return the wanted output, or the only one. Raises ModelLoad if there is no such output."""
    names = list(outputs)
    if wanted is None and len(names) == 1:
        return names[0]
    if wanted is None or wanted not in names:
        problem = "the model has several outputs" if wanted is None else f"no output '{wanted}'"
        raise ModelLoad(f"outputName: {problem}. Name one of {', '.join(names)}")
    return wanted


def check_input_names(model: Iterable[str], configured: Iterable[str]) -> None:
    """Raise ModelLoad if the configured input names differ from the input names of the model."""
    if set(model) != set(configured):
        takes, names = (", ".join(sorted(found)) for found in (model, configured))
        raise ModelLoad(f"inputs: the model takes {takes}, not {names}. Use the model's names")


def load_callable(path: str) -> Any:
    """Return the object at `module:name`. Raises ModelLoad if it cannot be loaded."""
    module_name, _, name = path.partition(":")
    try:
        module = importlib.import_module(module_name)
        return reduce(getattr, name.split("."), module)
    except Exception as error:  # importing a module can raise any error
        raise ModelLoad(
            f"cannot load '{path}': {describe(error)}. The module must be in "
            "the directory of the job's file, be installed, or be in the image"
        ) from error


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
    "http": Entry("http_client", "HttpRuntime", "aiohttp", RUNTIMES_EXTRA, checks=True),
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
    "transformers": Entry(
        "transformers", "load_transformers", "transformers", PIPELINE_EXTRA, checks=True
    ),
    "vllm": Entry("vllm", "load_vllm", "vllm", VLLM_PACKAGE, checks=True),
}
"""Maps runtime names in the specification to runtimes. A module is imported when it is needed."""


def check_runtime(model: Model) -> None:
    """Raise ModelLoad if the runtime's library is missing, does not support the model, or is hidden
    by a file of the user. If pods of the job have other images, one of them may have the library,
    and the model is checked there."""
    library = RUNTIMES[model.runtime].library
    if os.environ.get(OTHER_IMAGES) and importlib.util.find_spec(library) is None:
        return
    _check_library(model)
    check_hidden(library)
    if RUNTIMES[model.runtime].checks:
        _module_of(model).checks(model)


def check_hidden(library: str) -> None:
    """Raise ModelLoad if a file of the user, such as a `torch.py` beside the job, hides a library.
    Packages that Ray needs are checked in `shadows`."""
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
    """Return a model, loaded and ready on a device. Raises ModelLoad if its library is missing."""
    _check_library(model)
    make = getattr(_module_of(model), RUNTIMES[model.runtime].name)
    if not isinstance(model, GeneratingModel) or model.answer_schema is None:
        return cast(Runtime, make(model, device))
    from batchinference.pipeline.runtimes.structured_answers import StructuredRuntime

    load = partial(make, device=device)
    return cast(Runtime, StructuredRuntime(model, model.answer_schema, load))


def prompt_lengths(model: Model, rows: pa.Table) -> list[int] | None:
    """Return the number of tokens of the prompt of each row without loading the model; None if only
    the loaded model knows them."""
    find = getattr(_module_of(model), "prompt_lengths", None)
    lengths: list[int] | None = find(model, rows) if find else None
    return lengths


def _module_of(model: Model) -> ModuleType:
    return importlib.import_module(f"{__name__}.{RUNTIMES[model.runtime].module}")


__all__ = ["Runtime", "check_runtime", "load_runtime", "prompt_lengths"]
