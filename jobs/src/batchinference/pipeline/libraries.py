"""Libraries that a job needs and that an installation may lack."""

from __future__ import annotations

import importlib.util

from batchinference.pipeline.failures import JobFailure

PIPELINE_EXTRA = "batchinference[pipeline]"
FORMATS_EXTRA = "batchinference[formats]"
RUNTIMES_EXTRA = "batchinference[runtimes]"
VISION_EXTRA = "batchinference[vision]"


def need(what: str, module: str, package: str, failure: type[JobFailure]) -> None:
    """Raise `failure`, in the words of `missing`, unless the module can be imported."""
    if importlib.util.find_spec(module) is None:
        raise failure(missing(what, module, package))


def missing(what: str, module: str, package: str) -> str:
    """That something needs a module, and what pip has to install for it."""
    library = module.replace("_", "-")
    return f"{what} needs the package {library}: pip install '{package}', or an image that has it"
