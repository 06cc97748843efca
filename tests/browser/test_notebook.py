"""Jobs in a notebook: one table for each run, nothing else, and legible in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.browser import PHONE
from support.notebooks import executed, page_of

CELLS = [
    """
import pandas as pd
from batchinference import Job, run
frame = pd.DataFrame({"text": ["a", "bb"]})
job = Job(frame, {"format": "parquet", "path": "out"},
          [{"name": "n", "python": {"callable": lambda row: {"n": len(row["text"])},
                                    "method": "map"}}])
job
""",
    "job.preview()",
    "run(job)",
    "result = run(job)",
    "result",
    "run(job, frame.head(1))",
]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    return executed(CELLS, tmp_path_factory.mktemp("notebook"))


def test_each_run_shows_one_table_and_no_other_output(outputs: list[list[Any]]) -> None:
    _, _, *runs, failed = outputs
    for cell in runs:
        tables = [each for each in cell if "<table>" in each.get("data", {}).get("text/html", "")]
        assert len(tables) == 1
        assert "succeeded" in tables[0]["data"]["text/html"]
        assert not [each for each in cell if each.get("name") == "stderr"]
    (error,) = (each for each in failed if each.output_type == "error")
    assert (error.ename, len(error.traceback)) == ("JobFailed", 1)


def test_a_job_is_yaml_and_a_preview_its_rows(outputs: list[list[Any]]) -> None:
    (job,), (*_, preview), *_ = outputs
    assert "callable: notebook_function:function" in job.data["text/html"]
    assert "<td>2</td>" in preview.data["text/html"]


def test_page_is_accessible_and_fits_a_phone(
    browser: Any, axe: str, tmp_path: Path, outputs: list[list[Any]]
) -> None:
    file = tmp_path / "notebook.html"
    file.write_text(page_of([each for cell in outputs for each in cell]), encoding="utf-8")
    page = browser.new_page(viewport=PHONE)
    page.goto(file.as_uri())
    page.evaluate(axe)
    assert page.evaluate("axe.run()")["violations"] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
