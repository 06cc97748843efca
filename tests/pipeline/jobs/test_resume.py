"""An interrupted job is resumed: the output has each row exactly once, and committed rows are not
processed again."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from batchinference.pipeline.row_batch import MissingRows
from batchinference.spec.report import JobState
from support.documents.minimal import Document
from support.jobs.on_ray import Run, data_files, errors_of, job_document, run_job, write_lines
from support.outputs.builders import last_pass
from support.outputs.rows import rows_of

pytestmark = pytest.mark.usefixtures("ray")

FILES, ROWS = 5, 20
LINES = {f"{n}.txt": [f"{n}-{row}" for row in range(ROWS)] for n in range(FILES)}
TEXTS = [line for lines in LINES.values() for line in lines]


@dataclass
class FailingJob:
    """A job with a step that fails at one row until it is repaired. `keys` are its rows by file."""

    directory: Path
    keys: list[list[str]]
    column: str
    document: Document

    @property
    def output(self) -> Path:
        return self.directory / "out"

    def run_until_failure(self) -> Run:
        run = run_job(self.document)
        assert (run.report.state, run.report.reason) == (JobState.FAILED, "DeviceFailed")
        assert "the device is gone" in str(run.report.message)
        assert not (self.output / "_SUCCESS").exists()
        return run

    def missing_rows(self) -> MissingRows:
        return last_pass(self.document).load_committed().missing_rows(len(self.keys), None)

    def missing(self) -> list[str]:
        """Return the keys of the rows that the output lacks, completely or in part."""
        files = self.missing_rows().items()
        each = ((self.keys[file], gap) for file, gaps in files for gap in gaps)
        return [key for keys, (first, after) in each for key in keys[first:after]]

    def resume(self) -> tuple[Run, list[str]]:
        """Repair the step and run the job again. Return the run and the rows of its step."""
        (self.directory / "repaired").touch()
        (self.directory / "seen").unlink()
        run = run_job(self.document)
        seen = self.directory / "seen"
        return run, seen.read_text().split("\n")[:-1] if seen.exists() else []


def failing_job(
    directory: Path, keys: list[list[str]], at: str, column: str = "text", **fields: Any
) -> FailingJob:
    """Return a job whose step fails at the row that ends with `at`."""
    # Ray Data may give the write tasks of few CPUs none while another operator has a task
    commits = 1 if any("replicas" in step for step in fields.get("steps", [])) else 2
    arguments = {"directory": str(directory), "column": column, "at": at, "commits": commits}
    step = {"name": "breaks", "python": {"callable": "own_code:fail_at_row", "callArgs": arguments}}
    steps = [step, *fields.pop("steps", [])]
    job = job_document("broken", directory / "in", directory / "out", steps=steps, **fields)
    return FailingJob(directory, keys, column, job)


def of_text(directory: Path, **fields: Any) -> FailingJob:
    write_lines(directory / "in", LINES)
    return failing_job(directory, list(LINES.values()), at="3-7", **fields)


def test_resume_gives_the_result_of_an_uninterrupted_run(tmp_path: Path) -> None:
    ends = ["", " bad", "", " ex tra"]
    lines = {f"{n}.txt": [f"w{n}-{row}{ends[row % 4]}" for row in range(20)] for n in range(4)}
    steps: list[Document] = [
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
    result = []
    for name in ("undisturbed", "broken"):
        directory = tmp_path / name
        write_lines(directory / "in", lines)
        job = failing_job(directory, list(lines.values()), at="w3-17 bad", steps=steps,
                     errors={"maxRows": 50})  # fmt: skip
        if name == "broken":
            job.run_until_failure()
            assert 0 < len(job.missing()) < 80
        else:
            (directory / "seen").touch()
        run, _ = job.resume()
        assert run.report.message is None
        errors = errors_of(job.output)
        rows = Counter(str(row["letters"]) for row in rows_of(job.output))
        result.append((run.counts, rows, Counter(error["id"] for error in errors)))
    assert result[0] == result[1]
    assert max(result[0][2].values()) == 1


def test_rows_of_a_removed_file_are_processed_in_another_pass(tmp_path: Path) -> None:
    """A data file of the output is removed while the resumed job runs."""
    job = of_text(tmp_path)
    job.run_until_failure()
    removed = data_files(job.output)[0]

    def remove(report: object) -> None:
        if getattr(report, "pass_number", None) == 2:
            removed.unlink(missing_ok=True)

    (tmp_path / "repaired").touch()
    run = run_job(job.document, on_publish=remove)
    assert (run.report.state, run.report.pass_number) == (JobState.SUCCEEDED, 3)
    assert run.counts == (len(TEXTS), len(TEXTS), 0, 0)
    assert Counter(row["text"] for row in rows_of(job.output)) == Counter(TEXTS)
