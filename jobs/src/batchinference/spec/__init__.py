"""The specification: pydantic models, what is wrong with a document, and what is made of them."""

from batchinference.spec.job import (
    API_VERSION,
    GROUP,
    KIND,
    PLURAL,
    VERSION,
    BatchInference,
    BatchInferenceSpec,
)
from batchinference.spec.parse import load_documents, parse, parse_cluster, parse_one
from batchinference.spec.problems import Problem, SpecError

__all__ = [
    "API_VERSION",
    "GROUP",
    "KIND",
    "PLURAL",
    "VERSION",
    "BatchInference",
    "BatchInferenceSpec",
    "Problem",
    "SpecError",
    "load_documents",
    "parse",
    "parse_cluster",
    "parse_one",
]
