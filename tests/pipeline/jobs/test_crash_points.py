"""A job that is killed at any step of its protocol: the next run finishes it, on a disk, on S3, and
on servers that play Google Cloud Storage and Azure Blob Storage.

Every step that changes storage is a place to be killed at, whatever it belongs to: they are
counted in a run that nobody disturbs (see support/crashes.py). What is stored after a step is what
is stored before the next one.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import pytest
from deltalake import DeltaTable

from batchinference.pipeline.layout import Layout
from batchinference.pipeline.storage import Address
from batchinference.pipeline.verify.proof import Result
from batchinference.pipeline.verify.verify import verify
from batchinference.spec import parse
from batchinference.spec.report import JobState
from support.crashes import END, Place, faults, one_of_each_kind, worth_a_kill
from support.documents import Document
from support.job_runs import without_order
from support.outputs import Row
from support.played_jobs import ROWS
from support.played_outputs import Seen

STEPS = """
    write _batchinference/job.json
    delete _SUCCESS
    write _batchinference/job.json
    clear _batchinference/attempts
    clear _batchinference/errors
    delete _batchinference/report.json
    delete _batchinference/spec.json
    delete _batchinference/input.parquet
    delete _batchinference/output.json
    write _batchinference/input.parquet
    write _batchinference/spec.json
    delete _SUCCESS
    write _batchinference/attempts/*/start.json
    write _batchinference/job.json
    TASKS
    write _batchinference/attempts/*/closed
    write _batchinference/attempts/*/retyped/*.json
    write part-*.parquet
    write _batchinference/output.json
    write _batchinference/report.json
    write _SUCCESS
    the end
"""
ATTEMPT = "_batchinference/attempts/*"
OF_TASKS = [
    "write part-*.parquet",
    "write _batchinference/errors/part-*.parquet",
    f"write {ATTEMPT}/TASK.json",
]
OTHER = {"n": 3, "values": 8, "half": 4.0}
"""The row of another job."""


def other_job(place: Place, name: str) -> Document:
    """Of rows that the small job leaves out."""
    job = place.job(name)
    job["metadata"]["name"] = "other"
    job["spec"]["steps"][0]["filter"] = "n == 3"
    return job


def killed_and_run_again(place: Place, job: Document, seen: Seen, kills: list[int]) -> list[str]:
    """What is wrong after each of these ends, and after a run that nobody disturbs."""
    wrong: list[str] = []
    for kill in kills:
        killed = place.play(job, kill)
        wrong += [f"killed before {killed.steps[-1]}: {fault}" for fault in seen.of_any_moment()]
    last = place.play(job).report
    if last.state != JobState.SUCCEEDED:
        return [*wrong, f"in the end: {last.reason}: {last.message}"]
    wrong += [f"in the end: {fault}" for fault in seen.of_the_end()]
    return [*wrong, *unproven(seen.output)] if place.local else wrong


def unproven(output: Path) -> list[str]:
    """What `batchinference verify` has against an output."""
    proof = verify(Address(str(output)))
    found = [*proof.findings, *(finding for work in proof.works for finding in work.findings)]
    words = [f"verify: {one.kind}: {', '.join(map(str, one.spots))}" for one in found]
    return words if proof.result == Result.PROVEN else [f"verify: {proof.result}", *words]


def test_these_are_the_steps_of_a_job(place: Place) -> None:
    played = place.play(place.job("out"))
    assert list(Seen(place.directory / "out").of_the_end()) == []
    steps = [step for step, _ in groupby(name for name in played.steps if ": " not in name)]
    before, after = (part.split("\n") for part in STEPS.strip().split("TASKS"))
    closing = steps.index(f"write {ATTEMPT}/closed")
    assert steps[: len(before) - 1] == [name.strip() for name in before[:-1]]
    assert set(steps[len(before) - 1 : closing]) == set(OF_TASKS)
    assert steps[len(before) - 1] == OF_TASKS[0]
    assert steps[closing - 1] == OF_TASKS[-1]
    # a file, and what is told of it, come in turn
    assert list(dict.fromkeys(steps[closing:])) == [name.strip() for name in after[1:]]


def finished_by_the_next_run(place: Place, steps: list[str]) -> Callable[[int], list[str]]:
    """What is wrong with a job that was killed before a step."""
    committed = steps.index(f"write {ATTEMPT}/closed")

    def check(kill: int) -> list[str]:
        seen = Seen(place.directory / f"out-{kill}")
        wrong = killed_and_run_again(place, place.job(f"out-{kill}"), seen, [kill])
        if kill >= committed and (again := seen.done_again()):
            wrong.append(f"{again} rows were done again, all of which were committed")
        return wrong

    return check


def test_a_job_that_is_killed_at_any_step_is_finished_by_the_next_run(place: Place) -> None:
    steps = place.play(place.job("undisturbed")).steps
    assert faults(finished_by_the_next_run(place, steps), worth_a_kill(steps)) == {}


@pytest.mark.parametrize("place", ["gs", "az"], indirect=True)
def test_on_other_clouds_too_a_job_that_is_killed_is_finished_by_the_next_run(place: Place) -> None:
    steps = place.play(place.job("undisturbed")).steps
    assert set(OF_TASKS) < set(steps)
    assert faults(finished_by_the_next_run(place, steps), one_of_each_kind(steps)) == {}


def test_rows_of_a_task_that_was_killed_are_gone_before_they_are_done_again(place: Place) -> None:
    data, _, manifest = OF_TASKS
    steps = place.play(place.job("undisturbed")).steps
    for name in ("known", "out"):
        place.play(place.job(name), steps.index(manifest))
    again = place.play(place.job("known")).steps
    assert Seen(place.directory / "out").rows() != []
    place.play(place.job("out"), again.index(data))
    assert Seen(place.directory / "out").rows() == []


def test_what_several_killed_runs_have_committed_is_not_done_again(place: Place) -> None:
    steps = place.play(place.job("undisturbed")).steps
    last = max(number for number, name in enumerate(steps) if name == OF_TASKS[-1])
    for name in ("known", "out"):
        place.play(place.job(name), last)
    again = place.play(place.job("known")).steps
    place.play(place.job("out"), again.index(f"write {ATTEMPT}/closed"))
    third = place.play(place.job("out"))
    assert third.report.attempt == 3
    assert not set(OF_TASKS[1:]) & set(third.steps)


def test_a_job_that_is_killed_several_times_is_finished_all_the_same(place: Place) -> None:
    steps = len(place.play(place.job("undisturbed")).steps)

    def check(seed: int) -> list[str]:
        chance, job = random.Random(seed), place.job(f"out-{seed}")
        kills = [chance.randrange(steps) for _ in range(chance.randint(2, 4))]
        return killed_and_run_again(place, job, Seen(place.directory / f"out-{seed}"), kills)

    assert faults(check, range(8)) == {}


@pytest.mark.parametrize("place", ["posix"], indirect=True)
def test_a_file_that_was_not_put_is_hidden_and_the_next_run_removes_it(place: Place) -> None:
    steps = place.play(place.job("undisturbed")).steps
    place.play(place.job("out"), steps.index("write part-*.parquet: rename"))
    output = place.directory / "out"
    (left,) = (path.name for path in output.iterdir() if path.is_file())
    assert left.startswith(".part-")
    assert Seen(output).rows() == []
    assert place.play(place.job("out")).report.state == JobState.SUCCEEDED
    assert not (output / left).exists()


@pytest.fixture
def old(place: Place) -> Path:
    """A complete output of another job, to be copied."""
    place.play(other_job(place, "old"))
    return place.directory / "old"


@pytest.mark.parametrize("place", ["posix"], indirect=True)
def test_an_output_that_is_replaced_is_never_half_of_the_old_one_with_its_mark(
    place: Place, old: Path
) -> None:
    def check(kill: int) -> list[str]:
        new = shutil.copytree(old, place.directory / f"out-{kill}")
        job = place.job(new.name, mode="overwrite")
        return killed_and_run_again(place, job, Seen(new, replaced=(OTHER,)), [kill])

    shutil.copytree(old, place.directory / "undisturbed")
    steps = place.play(place.job("undisturbed", mode="overwrite")).steps
    assert "delete part-*.parquet" in steps
    assert next(name for name in steps if name.startswith("delete")) == "delete _SUCCESS"
    # the others are those of any job
    begins = steps.index("write _batchinference/input.parquet")
    assert faults(check, [n for n in worth_a_kill(steps) if n <= begins]) == {}


@pytest.mark.parametrize("place", ["posix"], indirect=True)
def test_rows_that_are_added_leave_those_before_them_alone(place: Place, old: Path) -> None:
    before = frozenset(Seen(old).names())

    def job(name: str) -> Document:
        return place.job(name, mode="append", partitionBy=["n"])

    def check(kill: int) -> list[str]:
        new = shutil.copytree(old, place.directory / f"out-{kill}")
        state = Layout.of(parse(job(new.name)).spec).state.path
        seen = Seen(new, str(Path(state).relative_to(new)), (OTHER,), before)
        return killed_and_run_again(place, job(new.name), seen, [kill])

    shutil.copytree(old, place.directory / "undisturbed")
    steps = place.play(job("undisturbed")).steps
    assert steps[-1] == END
    assert faults(check, one_of_each_kind(steps)) == {}


@pytest.mark.parametrize("place", ["posix"], indirect=True)
def test_a_table_gets_all_rows_at_once(place: Place) -> None:
    """What is unfinished of it is begun anew."""

    def job(name: str) -> Document:
        given = place.job(name)
        given["spec"]["write"]["format"] = "delta"
        return given

    def check(kill: int) -> list[str]:
        place.play(job(f"out-{kill}"), kill)
        assert len(rows_of_table(place.directory / f"out-{kill}")) in (0, len(ROWS))
        report = place.play(job(f"out-{kill}")).report
        assert report.state == JobState.SUCCEEDED, report.message
        rows = rows_of_table(place.directory / f"out-{kill}")
        wrong = [] if without_order(rows) == without_order(ROWS) else [f"{len(rows)} rows"]
        return [*wrong, *unproven(place.directory / f"out-{kill}")]

    steps = place.play(job("undisturbed")).steps
    assert faults(check, one_of_each_kind(steps)) == {}


def rows_of_table(directory: Path) -> list[Row]:
    if not DeltaTable.is_deltatable(str(directory)):
        return []
    rows: list[Row] = DeltaTable(str(directory)).to_pyarrow_table().to_pylist()
    return rows
