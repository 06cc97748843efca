"""The spec of a job: pydantic models, their validation, and the schemas generated from them.

Names are imported on first use, because a worker process needs only a few of the modules.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batchinference.spec.job import API_VERSION, KIND, BatchInference, BatchInferenceSpec
    from batchinference.spec.problems import Problem, SpecError
    from batchinference.spec.yaml_documents import load_documents, parse, parse_defaults, parse_one

_MODULES = {
    **dict.fromkeys(("API_VERSION", "KIND", "BatchInference", "BatchInferenceSpec"), "job"),
    **dict.fromkeys(("Problem", "SpecError"), "problems"),
    **dict.fromkeys(("load_documents", "parse", "parse_defaults", "parse_one"), "yaml_documents"),
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
