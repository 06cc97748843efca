"""Jobs whose steps have a condition."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.documents.minimal import Document, document
from support.jobs.on_ray import write_lines
from support.jobs.without_ray import run_without_ray
from support.outputs.rows import rows_of

ROWS = 60
CODE = {"name": "tens", "when": "n % 3 == 0", "batchSize": 4}
TASK = {**CODE, "python": {"callable": "support.jobs.user_code:tens"}}
POOL = {**CODE, "python": {"callable": "support.jobs.user_code:Tens"}, "replicas": {"max": 1}}
LABEL = {"name": "label", "when": "tens > 300", "addColumns": {"size": "'large'"}}
EXPECTED = [
    {
        "n": n,
        "tens": 10 * n if n % 3 == 0 else None,
        "size": "large" if n > 30 and n % 3 == 0 else None,
    }
    for n in range(ROWS)
]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    lines = [json.dumps({"n": n}) for n in range(ROWS)]
    files = {f"{file}.jsonl": lines[ROWS * file // 3 : ROWS * (file + 1) // 3] for file in range(3)}
    return write_lines(tmp_path / "in", files)


def job(source: Path, step: dict[str, Any], **errors: Any) -> Document:
    write = {"format": "parquet", "path": str(source.parent / "out")}
    read = {"format": "json", "paths": [str(source)]}
    return document("when", read=read, steps=[step, LABEL], write=write, errors=errors)


@pytest.mark.parametrize("step", [TASK, POOL], ids=["one segment", "several"])
def test_skipped_rows_are_in_the_output_and_counted(source: Path, step: dict[str, Any]) -> None:
    limit = [{"name": "Skipped", "maxRows": 10}]
    first = run_without_ray(job(source, step, warnings=limit))
    assert first.reason == "TooManyErrors"
    report = run_without_ray(job(source, step))
    assert sorted(rows_of(source.parent / "out"), key=lambda row: row["n"]) == EXPECTED
    counts = {warning.step: warning.count for warning in report.warnings}
    assert counts == {"tens": 40, "label": sum(row["size"] is None for row in EXPECTED)}
