"""Opening an output: whatever its path holds, and without ever deleting what is not ours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from batchinference.pipeline.attempt import Attempt
from batchinference.pipeline.failures import BadOutput
from batchinference.pipeline.layout import Layout
from batchinference.pipeline.output import begin
from batchinference.pipeline.storage import Address
from batchinference.spec.report import JobState, Report
from batchinference.spec.write import WriteParquet

OURS, THEIRS = "a" * 64, "b" * 64


def layout_of(output: Path, key: str = OURS, errors: Path | None = None) -> Layout:
    address = Address(str(output))
    chosen = Address(str(errors)) if errors else address / "_batchinference" / "errors"
    return Layout(key, address, address / "_batchinference", chosen)


def open_output(layout: Layout, mode: str = "error") -> Attempt | None:
    write = WriteParquet.model_validate(
        {"format": "parquet", "path": layout.output.uri, "mode": mode}
    )
    return begin(write, layout)


def number_of(attempt: Attempt | None) -> int:
    assert attempt is not None
    return attempt.number


def a_run(layout: Layout, attempt: int = 1, *, complete: bool) -> list[Path]:
    """What a job leaves: a data file, an error file, a manifest and more. Its parts come back."""
    run = Attempt.open(layout, attempt)
    layout.input.write(b"list")
    (layout.manifests(attempt) / "00000000.1.1.0.json").write(b"{}")
    name = layout.part_name(attempt, 0, "deadbeef") + ".parquet"
    for place in (layout.output, layout.errors):
        (place / name).write(b"rows")
    if complete:
        run.complete(_report(layout))
    return [Path(place.path) / name for place in (layout.output, layout.errors)]


def _report(layout: Layout) -> Report:
    now = "2026-01-01T00:00:00Z"
    return Report(name="job", state=JobState.SUCCEEDED, output=layout.output.uri, startedAt=now,
                  updatedAt=now, version="0")  # fmt: skip


def files_below(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


MODES = pytest.mark.parametrize("mode", ["error", "overwrite"])


@MODES
@pytest.mark.parametrize("exists", [False, True], ids=["no directory", "an empty one"])
def test_a_fresh_path_begins_with_the_first_attempt(
    tmp_path: Path, mode: str, exists: bool
) -> None:
    layout = layout_of(tmp_path / "out")
    if exists:
        (tmp_path / "out").mkdir()
    assert number_of(open_output(layout, mode)) == 1
    stored = json.loads(layout.job.read())
    assert (stored["work"], stored["attempt"]) == (OURS, 1)


def test_unfinished_work_goes_on_with_the_next_attempt_and_without_old_files(
    tmp_path: Path,
) -> None:
    layout = layout_of(tmp_path / "out")
    parts = a_run(layout, attempt=3, complete=False)
    assert number_of(open_output(layout)) == 4
    assert not any(part.exists() for part in parts)
    assert json.loads(layout.job.read())["attempt"] == 4


def test_commits_of_earlier_attempts_do_not_count(tmp_path: Path) -> None:
    layout = layout_of(tmp_path / "out")
    a_run(layout, attempt=1, complete=False)
    attempt = open_output(layout)
    assert attempt is not None
    assert attempt.counts().read == 0
    assert attempt.manifests() == []


def test_complete_work_is_left_as_it_is(tmp_path: Path) -> None:
    layout = layout_of(tmp_path / "out")
    a_run(layout, complete=True)
    before = files_below(tmp_path)
    assert open_output(layout) is None
    assert files_below(tmp_path) == before


@pytest.mark.parametrize("complete", [False, True], ids=["unfinished", "complete"])
def test_an_output_of_other_work_is_refused_and_left_as_it_is(
    tmp_path: Path, complete: bool
) -> None:
    a_run(layout_of(tmp_path / "out", THEIRS), complete=complete)
    before = files_below(tmp_path)
    with pytest.raises(BadOutput, match=r"output of another job.*write\.mode to overwrite"):
        open_output(layout_of(tmp_path / "out"))
    assert files_below(tmp_path) == before


@pytest.mark.parametrize("key", [OURS, THEIRS], ids=["same work", "other work"])
@pytest.mark.parametrize("complete", [False, True], ids=["unfinished", "complete"])
def test_overwrite_replaces_any_output_of_a_job(tmp_path: Path, key: str, complete: bool) -> None:
    a_run(layout_of(tmp_path / "out", key), attempt=2, complete=complete)
    layout = layout_of(tmp_path / "out")
    assert number_of(open_output(layout, "overwrite")) == 3
    assert list(files_below(tmp_path)) == ["out/_batchinference/job.json"]
    assert json.loads(layout.job.read())["work"] == OURS


def test_overwrite_that_broke_off_can_be_taken_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = layout_of(tmp_path / "out", THEIRS)
    a_run(theirs, complete=True)

    def break_off(self: Address) -> None:
        raise OSError("storage is gone")

    with monkeypatch.context() as patch:
        patch.setattr(Address, "delete_directory", break_off)
        with pytest.raises(BadOutput, match="storage is gone"):
            open_output(layout_of(tmp_path / "out"), "overwrite")
    assert not theirs.success.exists()
    assert open_output(layout_of(tmp_path / "out"), "overwrite") is not None


@MODES
@pytest.mark.parametrize(
    "foreign", ["table.parquet", "deep/er/table.parquet", "_SUCCESS", ".hidden"]
)
def test_a_path_with_files_of_others_is_refused_in_any_mode(
    tmp_path: Path, mode: str, foreign: str
) -> None:
    file = tmp_path / "out" / foreign
    file.parent.mkdir(parents=True)
    file.write_bytes(b"theirs")
    with pytest.raises(BadOutput, match="no output of a BatchInference"):
        open_output(layout_of(tmp_path / "out"), mode)
    assert files_below(tmp_path) == {f"out/{foreign}": b"theirs"}


@pytest.mark.parametrize("key", [OURS, THEIRS], ids=["same work", "other work"])
@MODES
def test_files_of_others_beside_an_output_are_never_deleted(
    tmp_path: Path, key: str, mode: str
) -> None:
    shared = tmp_path / "errors"
    layout = layout_of(tmp_path / "out", key, shared)
    a_run(layout, complete=False)
    foreign = {
        tmp_path / "out" / "README.md": b"notes",
        tmp_path / "out" / "part-something.parquet": b"not ours",
        tmp_path / "out" / "deep" / (layout.part_name(1, 0, "0") + ".parquet"): b"a copy",
        shared / (layout_of(tmp_path, "c" * 64).part_name(1, 0, "0") + ".parquet"): b"other job",
    }
    for file, content in foreign.items():
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(content)
    try:
        open_output(layout_of(tmp_path / "out", OURS, shared), mode)
    except BadOutput:
        assert (key, mode) == (THEIRS, "error")
    assert {file: file.read_bytes() for file in foreign} == foreign


@MODES
@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b'{"work": "a"}', b'{"work": "a", "attempt": 1}', b"\xff\xfe"],
)
def test_a_damaged_owner_is_refused_and_nothing_is_touched(
    tmp_path: Path, mode: str, content: bytes
) -> None:
    layout = layout_of(tmp_path / "out")
    a_run(layout, complete=True)
    layout.job.write(content)
    before = files_below(tmp_path)
    with pytest.raises(BadOutput, match=r"job\.json' is damaged"):
        open_output(layout, mode)
    assert files_below(tmp_path) == before


@MODES
def test_a_path_that_is_a_file_is_refused(tmp_path: Path, mode: str) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(BadOutput, match=r"write\.path '.*/out'"):
        open_output(layout_of(tmp_path / "out"), mode)
    assert (tmp_path / "out").read_text() == "a file"


@pytest.mark.parametrize("below", ["", "bad", "kind=bad/deep"])
def test_errors_must_not_go_where_the_output_goes(tmp_path: Path, below: str) -> None:
    output = tmp_path / ".hidden" / "out"
    layout = layout_of(output, errors=output / below)
    with pytest.raises(BadOutput, match=r"errors\.path '.*' lies in write\.path"):
        open_output(layout)
    assert not output.exists()


@pytest.mark.parametrize("place", ["out-errors", "out/_errors", "out/_batchinference/errors"])
def test_errors_may_go_beside_the_output_and_where_readers_do_not_look(
    tmp_path: Path, place: str
) -> None:
    layout = layout_of(tmp_path / "out", errors=tmp_path / place)
    assert number_of(open_output(layout)) == 1


def test_the_mark_of_completeness_is_put_after_the_report(tmp_path: Path) -> None:
    layout = layout_of(tmp_path / "out")
    layout.report.write(b"")
    (tmp_path / "out" / "_SUCCESS").mkdir()  # so that the mark cannot be put
    with pytest.raises(OSError, match="_SUCCESS"):
        Attempt.open(layout, 1).complete(_report(layout))
    assert Report.parse(layout.report.read()).state == JobState.SUCCEEDED
