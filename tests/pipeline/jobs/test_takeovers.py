"""A driver pauses right before it changes the state of an output, and another run takes over.

The paused driver then changes nothing. `test_late_writers` stops processes before every change."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from batchinference.pipeline.commit import heartbeat, replacement
from batchinference.pipeline.commit.job_pass import JobPass
from batchinference.pipeline.commit.lease import Lease
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.execution.executor import Executor
from batchinference.pipeline.storage.location import Guard, Location
from batchinference.spec.report import JobState, Report
from plugins.messages import Messages
from support.documents.minimal import Document, document
from support.jobs.without_ray import run_without_ray
from support.outputs.rows import rows_of
from support.outputs.tables import table_rows, write_fields
from support.outputs.verify_command import verified


class Site:
    """A directory with one input and one output."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.output = directory, directory / "out"
        self.state = self.output / "_batchinference"
        (directory / "in").mkdir()

    def job(self, mode: str = "error", **spec: Any) -> Document:
        write = spec.pop("write", {"format": "parquet", "path": str(self.output)})
        read = {"format": "text", "paths": [str(self.directory / "in")]}
        return document("own", read=read, write={**write, "mode": mode}, **spec)

    def add(self, **files: str) -> None:
        for name, lines in files.items():
            (self.directory / "in" / f"{name}.txt").write_text(f"{lines}\n".replace(" ", "\n"))

    def rows(self) -> list[str]:
        return sorted(row["text"] for row in rows_of(self.output))

    def is_proven(self) -> bool:
        return verified(self.output).result == "proven"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = Site(tmp_path)
    site.add(a="a1 a2")
    return site


def take_over(job: Document) -> None:
    """Complete the job in another process, which detects no heartbeat of the paused run."""
    with patch.object(heartbeat, "this_process", lambda: "another process"):
        report = run_without_ray(job, lease_timeout=0.1)
    assert report.state == JobState.SUCCEEDED, report.message


def run_late(
    job: Document,
    name: str,
    others: Callable[[], None],
    method: str = "write_if",
    earlier: int = 0,
) -> Report:
    """Run a job that pauses right before it changes the file `name`, while `others` run. `earlier`
    is the number of such changes before the pause."""
    change, numbers = getattr(Location, method), itertools.count()

    def late(self: Location, guard: Guard, *content: bytes) -> None:
        if self.path.endswith(name) and next(numbers) == earlier:
            others()
        change(self, guard, *content)

    with patch.object(Location, method, late):
        report = run_without_ray(job, heartbeat_seconds=60.0)
    assert next(numbers) > earlier
    return report


@pytest.mark.parametrize("name", ["input.parquet", "spec.json"])
def test_late_state_of_an_append_is_not_written(site: Site, name: str) -> None:
    """Otherwise, the next night would add the rows of `b` again."""
    stored = list[bytes]()

    def read() -> None:
        stored.extend(path.read_bytes() for path in site.state.glob(f"append-*/{name}"))

    def others() -> None:
        site.add(b="b1")
        take_over(site.job("append"))
        read()

    late = run_late(site.job("append", errors={"maxRows": 5}), name, others)
    assert late.reason == "BadOutput"
    read()
    of_others, now = stored
    assert of_others == now
    assert run_without_ray(site.job("append")).state == JobState.SUCCEEDED
    assert (site.rows(), site.is_proven()) == (["a1", "a2", "b1"], True)


