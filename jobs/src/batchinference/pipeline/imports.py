"""Libraries and objects that a job names and that an installation may lack."""

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
    """Raise `failure`, in the words of `missing`, unless the module can be imported."""
    if importlib.util.find_spec(module) is None:
        raise failure(missing(what, module, package))


def missing(what: str, module: str, package: str) -> str:
    """That something needs a module, and what pip has to install for it. This program is on no
    registry of packages, so its extras are installed from its repository."""
    library = module.replace("_", "-")
    where = " in a checkout of the repository of BatchInference" if package.startswith(".") else ""
    return f"{what} needs the package {library}: pip install '{package}'{where}, or use the image"


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
