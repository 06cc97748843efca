"""Parsed specifications and steps, for suites that do not test the parser."""

from __future__ import annotations

from typing import Any

from batchinference.spec import BatchInference, BatchInferenceSpec, parse
from batchinference.spec.steps import Step
from support.documents.minimal import Document, document


def job(name: str = "job", **spec: Any) -> BatchInference:
    """Return a valid job. `spec` replaces the top-level fields of its specification."""
    return parse(document(name, **spec))


def spec_of(**spec: Any) -> BatchInferenceSpec:
    return job(**spec).spec


def steps_of(*steps: Document) -> list[Step]:
    return [Step.model_validate(step) for step in steps]


def filter_step(name: str = "keep", expression: str = "len(text) > 0") -> Document:
    return {"name": name, "filter": expression}


def drop_step(*columns: str, name: str = "drop") -> Document:
    return {"name": name, "dropColumns": list(columns)}


def select_step(*columns: str, name: str = "select") -> Document:
    return {"name": name, "selectColumns": list(columns)}


def label_step(column: str = "class", name: str = "label") -> Document:
    return {"name": name, "labelFromPath": {"column": column, "index": -2}}