def test_nobody_takes_over_between_the_check_and_a_write(
    site: Site, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    """On a disk, the driver has the lock of the lease meanwhile."""
    monkeypatch.setattr("time.sleep", lambda _: None)
    rename, refused = os.rename, list[Report]()

    def late(source: str, target: str, **named: int) -> None:
        if target == "input.parquet" and not refused:
            with patch.object(heartbeat, "this_process", lambda: "another process"):
                refused.append(run_without_ray(site.job(), lease_timeout=0.0))
        rename(source, target, **named)

    with patch.object(os, "rename", late):
        assert run_without_ray(site.job()).state == JobState.SUCCEEDED
    messages.check(refused[0].message)
    assert (site.rows(), site.is_proven()) == (["a1", "a2"], True)


@pytest.mark.parametrize("name", ["input.parquet", "code.json", "output.json", "report.json"])
def test_late_state_of_a_replacement_is_not_written(site: Site, name: str) -> None:
    """The other runs put the replacement into place, and then replace it."""
    job = site.job("overwrite")
    run_without_ray(job)
    site.add(b="b1")

    def others() -> None:
        take_over(job)
        site.add(c="c1")
        take_over(job)

    assert run_late(job, f"out/_batchinference/{name}", others).reason == "BadOutput"
    assert (site.rows(), site.is_proven()) == (["a1", "a2", "b1", "c1"], True)


@pytest.mark.parametrize("earlier", [0, 1], ids=["at the start", "at the end"])
def test_new_replacement_is_not_deleted_as_an_old_one(site: Site, earlier: int) -> None:
    job = site.job("overwrite")
    run_without_ray(job)
    site.add(b="b1")
    staged = list[str]()

    def others() -> None:
        site.add(c="c1")
        with patch.object(replacement, "_move_files", side_effect=OSError("killed")):
            run_without_ray(job, lease_timeout=0.1)
        staged.extend(path.name for path in site.state.glob("replacement/staged/*"))

    late = run_late(job, "/replacement", others, "delete_directory_if", earlier)
    assert late.reason == (None if earlier else "BadOutput")
    assert staged
    assert [path.name for path in site.state.glob("replacement/staged/*")] == staged
    assert run_without_ray(job).state == JobState.SUCCEEDED
    assert (site.rows(), site.is_proven()) == (["a1", "a2", "b1", "c1"], True)


def few(batch: dict[str, Any]) -> dict[str, Any]:
    if "a2" in batch["text"]:
        raise ValueError("bad")
    return batch


class TestHashesOfTheCode:
    STEP: Document = {"name": "few", "python": {"callable": f"{__name__}:few"}}

    @pytest.fixture
    def first(self, site: Site) -> dict[str, str]:
        """The hashes that the output has, although the code is another one now."""
        run_without_ray(site.job(steps=[self.STEP], errors={"maxRows": 1}))
        stored = site.state / "code.json"
        hashes: dict[str, str] = json.loads(stored.read_bytes())["code"]
        return hashes

    def test_retry_that_does_not_begin_keeps_them(
        self, site: Site, first: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        errors = {"maxRows": 1, "retryFailedRows": True}
        stored = (site.state / "code.json").read_bytes()
        with monkeypatch.context() as changed:
            changed.setattr(
                "batchinference.pipeline.pass_start.code_of", lambda _: dict.fromkeys(first, "0")
            )
            changed.setattr(Lease, "write_if_unchanged", _fail)
            report = run_without_ray(site.job(steps=[self.STEP], errors=errors))
        assert "no lease" in str(report.message)
        assert (site.state / "code.json").read_bytes() == stored
        again = run_without_ray(site.job(steps=[self.STEP], errors={"maxRows": 1}))
        assert again.state == JobState.SUCCEEDED, again.message

    def test_retry_killed_before_it_copies_them_is_resumed(
        self, site: Site, first: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        errors = {"maxRows": 1, "retryFailedRows": True}
        monkeypatch.setattr(
            "batchinference.pipeline.pass_start.code_of", lambda _: dict.fromkeys(first, "0")
        )
        with monkeypatch.context() as killed:
            killed.setattr(Location, "write_if", _fail)
            assert run_without_ray(site.job(steps=[self.STEP], errors=errors)).reason is not None
        resumed = run_without_ray(site.job(steps=[self.STEP], errors={"maxRows": 1}))
        assert resumed.state == JobState.SUCCEEDED, resumed.message
        assert set(json.loads((site.state / "code.json").read_bytes())["code"].values()) == {"0"}
        assert site.is_proven()


def _fail(*_: Any, **__: Any) -> None:
    raise OSError("no lease")


def test_staged_rows_of_the_next_run_are_not_deleted(site: Site) -> None:
    job = site.job("overwrite", write=write_fields("delta", site.directory))
    delete, put = JobPass.delete_staged_files, Executor.place_files
    staged = list[list[str]]()

    def names() -> list[str]:
        return [path.name for path in site.state.glob("staged/*")]

    def delete_late(first: JobPass) -> None:
        def put_late(*arguments: Any) -> Any:
            staged.append(names())
            with pytest.raises(BadOutput):
                delete(first)
            staged.append(names())
            return put(*arguments)

        with (
            patch.object(JobPass, "delete_staged_files", delete),
            patch.object(Executor, "place_files", put_late),
        ):
            take_over(job)

    with patch.object(JobPass, "delete_staged_files", delete_late):
        run_without_ray(job)
    before, after = staged
    assert before == after != []
    assert sorted(row["text"] for row in table_rows("delta", site.directory)) == ["a1", "a2"]
