"""Another run comes between two steps of a job, and a job comes to an output of its own again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchinference.pipeline import prepare, rivals, sink
from batchinference.pipeline.storage import Address
from batchinference.spec.report import JobState, Report
from support.documents import Document, document
from support.outputs import rows_of
from support.played_jobs import play
from support.verified import verified


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rivals, "PATIENCE_SECONDS", 0.5)


class Place:
    """A directory with inputs and one output."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.output = directory / "out"

    def job(self, name: str = "job", source: str = "in", **spec: Any) -> Document:
        write = {"format": "parquet", "path": str(self.output), **spec.pop("write", {})}
        read = {"format": "text", "paths": [str(self.directory / source)], **spec.pop("read", {})}
        return document(name, read=read, write=write, **spec)

    def add(self, source: str = "in", **files: str) -> None:
        (self.directory / source).mkdir(exist_ok=True)
        for name, lines in files.items():
            (self.directory / source / f"{name}.txt").write_text(f"{lines}\n".replace(" ", "\n"))

    def rows(self) -> list[str]:
        return sorted(row["text"] for row in rows_of(self.output))

    def is_proven(self) -> bool:
        return verified(self.output).result == "proven"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    place.add(a="a1 a2", b="b1")
    place.add("other", x="x1 x2 x3")
    return place


