"""Libraries that a job needs and that an installation may lack."""

from __future__ import annotations

import importlib.util

from batchinference.pipeline.errors import JobFailure

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
