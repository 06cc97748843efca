"""Another run starts between two steps of a job, or a job finds its own earlier output."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batchinference.pipeline import job as pipeline_job
from batchinference.pipeline.commit import heartbeat, pass_plan
from batchinference.pipeline.commit.committer import Committer
from batchinference.pipeline.commit.lease import read_lease
from batchinference.pipeline.commit.output_paths import Layout
from batchinference.pipeline.input import file_input
from batchinference.pipeline.input.file_input import FileInput
from batchinference.pipeline.input.input_snapshot import InputSnapshot
from batchinference.pipeline.row_batch import RowBatch
from batchinference.pipeline.storage.location import Guard, Location
from batchinference.spec import parse
from batchinference.spec.report import JobState, Report
from plugins.messages import Messages
from support.documents.minimal import Document, document
from support.jobs.without_ray import run_without_ray
from support.outputs.builders import last_pass
from support.outputs.rows import rows_of
from support.outputs.verify_command import verified


class Site:
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

    def completes(self, job: Document, *rows: str) -> None:
        """Check that a job succeeds and that its output then has these rows."""
        assert run_without_ray(job).state == JobState.SUCCEEDED
        assert (self.rows(), self.is_proven()) == ([*rows], True)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = Site(tmp_path)
    site.add(a="a1 a2", b="b1")
    site.add("other", x="x1 x2 x3")
    return site


def before(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, action: Callable[[], object]
) -> None:
    """Call `action` once, right before the next call of this function."""
    real = getattr(owner, name)

    def instead(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(owner, name, real)
        action()
        return real(*arguments, **named)

    monkeypatch.setattr(owner, name, instead)


def keep_beating(patch: pytest.MonkeyPatch) -> None:
    """Let each heartbeat differ from the one before, as while another machine runs a job."""
    beats, read = itertools.count(), heartbeat._read_heartbeat
    patch.setattr(heartbeat, "_read_heartbeat", lambda path: read(path) + b"%d" % next(beats))


def fail_after_tasks(
    monkeypatch: pytest.MonkeyPatch, job: Document, tasks: int = 1, **times: float
) -> Report:
    """Run a job that commits its first tasks and then fails. Return its report."""
    put = Committer.put

    def broken(self: Committer, batch: RowBatch, task: int, number: int = 0) -> None:
        if task >= tasks:
            raise OSError("killed")
        put(self, batch, task, number)

    with monkeypatch.context() as patch:
        patch.setattr(Committer, "put", broken)
        return run_without_ray(job, rows_per_task=1, **times)


@pytest.mark.parametrize("old", [False, True], ids=["new", "replacement"])
def test_job_begun_during_a_prepare_owns_the_output(
    site: Site, monkeypatch: pytest.MonkeyPatch, old: bool, messages: Messages
) -> None:
    write = {"mode": "overwrite"}
    if old:
        run_without_ray(site.job("old"))
    between = site.job("between", "other", write=write)

    def begin() -> None:
        if old:  # it dies, and finishes later
            fail_after_tasks(monkeypatch, between, tasks=0)
        else:
            run_without_ray(between)

    before(monkeypatch, file_input, "open_input", begin)
    late = run_without_ray(site.job("late", write=write))
    assert late.reason == "BadOutput"
    messages.check(late.message)
    if old:
        assert site.rows() == ["a1", "a2", "b1"]
        assert run_without_ray(between).message is None
    assert site.rows() == ["x1", "x2", "x3"]
    assert site.is_proven()


def test_output_that_is_being_written_is_not_replaced(
    site: Site, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    """Its failed rows are retried while the replacement is computed."""
    step = {"name": "own", "python": {"callable": f"{__name__}:few"}}
    site.add(c="bad")
    old = site.job("old", steps=[step], errors={"maxRows": 1})
    run_without_ray(old)
    layout = Layout.of(parse(old).spec)
    lease = replace(last_pass(old).lease, process="", pass_number=2)  # of another machine

    def retry() -> None:
        layout.success.delete()
        lease.write_if_unchanged(layout, read_lease(layout))
        keep_beating(monkeypatch)

    before(monkeypatch, pipeline_job, "swap_in_replacement", retry)
    new = site.job("new", "other", write={"mode": "overwrite"})
    report = run_without_ray(new, lease_timeout=0.5)
    messages.check(report.message)
    assert site.rows() == ["a1", "a2", "b1"]
    monkeypatch.undo()
    lease.write_success_marker(layout)
    messages.check(run_without_ray(new).message)
    assert site.rows() == ["x1", "x2", "x3"]
    assert site.is_proven()


@pytest.mark.parametrize(
    ("source", "mode"), [("in", "error"), ("other", "overwrite")], ids=["same work", "other work"]
)
def test_output_that_is_completed_while_a_job_waits_is_kept(
    site: Site, monkeypatch: pytest.MonkeyPatch, source: str, mode: str
) -> None:
    """The job has decided to resume it, or to start it over, and waits for its heartbeat."""
    old = site.job("old")
    run_without_ray(old)
    layout, lease = Layout.of(parse(old).spec), last_pass(old).lease
    elsewhere = replace(lease, process="")
    elsewhere.write_if_unchanged(layout, lease)
    layout.success.delete()
    before(
        monkeypatch, heartbeat, "_read_heartbeat", lambda: elsewhere.write_success_marker(layout)
    )
    new = site.job("new", source, write={"mode": mode})
    fail_after_tasks(monkeypatch, new, tasks=0, lease_timeout=0.0)
    assert elsewhere.has_completed(layout)
    assert site.rows() == ["a1", "a2", "b1"]


@pytest.mark.parametrize("begun", ["before the replacement", "during the replacement"])
def test_rows_of_a_running_append_are_not_deleted(
    site: Site, monkeypatch: pytest.MonkeyPatch, begun: str, messages: Messages
) -> None:
    run_without_ray(site.job("old"))
    site.add("third", z="z1 z2")
    append = site.job("append", "third", write={"mode": "append"})
    layout = Layout.of(parse(append).spec)
    overwrite = site.job("new", "other", write={"mode": "overwrite"})

    def alive() -> None:
        fail_after_tasks(monkeypatch, append)
        lease = last_pass(append).lease
        replace(lease, process="").write_if_unchanged(layout, lease)  # of another machine
        keep_beating(monkeypatch)

    if begun == "before the replacement":
        alive()
    else:  # it began between the two checks, at the same moment
        monkeypatch.setattr(pass_plan, "_has_waited", lambda *_: False)
        before(monkeypatch, pipeline_job, "run_monitored", alive)
    report = run_without_ray(overwrite, lease_timeout=0.5)
    messages.check(report.message)
    assert set(site.rows()) >= {"a1", "a2", "b1", "z1"}


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (InputSnapshot, "serialized"),
        (FileInput, "first_rows"),
        (pipeline_job, "run_monitored"),
        (pipeline_job, "take_deaths"),
    ],
    ids=["claims", "counts", "computes", "begins-next-pass"],
)
def test_same_job_is_refused_while_its_first_run(
    site: Site, monkeypatch: pytest.MonkeyPatch, messages: Messages, owner: Any, name: str
) -> None:
    """This happens if a cron job takes longer than its interval."""
    gate = {"rows": 1, "expect": "count(text is not None) == 1"}
    job, refused = site.job(gate=gate), list[Report]()

    def run_again() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(heartbeat, "this_process", lambda: "another process")
            refused.append(run_without_ray(job, lease_timeout=2.0))

    before(monkeypatch, owner, name, run_again)
    assert run_without_ray(job, heartbeat_seconds=0.05).state == JobState.SUCCEEDED
    messages.check(refused[0].message)
    assert site.rows() == ["a1", "a2", "b1"]


def test_nothing_is_appended_while_the_output_is_replaced(
    site: Site, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    run_without_ray(site.job("old"))
    overwrite = site.job("new", "other", write={"mode": "overwrite"})
    refused: list[Report] = []

    def append() -> None:
        with monkeypatch.context() as patch:
            keep_beating(patch)
            job = site.job("append", "third", write={"mode": "append"})
            refused.append(run_without_ray(job, lease_timeout=0.5))

    site.add("third", z="z1")
    before(monkeypatch, pipeline_job, "run_monitored", append)
    assert run_without_ray(overwrite).state == JobState.SUCCEEDED
    messages.check(refused[0].message)
    assert site.rows() == ["x1", "x2", "x3"]


class TestInterruptedReplacement:
    """The driver died after the replacement was complete, and before it was in place."""

    def interrupt(self, monkeypatch: pytest.MonkeyPatch, job: Document) -> None:
        def killed(*_: Any) -> None:
            raise OSError("killed")

        with monkeypatch.context() as patch:
            patch.setattr(pipeline_job, "swap_in_replacement", killed)
            assert run_without_ray(job).state == JobState.FAILED

    @pytest.mark.parametrize("resume", [True, False])
    def test_same_job_finishes_an_interrupted_replacement(
        self, site: Site, monkeypatch: pytest.MonkeyPatch, resume: bool
    ) -> None:
        """Without resume, the job then repeats its work."""
        run_without_ray(site.job("old", "other"))
        self.interrupt(monkeypatch, site.job(write={"mode": "overwrite"}))
        staged = {path.name for path in site.output.glob("_batchinference/replacement/staged/*")}
        report = run_without_ray(site.job(write={"mode": "overwrite"}, resume=resume))
        assert report.state == JobState.SUCCEEDED
        assert (staged == {path.name for path in site.output.glob("part-*")}) == resume
        assert site.rows() == ["a1", "a2", "b1"]
        assert site.is_proven()

    @pytest.mark.parametrize(
        "lost",
        ["staged/part-*", "output.json", "spec.json", "code.json", "report.json", "input.parquet"],
        ids=["rows", "snapshot", "spec", "code", "report", "input"],
    )
    def test_replacement_with_damaged_files_keeps_the_old_output(
        self, site: Site, monkeypatch: pytest.MonkeyPatch, lost: str, messages: Messages
    ) -> None:
        """Without its input or the hashes of its code, it cannot be resumed, but starts over."""
        run_without_ray(site.job("old", "other"))
        job = site.job(write={"mode": "overwrite"})
        self.interrupt(monkeypatch, job)
        next((site.output / "_batchinference/replacement").glob(lost)).write_text("damaged")
        if lost == "spec.json":
            (site.output / "_batchinference/replacement/spec.json").unlink()
        report = run_without_ray(job)
        messages.check(report.message)
        assert site.rows() == ["x1", "x2", "x3"]
        if lost in ("code.json", "input.parquet"):
            assert "damaged" in str(run_without_ray(job).message)
            job = site.job(write={"mode": "overwrite"}, resume=False)
        site.completes(job, "a1", "a2", "b1")

    @pytest.mark.parametrize("planted", ["", "staged", "job.json", "code.json", "output.json"])
    def test_replacement_with_a_symbolic_link_is_not_published(
        self, site: Site, monkeypatch: pytest.MonkeyPatch, planted: str, messages: Messages
    ) -> None:
        """Otherwise anyone who can write to the output could move files of the job's user there."""
        run_without_ray(site.job("old", "other"))
        self.interrupt(monkeypatch, site.job(write={"mode": "overwrite"}))
        part = site.output / "_batchinference/replacement" / planted
        private = part.rename(site.output.parent / "private")
        part.symlink_to(private)
        before = sorted(site.output.parent.rglob("*"))
        report = run_without_ray(site.job(write={"mode": "overwrite"}))
        messages.check(report.message)
        assert sorted(site.output.parent.rglob("*")) == before
        assert site.rows() == ["x1", "x2", "x3"]


