"""Jobs in which an input row becomes several rows or none. All input rows are accounted for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from batchinference.spec.progress import Counts
from support.documents.minimal import Document
from support.jobs.on_ray import errors_of, job_document, run_job, write_lines
from support.jobs.without_ray import run_without_ray
from support.outputs.rows import rows_of
from support.outputs.verify_command import verified

pytestmark = pytest.mark.usefixtures("own_code")

ENDS = ["", "", "", " bad", *[""] * 16]
LINES = {f"{name}.txt": [f"{name} w{n % 7}{ENDS[n % 20]}" for n in range(40)] for name in "abc"}


def steps(*kinds: Document) -> list[Document]:
    return [{"name": f"step-{number}", **kind} for number, kind in enumerate(kinds)]


def own(name: str, **fields: Any) -> Document:
    return {"python": {"callable": f"own_code:{name}", **fields}}


@pytest.mark.usefixtures("ray")
def test_exploded_rows_are_written_and_counted_once(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in", LINES)
    chain = steps(
        own("words", method="flatMap"),  # two or three rows per input row
        own("letters", method="map"),  # one list per row; fails on "bad"
        {"explode": {"column": "letters"}},
        {"filter": "letters != 'w'"},
        {**own("Same"), "replicas": {}, "batchSize": 37},
        {"renameColumns": {"letters": "letter"}},
    )
    job = job_document("grow", source, tmp_path / "out", steps=chain, errors={"maxRows": 100})
    run = run_job(job)
    assert run.report.message is None
    # each line yields its name (one letter) and `wN`, of which only N remains; `bad` fails
    assert run.counts == (120, 240, 6, 120)
    rows = rows_of(tmp_path / "out")
    assert sorted(row["letter"] for row in rows) == sorted(
        letter for lines in LINES.values() for line in lines for letter in line.split()[0] + line[3]
    )
    errors = errors_of(tmp_path / "out")
    assert {error["row"] % 20 for error in errors} == {3}
    assert {error["step"] for error in errors} == {"step-1"}
    assert verified(tmp_path / "out").result == "proven"


def test_percent_limit_refers_to_input_rows(tmp_path: Path) -> None:
    """The rows are divided so finely that no write task holds a complete one."""
    source = write_lines(tmp_path / "in", {"a.txt": [f"{'w ' * 40}bad" if n == 7 else "w " * 41
                                                     for n in range(10)]})  # fmt: skip
    chain = steps(
        own("words", method="flatMap"),
        {**own("Same"), "replicas": {}, "batchSize": 37},
        own("letters", method="map"),
    )
    job = job_document("fine", source, tmp_path / "out", steps=chain, errors={"maxPercent": 10})
    report = run_without_ray(job)
    assert report.message is None
    assert report.counts == Counts(read=10, written=10 * 41 - 1, failed=1)
    assert verified(tmp_path / "out").result == "proven"