def before(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, comes: Callable[[], object]
) -> None:
    """Once, before this function is called."""
    real = getattr(owner, name)

    def instead(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(owner, name, real)
        comes()
        return real(*arguments, **named)

    monkeypatch.setattr(owner, name, instead)


def fail_the_second_task(monkeypatch: pytest.MonkeyPatch, job: Document) -> Report:
    """A run that commits its first task and then ends."""
    put = sink.Commit.put

    def broken(self: Any, table: Any, task: int) -> Any:
        if task > 0:
            raise OSError("killed")
        return put(self, table, task)

    with monkeypatch.context() as patch:
        patch.setattr("support.played_jobs.ROWS_PER_TASK", 1)
        patch.setattr(sink.Commit, "put", broken)
        return play(job)


@pytest.mark.parametrize("mode", ["error", "overwrite"])
def test_a_job_that_began_while_another_was_being_prepared_has_the_output(
    place: Place, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    if mode == "overwrite":
        play(place.job("old"))
    between = place.job("between", "other", write={"mode": mode})
    before(monkeypatch, prepare, "open_input", lambda: play(between))
    late = play(place.job("late", write={"mode": mode}))
    assert late.reason == "BadOutput"
    assert "another run has begun" in str(late.message)
    assert place.rows() == ["x1", "x2", "x3"]
    assert place.is_proven()


def test_a_job_that_took_over_while_another_was_being_prepared_has_the_output(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The later one goes on with what is there already, and holds nothing anew."""
    fail_the_second_task(monkeypatch, place.job())
    before(monkeypatch, prepare, "open_input", lambda: play(place.job()))
    late = play(place.job())
    assert "another run has begun" in str(late.message)
    assert place.rows() == ["a1", "a2", "b1"]


def test_a_mark_that_comes_late_makes_nothing_complete(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its driver was taken for dead, and another one has begun the output anew, and died."""
    write = Address.write

    def late(self: Address, content: bytes) -> None:
        if self.path.endswith("_SUCCESS"):
            monkeypatch.setattr(Address, "write", write)
            fail_the_second_task(monkeypatch, place.job(resume=False))
        write(self, content)

    monkeypatch.setattr(Address, "write", late)
    assert "has taken over" in str(play(place.job()).message)
    assert len(place.rows()) < 3
    assert play(place.job()).state == JobState.SUCCEEDED
    assert place.rows() == ["a1", "a2", "b1"]
    assert place.is_proven()


def of_a_cluster(job: Document, uid: str) -> Document:
    job["metadata"] |= {"namespace": "team", "uid": uid}
    return job


@pytest.mark.parametrize(("uid", "again"), [("one", False), ("two", True)])
def test_a_resource_that_overwrites_does_so_once(place: Place, uid: str, again: bool) -> None:
    """Its driver may die right after the end, and its next attempt finds its own output."""

    def job(uid: str) -> Document:
        return of_a_cluster(place.job(write={"mode": "overwrite"}), uid)

    play(job("one"))
    files = {path.name for path in place.output.glob("part-*")}
    assert play(job(uid)).state == JobState.SUCCEEDED
    assert ({path.name for path in place.output.glob("part-*")} != files) == again


class TestAdditions:
    @staticmethod
    def night(place: Place, **spec: Any) -> Document:
        write = {"mode": "append", **spec.pop("write", {})}
        return place.job("nightly", write=write, **spec)

    @pytest.fixture
    def two_nights(self, place: Place) -> Place:
        play(self.night(place))
        place.add(c="c1")
        play(self.night(place))
        assert place.rows() == ["a1", "a2", "b1", "c1"]
        return place

    def unfinished(self, place: Place, ending: str) -> None:
        """As a run that broke off leaves it."""
        state = place.output / "_batchinference"
        (mark,) = (mark for mark in state.glob("append-*/_SUCCESS")
                   if mark.parent.name.endswith("-0001") == (ending == "addition"))  # fmt: skip
        mark.unlink()

    def test_stay_when_what_they_were_added_to_is_begun_anew(self, two_nights: Place) -> None:
        self.unfinished(two_nights, "first")
        two_nights.add(a="a1 changed")
        assert "resume: false" in str(play(self.night(two_nights)).message)
        assert play(self.night(two_nights, resume=False)).state == JobState.SUCCEEDED
        assert two_nights.rows() == ["a1", "b1", "c1", "changed"]
        assert two_nights.is_proven()

    def test_that_are_unfinished_are_begun_anew_without_resume(self, two_nights: Place) -> None:
        self.unfinished(two_nights, "addition")
        two_nights.add(c="c1 changed")
        assert "resume: false" in str(play(self.night(two_nights)).message)
        assert play(self.night(two_nights, resume=False)).state == JobState.SUCCEEDED
        assert two_nights.rows() == ["a1", "a2", "b1", "c1", "changed"]
        assert two_nights.is_proven()

    def test_can_be_overwritten_where_nothing_but_additions_is_there(
        self, two_nights: Place
    ) -> None:
        job = two_nights.job(source="other", write={"mode": "overwrite"})
        assert play(job).state == JobState.SUCCEEDED
        assert two_nights.rows() == ["x1", "x2", "x3"]
        assert two_nights.is_proven()

    def test_and_other_files_are_not_overwritten(self, two_nights: Place) -> None:
        (two_nights.output / "mine.txt").write_text("mine")
        report = play(two_nights.job(source="other", write={"mode": "overwrite"}))
        assert "no output of a BatchInference" in str(report.message)
        assert two_nights.rows() == ["a1", "a2", "b1", "c1"]

    def test_are_not_made_to_an_input_that_is_limited(self, place: Place) -> None:
        job = self.night(place, read={"options": {"limit": 2}})
        for _ in range(3):
            assert play(job).state == JobState.SUCCEEDED
        assert place.rows() == ["a1", "a2"]

    def test_of_the_same_files_by_a_changed_job_are_refused(self, two_nights: Place) -> None:
        changed = {"steps": [{"name": "some", "filter": "text != 'b1'"}]}
        report = play(self.night(two_nights, **changed))
        assert report.reason == "BadOutput"
        assert "before its spec changed" in str(report.message)
        assert two_nights.rows() == ["a1", "a2", "b1", "c1"]
        other_files = play(self.night(two_nights, source="other", **changed))
        assert other_files.state == JobState.SUCCEEDED
        other_job = two_nights.job("another", write={"mode": "append"}, **changed)
        assert play(other_job).state == JobState.SUCCEEDED

    def test_lose_their_bad_rows_with_all_others(self, place: Place) -> None:
        fields = {
            "steps": [{"name": "own", "python": {"callable": f"{__name__}:few"}}],
            "errors": {"maxRows": 10, "path": str(place.directory / "bad")},
        }
        play(place.job(**fields))
        place.add(c="c1 bad")
        play(place.job(write={"mode": "append"}, **fields))
        assert [row["row"] for row in rows_of(place.directory / "bad")] == [1]
        play(place.job(source="other", write={"mode": "overwrite"}))
        assert list((place.directory / "bad").rglob("*.parquet")) == []


def few(batch: dict[str, Any]) -> dict[str, Any]:
    if "bad" in batch["text"]:
        raise ValueError("bad")
    return batch