def test_job_that_took_over_during_a_prepare_owns_the_output(
    site: Site, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    """The job that takes over resumes the committed rows, so it does not claim the output again."""
    fail_after_tasks(monkeypatch, site.job())
    before(monkeypatch, file_input, "open_input", lambda: run_without_ray(site.job()))
    late = run_without_ray(site.job())
    messages.check(late.message)
    assert site.rows() == ["a1", "a2", "b1"]


def test_late_success_mark_completes_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its driver was considered dead. Another driver has started over and died."""
    write = Location.write_if

    def late(self: Location, guard: Guard, content: bytes) -> None:
        if self.path.endswith("_SUCCESS"):
            monkeypatch.setattr(Location, "write_if", write)
            fail_after_tasks(monkeypatch, site.job(resume=False))
        write(self, guard, content)

    monkeypatch.setattr(Location, "write_if", late)
    assert "has taken over" in str(run_without_ray(site.job()).message)
    assert len(site.rows()) < 3
    site.completes(site.job(), "a1", "a2", "b1")


class TestAppends:
    @staticmethod
    def night(site: Site, **spec: Any) -> Document:
        write = {"mode": "append", **spec.pop("write", {})}
        return site.job("nightly", write=write, **spec)

    @pytest.fixture
    def two_nights(self, site: Site) -> Site:
        run_without_ray(self.night(site))
        site.add(c="c1")
        run_without_ray(self.night(site))
        assert site.rows() == ["a1", "a2", "b1", "c1"]
        return site

    def unfinished(self, site: Site, ending: str) -> None:
        """Leave the output as an interrupted run does."""
        state = site.output / "_batchinference"
        (mark,) = (mark for mark in state.glob("append-*/_SUCCESS")
                   if mark.parent.name.endswith("-0001") == (ending == "addition"))  # fmt: skip
        mark.unlink()

    def test_appended_rows_remain_when_the_base_starts_over(self, two_nights: Site) -> None:
        self.unfinished(two_nights, "first")
        two_nights.add(a="a1 changed")
        assert "--restart" in str(run_without_ray(self.night(two_nights)).message)
        two_nights.completes(self.night(two_nights, resume=False), "a1", "b1", "c1", "changed")

    def test_unfinished_append_starts_over_without_resume(self, two_nights: Site) -> None:
        self.unfinished(two_nights, "addition")
        two_nights.add(c="c1 changed")
        assert "--restart" in str(run_without_ray(self.night(two_nights)).message)
        two_nights.completes(
            self.night(two_nights, resume=False), "a1", "a2", "b1", "c1", "changed"
        )

    def test_appends_without_a_base_can_be_overwritten(self, two_nights: Site) -> None:
        job = two_nights.job(source="other", write={"mode": "overwrite"})
        two_nights.completes(job, "x1", "x2", "x3")

    def test_appends_with_foreign_files_are_not_overwritten(
        self, two_nights: Site, messages: Messages
    ) -> None:
        (two_nights.output / "mine.txt").write_text("mine")
        report = run_without_ray(two_nights.job(source="other", write={"mode": "overwrite"}))
        messages.check(report.message)
        assert two_nights.rows() == ["a1", "a2", "b1", "c1"]

    def test_append_to_a_limited_input_is_refused(self, site: Site) -> None:
        job = self.night(site, read={"options": {"limit": 2}})
        for _ in range(3):
            assert run_without_ray(job).state == JobState.SUCCEEDED
        assert site.rows() == ["a1", "a2"]

    def test_append_by_a_changed_job_over_the_same_files_is_refused(self, two_nights: Site) -> None:
        changed = {"steps": [{"name": "some", "filter": "text != 'b1'"}]}
        report = run_without_ray(self.night(two_nights, **changed))
        assert report.reason == "BadOutput"
        assert "before its spec changed" in str(report.message)
        assert two_nights.rows() == ["a1", "a2", "b1", "c1"]
        other_files = run_without_ray(self.night(two_nights, source="other", **changed))
        assert other_files.state == JobState.SUCCEEDED
        other_job = two_nights.job("another", write={"mode": "append"}, **changed)
        assert run_without_ray(other_job).state == JobState.SUCCEEDED

    def test_overwrite_deletes_the_errors_of_appends(self, site: Site) -> None:
        """The overwriting job writes its error records to the same location."""
        errors = {"maxRows": 10, "path": str(site.directory / "bad")}
        step = {"name": "own", "python": {"callable": f"{__name__}:few"}}
        fields: dict[str, Any] = {"steps": [step], "errors": errors}
        run_without_ray(site.job(**fields))
        site.add(c="c1 bad")
        run_without_ray(site.job(write={"mode": "append"}, **fields))
        assert [row["row"] for row in rows_of(site.directory / "bad")] == [1]
        run_without_ray(site.job(source="other", write={"mode": "overwrite"}, errors=errors))
        assert list((site.directory / "bad").rglob("*.parquet")) == []


def few(batch: dict[str, Any]) -> dict[str, Any]:
    if "bad" in batch["text"]:
        raise ValueError("bad")
    return batch
