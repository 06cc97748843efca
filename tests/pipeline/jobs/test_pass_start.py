"""Errors of a job are reported before the first row is read and before anything is changed."""

from __future__ import annotations

import io
import shutil
import tracemalloc
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchinference.pipeline.commit.output_paths import Layout
from batchinference.pipeline.commit.output_targets import output_targets
from batchinference.pipeline.errors import BadInput, BadOutput, JobFailure, ModelLoad
from batchinference.pipeline.execution.prepared_pass import PreparedPass
from batchinference.pipeline.input import RowCount
from batchinference.pipeline.input.changed_files import _hashes_of_parts
from batchinference.pipeline.job_checks import check_caches, check_errors_path
from batchinference.pipeline.pass_start import NothingToDo, prepare_pass
from batchinference.spec import parse
from plugins.messages import Messages
from support.documents.minimal import Document, document, model_step, python_step
from support.jobs.on_ray import job_document, write_lines
from support.outputs.builders import begin_job, layout_of


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "in", {"a.txt": ["one", "two"], "b.txt": ["six"]})


def prepare_job(job: Document, identity: str = "") -> PreparedPass | NothingToDo:
    spec = parse(job).spec
    return prepare_pass(spec, next(output_targets(spec, Layout.of(spec))), identity)


def local_model(folder: Path) -> Document:
    step = model_step()
    step["model"]["source"] = str(folder)
    return step


def test_prepare_freezes_the_input(source: Path, tmp_path: Path) -> None:
    prepared = begin_job(job_document("job", source, tmp_path / "out"))
    assert prepared.job_pass.number == 1
    assert prepared.count == RowCount(3, estimated=True)
    frozen = pq.read_table(tmp_path / "out" / "_batchinference" / "input.parquet")
    assert frozen.to_pylist() == [
        {"path": str(file), "size": size, "modified": file.stat().st_mtime_ns}
        for file, size in ((source / "a.txt", 8), (source / "b.txt", 4))
    ]


def test_source_that_cannot_resume_starts_over_in_the_same_series(tmp_path: Path) -> None:
    """A table accepts one commit per series. With another series, a delayed driver could still
    commit its rows."""
    (tmp_path / "rows.db").touch()
    query = {"format": "sql", "url": f"sqlite:///{tmp_path}/rows.db", "query": "select 1 as n"}
    job = document("rows", read=query, write={"format": "parquet", "path": str(tmp_path / "out")})
    first, second = (begin_job(job).job_pass.lease for _ in range(2))
    assert first.run != second.run
    assert first.series == second.series


def test_parts_of_an_input_are_hashed_in_little_memory() -> None:
    parts = 20_000
    table = pa.table(
        {
            "path": [f"in/{part:07}.jpg" for part in range(parts)],
            "size": range(parts),
            "version": [f"v{part}" for part in range(parts)],
        }
    )
    stored = io.BytesIO()
    pq.write_table(table, stored)
    tracemalloc.start()
    try:
        assert len(_hashes_of_parts(stored.getvalue())) == parts
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 200 * parts


def test_statistics_do_not_change_the_identity_of_an_input(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"n": [1, 2]}), tmp_path / "in" / "a.parquet")
    job = job_document("job", tmp_path / "in", tmp_path / "out", read={"format": "parquet"})
    prepared = begin_job(job)
    assert prepared.count == RowCount(2, estimated=False)
    prepared.job_pass.lease.write_success_marker(prepared.job_pass.layout)
    result = prepare_job(job)
    assert isinstance(result, NothingToDo)
    assert result.remark == ""


@pytest.mark.parametrize("job_id", ["", "default/pets (uid)"], ids=["machine", "cluster"])
@pytest.mark.parametrize("change", ["new", "changed", "gone"])
def test_complete_output_with_other_input_is_reported(
    source: Path, tmp_path: Path, messages: Messages, change: str, job_id: str
) -> None:
    job = job_document("job", source, tmp_path / "out")
    prepared = begin_job(job)
    prepared.job_pass.lease.write_success_marker(prepared.job_pass.layout)
    if change == "gone":
        (source / "b.txt").unlink()
    else:
        write_lines(source, {"c.txt" if change == "new" else "a.txt": ["another line"]})
    result = prepare_job(job, job_id)
    assert isinstance(result, NothingToDo)
    messages.check(result.remark)


def test_job_may_refuse_that_files_are_ignored(source: Path, tmp_path: Path) -> None:
    write_lines(source, {"c.doc": ["x"]})
    refuse = {"warnings": [{"name": "FilesIgnored", "action": "fail"}]}
    with pytest.raises(BadInput, match=r"errors\.warnings\[0\].*\.doc 1"):
        prepare_job(job_document("job", source, tmp_path / "out", errors=refuse))
    assert not (tmp_path / "out").exists()
    begin_job(job_document("job", source, tmp_path / "out"))
    with pytest.raises(BadInput, match=r"errors\.warnings\[0\]"):  # the stored list has them
        prepare_job(job_document("job", source, tmp_path / "out", errors=refuse))


