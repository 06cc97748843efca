"""Expressions that do not suit the types of the input are refused before rows are read."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from batchinference.pipeline.steps.type_check import type_problems
from batchinference.spec.steps import Step

TYPES = {"year": pa.string(), "n": pa.int64(), "tags": pa.list_(pa.string())}


def problems(*steps: dict[str, Any]) -> list[str]:
    parsed = [Step.model_validate({"name": f"s{n}", **step}) for n, step in enumerate(steps)]
    return [str(problem) for problem in type_problems(parsed, TYPES)]


@pytest.mark.parametrize(
    "steps",
    [
        [{"filter": "year >= 2025"}],
        [{"addColumns": {"m": "n + 1"}}, {"filter": "m > 2 and year > 1"}],
        [{"renameColumns": {"year": "y"}}, {"filter": "y >= 2025"}],
        [{"dropColumns": ["n"]}, {"selectColumns": ["year"]}, {"addColumns": {"z": "year * 2"}}],
        [{"filter": "n"}],
    ],
)
def test_unsuitable_type_is_named_with_its_fix(steps: list[dict[str, Any]]) -> None:
    (message,) = problems(*steps)
    kind = next(iter(steps[-1]))
    assert message.startswith(f"spec.steps[{len(steps) - 1}].{kind}: step 's{len(steps) - 1}'")
    assert "read.options.types" in message
    assert " is string" in message or "n is int64" in message


@pytest.mark.parametrize(
    "steps",
    [
        [{"filter": "int(year) >= 2025 and len(tags) > 0"}],
        [{"filter": "unknown > 2"}, {"addColumns": {"n": "unknown + 1"}}, {"filter": "n == 'a'"}],
        [{"addColumns": {"year": "int(year)"}}, {"filter": "year >= 2025"}],
        [{"explode": {"column": "tags"}}, {"filter": "tags > 2"}],
    ],
)
def test_suitable_and_unknown_types_are_accepted(steps: list[dict[str, Any]]) -> None:
    assert problems(*steps) == []
