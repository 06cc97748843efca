"""Jobs with extreme input sizes: no rows, one row, very many files."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchinference.spec.report import JobState
from support.jobs.on_ray import data_files, job_document, run_in_process, run_job, write_lines
from support.outputs.rows import rows_of

pytestmark = pytest.mark.usefixtures("own_code")

LENGTH = {"name": "own", "python": {"callable": "own_code:length"}}


@pytest.mark.parametrize("files", [1, 5])
def test_empty_files_make_a_complete_and_empty_output(tmp_path: Path, files: int) -> None:
    source = write_lines(tmp_path / "in", {f"{n}.txt": [] for n in range(files)})
    run = run_in_process(job_document("empty", source, tmp_path / "out", steps=[LENGTH]))
    assert (run.report.state, run.counts) == (JobState.SUCCEEDED, (0, 0, 0, 0))
    assert run.report.progress is not None
    assert (run.report.progress.total, run.report.progress.percent) == (0, 100)
    assert rows_of(tmp_path / "out") == []


def test_empty_files_do_not_affect_other_files(tmp_path: Path) -> None:
    files = {f"{n}.txt": ["text"] * (n % 3) for n in range(20)}
    source = write_lines(tmp_path / "in", files)
    run = run_in_process(job_document("gaps", source, tmp_path / "out"))
    assert run.counts == (19, 19, 0, 0)


@pytest.mark.usefixtures("ray")
def test_many_small_files_become_fewer_output_files(tmp_path: Path) -> None:
    files = {f"{n % 7}/{n:03}.txt": [f"{n} first", f"{n} second"] for n in range(100)}
    source = write_lines(tmp_path / "in", files)
    run = run_job(job_document("many", source, tmp_path / "out", steps=[LENGTH]))
    assert run.counts == (200, 200, 0, 0)
    expected = sorted(line for lines in files.values() for line in lines)
    assert sorted(row["text"] for row in rows_of(tmp_path / "out")) == expected
    assert 1 <= len(data_files(tmp_path / "out")) < 100


@pytest.mark.usefixtures("ray")
def test_one_file_of_many_rows_is_divided(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in", {"a.txt": [f"text {n}" for n in range(20_000)]})
    run = run_job(job_document("long", source, tmp_path / "out", steps=[LENGTH]))
    assert run.counts == (20_000, 20_000, 0, 0)
    assert {row["text"] for row in rows_of(tmp_path / "out")} == {
        f"text {n}" for n in range(20_000)
    }
    assert len(data_files(tmp_path / "out")) > 1
