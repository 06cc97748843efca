"""The gate of a job: rows that are computed first, and what their results must be like."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.plan.column_checks import check_columns
from batchinference.spec import parse
from batchinference.spec.gate import Measure, parse_expectation
from support.documents.minimal import Document, document
from support.documents.refusals import refused

LABEL = {"name": "label", "addColumns": {"agree": "cheap == 'yes'"}}


def gated(expect: str = "mean(agree) > 0.9", write: Any = None, **gate: Any) -> Document:
    return document(
        read={"format": "text", "paths": ["in"]},
        steps=[LABEL],
        write=write or {"format": "parquet", "path": "out"},
        gate={"expect": expect, **({} if gate else {"rows": 100}), **gate},
    )


def test_expectation_is_a_condition_on_measures() -> None:
    expectation = parse_expectation("mean(agree) >= 0.9 and not fraction(col('a b') is None) > 0.1")
    assert expectation.measures == {
        "mean(agree)": Measure("mean", "agree"),
        "fraction(col('a b') is None)": Measure("fraction", "col('a b') is None"),
    }
    assert expectation.columns == {"agree", "a b"}
    assert parse_expectation("max(len(text)) < 3 * min(len(text))").columns == {"text"}


def test_expectation_that_is_nested_too_deeply_is_refused() -> None:
    assert "nested too deeply" in str(refused(gated("not " * 150 + "mean(a)")))


def test_columns_of_a_cascade_must_be_in_the_output() -> None:
    cascade = {"score": "cheap.score", "agree": "cheap.label == best", "precision": 0.95}
    step = {"name": "best", "addColumns": {"best": "'a'"}, "cascade": cascade}
    drop = {"name": "slim", "dropColumns": ["cheap"]}
    job = document(read={"format": "text", "paths": ["in"]}, steps=[step, drop])
    (problem,) = [p for p in check_columns(parse(job).spec, ["cheap"]) if "output" in p.message]
    assert problem.path == "spec.steps[0].cascade"
    assert "reads column 'cheap'" in problem.message


@pytest.mark.parametrize(
    ("write", "problem"),
    [
        ({}, ""),
        ({"columns": ["cheap"]}, "it reads column 'agree' of the output"),
        ({"partitionBy": ["agree"]}, "it reads column 'agree' of the output"),
    ],
)
def test_gate_reads_columns_of_the_files(write: dict[str, Any], problem: str) -> None:
    job = parse(gated(write={"format": "parquet", "path": "out", **write}))
    value = [value for value in check_columns(job.spec, ["cheap"]) if value.path.endswith("expect")]
    assert [problem in each.message for each in value] == ([True] if problem else [])
