"""Objects of modules by their path."""

from __future__ import annotations

import importlib
from functools import reduce
from typing import Any

from batchinference.pipeline.errors import ModelLoad


def load_callable(path: str) -> Any:
    """The object at `module:name`. Raises ModelLoad that says what was not found."""
    module_name, _, name = path.partition(":")
    try:
        module = importlib.import_module(module_name)
        return reduce(getattr, name.split("."), module)
    except Exception as error:  # whatever the module does when it is imported
        raise ModelLoad(
            f"cannot load '{path}': {type(error).__name__}: {error}. The module must lie beside "
            "the job's file, be installed, or be in the image"
        ) from error
