"""Imports libraries and objects that a job names and that may not be installed."""

from __future__ import annotations

import importlib
import importlib.util
from functools import reduce
from typing import Any

from batchinference.pipeline.errors import JobFailure, ModelLoad

PIPELINE_EXTRA = "./jobs[pipeline]"
FORMATS_EXTRA = "./jobs[formats]"
RUNTIMES_EXTRA = "./jobs[runtimes]"
VISION_EXTRA = "./jobs[vision]"


def need(what: str, module: str, package: str, failure: type[JobFailure]) -> None:
    """Raise `failure` with the message of `missing` if the module is not installed."""
    if importlib.util.find_spec(module) is None:
        raise failure(missing(what, module, package))


def missing(what: str, module: str, package: str) -> str:
    """Return a message that names the missing module and the pip command that installs it.

    This program is in no package registry, so its extras are installed from its repository."""
    library = module.replace("_", "-")
    where = " in a checkout of the repository of BatchInference" if package.startswith(".") else ""
    return f"{what} needs the package {library}: pip install '{package}'{where}, or use the image"


def load_callable(path: str) -> Any:
    """Return the object at `module:name`. Raises ModelLoad if it cannot be loaded."""
    module_name, _, name = path.partition(":")
    try:
        module = importlib.import_module(module_name)
        return reduce(getattr, name.split("."), module)
    except Exception as error:  # importing a module can raise any error
        raise ModelLoad(
            f"cannot load '{path}': {type(error).__name__}: {error}. The module must be in "
            "the directory of the job's file, be installed, or be in the image"
        ) from error
