"""The interface of model runtimes. Each runtime is a module of this package that loads and runs
models; `kinds` has the table of all runtimes."""

from __future__ import annotations

import importlib
from functools import reduce
from typing import Any, Protocol

import numpy as np

from batchinference.pipeline.errors import ModelLoad, describe


class Runtime(Protocol):
    """A loaded model."""

    def __call__(self, inputs: dict[str, np.ndarray]) -> Any:
        """Return the results for a batch: an array (or Arrow array) whose first axis is the row.
        `inputs` maps the model's input names to arrays of shape rows x the column's own shape, or
        to lists if `model.uses_texts`. A runtime that detects errors per row returns a list. In
        this list, a failed row has an exception instead of a result. If the call raises an error
        that may be about a row, the caller splits the batch in halves and calls again. The runtime
        of a model with `tokenized_inputs` has a second parameter `prepared`: the token columns of
        `steps.tokenization`. The runtime ignores columns of other tokenizers."""


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
