"""An interrupted job is resumed: the output has each row exactly once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from batchinference.spec.report import JobState
from support.documents.minimal import Document
from support.jobs.on_ray import errors_of, job_document, run_job, write_lines
from support.outputs.builders import last_pass
from support.outputs.rows import rows_of

ENDS = ["", " bad", "", " ex tra"]
LINES = {f"{n}.txt": [f"w{n}-{row}{ENDS[row % 4]}" for row in range(20)] for n in range(4)}


def job(directory: Path) -> Document:
    """Return a job whose first step fails at one row, unless the file `repaired` exists."""
    source = write_lines(directory / "in", LINES)
    breaks = {"callable": "own_code:fail_at_row", "callArgs": {"directory": str(directory),
              "at": "w3-17 bad"}}  # fmt: skip
    steps: list[Document] = [
        {"name": "breaks", "python": breaks},
        {"name": "few", "filter": "not endswith(text, '0')"},
        {"name": "words", "python": {"callable": "own_code:words", "method": "flatMap"}},
        {
            "name": "blocks",
            "python": {"callable": "own_code:Same"},
            "replicas": {},
            "batchSize": 20,
        },
        {"name": "letters", "python": {"callable": "own_code:letters", "method": "map"}},
        {"name": "each", "explode": {"column": "letters"}},
    ]
    errors = {"maxRows": 50}
    return job_document("broken", source, directory / "out", steps=steps, errors=errors)


@pytest.mark.usefixtures("ray")
def test_resume_gives_the_result_of_an_uninterrupted_run(tmp_path: Path) -> None:
    result = []
    for name in ("undisturbed", "broken"):
        directory = tmp_path / name
        document = job(directory)
        if name == "broken":
            report = run_job(document).report
            assert (report.state, report.reason) == (JobState.FAILED, "DeviceFailed")
            assert "the device is gone" in str(report.message)
            assert not (directory / "out" / "_SUCCESS").exists()
            missing = last_pass(document).load_committed().missing_rows(len(LINES), None)
            assert missing not in ({}, {file: [(0, None)] for file in range(len(LINES))})
        (directory / "repaired").touch()
        run = run_job(document)
        assert run.report.message is None
        errors = errors_of(directory / "out")
        rows = Counter(str(row["letters"]) for row in rows_of(directory / "out"))
        result.append((run.counts, rows, Counter(error["id"] for error in errors)))
    assert result[0] == result[1]
    assert max(result[0][2].values()) == 1
