"""Jobs of a notebook: frames as input, functions of the session as steps, and previews."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import ray

from batchinference import Job, JobFailed, run
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.verify.verify import verify
from batchinference.spec import SpecError
from plugins.messages import Messages
from support.jobs.without_ray import in_this_process, without_starting_ray

FRAME = pd.DataFrame({"text": ["a", "bb", "ccc", "dddd", "eeeee"], "kind": list("xyxyx")})
WRITE = {"format": "parquet", "path": "out", "rowNumber": "row"}
CODE = """
def length(row): return {**row, "length": len(row["text"]) * factor}
class Longer:
    def __init__(self, than): self.than = than
    def __call__(self, batch): return {**batch, "longer": batch["length"] > self.than}
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def steps_of(factor: int = 1) -> list[dict[str, Any]]:
    """Return the steps of a new session."""
    session: dict[str, Any] = {"__name__": "__main__", "factor": factor}
    exec(CODE, session)
    than = {"callable": session["Longer"], "constructorArgs": {"than": 2}}
    return [
        {"name": "length", "python": {"callable": session["length"], "method": "map"}},
        {"name": "longer", "python": than},
    ]


def job_of(frame: Any = FRAME, factor: int = 1, **write: Any) -> Job:
    return Job(frame, {**WRITE, **write}, steps_of(factor), name="lengths")


def run_here(job: Job, *data: Any, **options: Any) -> Any:
    with in_this_process(), without_starting_ray():
        return run(job, *data, **options)


def test_results_join_the_frame_by_the_row_number() -> None:
    assert job_of().check() == []
    results = run_here(job_of()).to_pandas()
    joined = FRAME.merge(results, left_index=True, right_on="row", suffixes=("", "_result"))
    assert list(joined.text) == list(joined.text_result) == list(FRAME.text)
    assert list(joined.length) == [1, 2, 3, 4, 5]
    assert list(joined.longer) == [False, False, True, True, True]
    assert verify(Location(str(Path("out").absolute()))).result == "proven"


def test_a_new_session_with_the_same_frame_and_code_continues() -> None:
    run_here(job_of())
    assert run_here(job_of(FRAME.copy())).report.message is not None


@pytest.mark.parametrize("change", ["code", "frame"])
def test_a_change_is_refused_until_a_restart(change: str) -> None:
    run_here(job_of())
    changed = job_of(factor=3) if change == "code" else job_of(FRAME.assign(text="zz"))
    with pytest.raises(JobFailed) as raised:
        run_here(changed)
    assert raised.value.report.reason == "BadOutput"
    pandas = run_here(changed, restart=True).to_pandas()
    assert sorted(pandas.length) == ([3, 6, 9, 12, 15] if change == "code" else [2] * 5)


def test_append_adds_the_rows_of_another_frame() -> None:
    for frame in (FRAME.head(2), FRAME.tail(3).reset_index(drop=True), FRAME.head(2)):
        result = run_here(job_of(frame, mode="append"))
    assert sorted(result.to_pandas().text) == list(FRAME.text)
    assert sorted(result.to_pandas().row) == [0, 0, 1, 1, 2]  # in each frame


def test_a_job_does_not_end_the_ray_of_the_session(
    monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    with messages.raises(JobFailed), in_this_process():
        run(job_of())


def test_data_replaces_the_input_of_a_job(tmp_path: Path) -> None:
    read = {"format": "csv", "paths": ["texts.csv"]}
    FRAME.to_csv(tmp_path / "texts.csv", index=False)
    job = Job(read, WRITE, steps_of())
    assert len(run_here(job, pa.table({"text": ["only"]})).to_pandas()) == 1
    assert job.resource.spec.read.format == "csv"


def test_preview_shows_the_rows_after_a_step(messages: Messages) -> None:
    job = job_of(columns=["length", "longer"])
    assert job.preview().to_arrow().column_names == ["length", "longer"]
    after = job.preview(rows=2, step="length")
    assert after.to_pandas().to_dict("list") == {
        "text": ["a", "bb"], "kind": ["x", "y"], "length": [1, 2]
    }  # fmt: skip
    of_numpy: Any = np.int64(2)
    assert job.preview(rows=of_numpy, step="length").to_pandas().equals(after.to_pandas())
    assert "<td>bb</td>" in after._repr_html_()
    assert "row 1:" in repr(after)
    with messages.raises(SpecError):
        job.preview(step="lenght")
    assert not Path("out").exists()