NET = {"runtime": "torch", "inputs": {"x": "text"}, "output": "y"}
NOT_THERE = {
    "the input": ({"read": {"paths": ["IN/nowhere"]}}, BadInput, "nowhere' does not exist"),
    "input of this format": ({"read": {"format": "images"}}, BadInput, "holds no files that end"),
    "the model": ({"steps": [local_model(Path("IN/model"))]}, ModelLoad, "IN/model' not found"),
    "the module": (
        {"steps": [python_step(callable_="nowhere:Class")]},
        ModelLoad,
        "step 'own': there is no module 'nowhere'",
    ),
    "the factory of a torch model": (
        {"steps": [model_step(model={**NET, "factory": "nowhere:make"})]},
        ModelLoad,
        "there is no module 'nowhere'",
    ),
}


@pytest.mark.parametrize(("fields", "failure", "message"), NOT_THERE.values(), ids=NOT_THERE)
def test_missing_input_is_named_and_the_output_kept(
    source: Path, tmp_path: Path, fields: Any, failure: type[JobFailure], message: str
) -> None:
    old = job_document("job", source, tmp_path / "out")
    prepare_job(old)
    (tmp_path / "out" / "part-0.jsonl").write_text("old")
    before = sorted((tmp_path / "out").rglob("*"))

    job = job_document("job", source, tmp_path / "out", **_placed(fields, tmp_path))
    job["spec"]["write"]["mode"] = "overwrite"
    with pytest.raises(failure, match=message.replace("IN", str(tmp_path))):
        prepare_job(job)
    assert sorted((tmp_path / "out").rglob("*")) == before


def _placed(value: Any, directory: Path) -> Any:
    """Return the same fields with IN replaced by a directory of the test."""
    if isinstance(value, dict):
        return {key: _placed(inner, directory) for key, inner in value.items()}
    if isinstance(value, list):
        return [_placed(inner, directory) for inner in value]
    return value.replace("IN/", f"{directory}/") if isinstance(value, str) else value


class TestInputWithinOutput:
    """A pass removes the files of the previous pass, so they must not be its input."""

    @pytest.fixture
    def data(self, tmp_path: Path) -> Path:
        """Return a finished output that another job tries to read."""
        (tmp_path / "data").mkdir()
        job = job_document("first", write_lines(tmp_path / "in", {"a.txt": ["x"]}),
                           tmp_path / "data")  # fmt: skip
        prepare_job(job)
        shutil.copy(tmp_path / "in" / "a.txt", tmp_path / "data" / "a.txt")
        return tmp_path / "data"

    @pytest.mark.parametrize(
        ("mode", "message"),
        [(mode, r"spec.write.path: '.*' contains the input '.*', .*. Choose another")
         for mode in ("append", "overwrite", "error")],
        ids=["append", "overwrite", "error"],
    )  # fmt: skip
    @pytest.mark.parametrize("below", ["", "deeper"])
    def test_output_within_the_input_is_refused(
        self, data: Path, mode: str, message: str, below: str
    ) -> None:
        job = job_document("in-place", data / "a.txt", data, write={"mode": mode})
        if below:
            (data / below).mkdir()
            (data / "a.txt").rename(data / below / "a.txt")
            job["spec"]["read"]["paths"] = [str(data)]
        with pytest.raises(BadOutput, match=message):
            prepare_job(job)
        assert (data / below / "a.txt").exists()

    def test_errors_within_the_input_are_refused(self, data: Path, tmp_path: Path) -> None:
        errors = {"maxRows": 1, "path": str(data)}
        with pytest.raises(BadOutput, match=r"spec\.errors\.path: .* contains the input"):
            prepare_job(job_document("job", data, tmp_path / "out", errors=errors))

    def test_path_with_a_common_prefix_is_accepted(self, data: Path, tmp_path: Path) -> None:
        assert prepare_job(job_document("job", data, tmp_path / "dat")) is not None
        assert prepare_job(job_document("job", data, tmp_path / "data-2")) is not None

    def test_output_within_the_input_is_accepted_when_not_read(self, data: Path) -> None:
        job = job_document("job", data, data / "result", write={"format": "parquet"})
        assert prepare_job(job) is not None
        assert prepare_job(job) is not None


@pytest.mark.parametrize("below", ["", "bad", "kind=bad/deep"])
def test_errors_path_must_differ_from_the_output(tmp_path: Path, below: str) -> None:
    output = tmp_path / ".hidden" / "out"
    with pytest.raises(BadOutput, match=r"errors\.path: '.*' is below write\.path"):
        check_errors_path(layout_of(output, errors=output / below))


@pytest.mark.parametrize(("text", "refused"), [("out", True), ("out/a/b", True), ("out-b", False)])
def test_cache_must_not_be_in_the_output(tmp_path: Path, text: str, refused: bool) -> None:
    steps = [{**model_step(), "cache": {"path": str(tmp_path / text)}}]
    spec = parse(job_document("job", tmp_path, tmp_path / "out", steps=steps)).spec
    with pytest.raises(BadOutput, match=r"cache\.path") if refused else nullcontext():
        check_caches(spec, layout_of(tmp_path / "out"))


@pytest.mark.parametrize("text", ["out-errors", "out/_errors", "out/_batchinference/errors"])
def test_errors_path_may_be_hidden_in_the_output(tmp_path: Path, text: str) -> None:
    check_errors_path(layout_of(tmp_path / "out", errors=tmp_path / text))
