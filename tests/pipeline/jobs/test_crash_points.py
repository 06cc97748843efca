"""A job that is killed before any step of its protocol: the next run finishes it.

The protocol, in the order of its writes:

    driver   job.json         takes over the output with the number of its pass
             input.parquet    the input snapshot: freezes the list of input files
             code.json        the hashes of the code and of the models
             spec.json        records the work
             start.json       begins the pass, with a snapshot of what earlier passes committed
             history/RUN.json the record of this run, which is written again at its end
    tasks    part-*           a data file, which does not count yet
             errors/part-*    the failed rows
             TASK.json        the manifest: commits both files and the input rows that they hold
    driver   closed           ends the pass; manifests that are written later do not count
             part-*           data files again, so that all have the same schema and none is small
             unified.json     a snapshot that names the new files; the old ones are deleted
             output.json      the snapshot: lists each file that counts
             report.json      the counts and times
             _SUCCESS         marks the output as complete
             report.html      the report for people

A kill before a step keeps what the previous steps have written. Commits survive: the next pass
reads the manifests, removes files that no manifest names, and reads only the missing rows.

Steps are counted in a run without faults (see support/jobs/crash_points.py). `make landing`
continues from the state before every step on a disk, and kills a job before one write of each kind
on S3. The long tier kills jobs before every step."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import pytest

from batchinference.pipeline.commit.output_paths import Layout
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.verify.findings import Result
from batchinference.pipeline.verify.verify import verify
from batchinference.spec import parse
from batchinference.spec.report import JobState, Report
from support.documents.minimal import Document
from support.jobs.crash_points import (
    Recording,
    Site,
    every_step,
    faults,
    on_disk,
    on_disk_and_long_on_s3,
    one_of_each_kind,
    one_write_of_each_kind,
)
from support.jobs.on_ray import without_order
from support.jobs.without_ray import CALLS, ROWS
from support.outputs.checks import OutputFaults
from support.outputs.tables import table_rows, write_fields
from support.tiers import examples, in_long_tier

pytestmark = pytest.mark.xdist_group("crashes")
STEPS = """
    write _batchinference/job.json
    delete _SUCCESS
    delete _errors.jsonl
    write _batchinference/job.json
    clear _batchinference/attempts
    clear _batchinference/errors
    write _batchinference/input.parquet
    write _batchinference/code.json
    write _batchinference/spec.json
    write _batchinference/attempts/*/start.json
    write _batchinference/job.json
    write _batchinference/history/RUN.json
    TASKS
    write _batchinference/attempts/*/closed
    write part-*.parquet
    write _batchinference/attempts/*/unified.json
    delete part-*.parquet
    write _batchinference/output.json
    write _batchinference/report.json
    write _SUCCESS
    write _batchinference/history/RUN.json
    write _batchinference/report.html
    the end
"""
ATTEMPT = "_batchinference/attempts/*"
OF_TASKS = [
    "write part-*.parquet",
    "write _batchinference/errors/part-*.parquet",
    f"write {ATTEMPT}/TASK.json",
]
REPLACEMENT, HISTORY = "_batchinference/replacement", "_batchinference/history"
SUCCESS_MARKS = ("_SUCCESS", f"{REPLACEMENT}/_SUCCESS")
OTHER = {"n": 3, "values": 8, "half": 4.0}
"""The row that the other job writes."""


def other_job(site: Site, name: str) -> Document:
    """Return a job that writes the row that the small job filters."""
    job = site.job(name)
    job["metadata"]["name"] = "other"
    job["spec"]["steps"][0]["filter"] = "n == 3"
    return job


def killed_and_run_again(
    site: Site, job: Document, seen: OutputFaults, kills: list[int]
) -> list[str]:
    """Return the faults after each kill, and after a final run without a kill."""
    wrong: list[str] = []
    for kill in kills:
        killed = site.run(job, kill)
        wrong += [f"killed before {killed.steps[-1]}: {fault}" for fault in seen.at_any_moment()]
    return [*wrong, *faults_in_the_end(site, site.run(job).report, seen)]


def faults_in_the_end(site: Site, last: Report, seen: OutputFaults) -> list[str]:
    """Return the faults of a run that should have succeeded."""
    if last.state != JobState.SUCCEEDED:
        return [f"in the end: {last.reason}: {last.message}"]
    wrong = [f"in the end: {fault}" for fault in seen.at_the_end()]
    return [*wrong, *unproven(seen.output)] if site.local else wrong


def unproven(output: Path) -> list[str]:
    """Return the findings of `batchinference verify`; an empty list if the output is proven."""
    proof = verify(Location(str(output)))
    findings = [*proof.findings, *(finding for work in proof.jobs for finding in work.findings)]
    problems = [f"verify: {one.kind}: {', '.join(map(str, one.positions))}" for one in findings]
    return problems if proof.result == Result.PROVEN else [f"verify: {proof.result}", *problems]


def test_steps_of_a_job_are_those_expected(site: Site) -> None:
    process = site.run(site.job("out"))
    assert list(OutputFaults(site.directory / "out").at_the_end()) == []
    steps = [step for step, _ in groupby(name for name in process.steps if ": " not in name)]
    before, after = (part.split("\n") for part in STEPS.strip().split("TASKS"))
    closing = steps.index(f"write {ATTEMPT}/closed")
    assert steps[: len(before) - 1] == [name.strip() for name in before[:-1]]
    assert set(steps[len(before) - 1 : closing]) == set(OF_TASKS)
    assert steps[len(before) - 1] == OF_TASKS[0]
    assert steps[closing - 1] == OF_TASKS[-1]
    assert steps[closing:] == [name.strip() for name in after[1:]]


def finished_by_the_next_run(site: Site, steps: list[str]) -> Callable[[int], list[str]]:
    """Return a check that kills a job before a step and returns the faults of the next run."""
    committed = steps.index(f"write {ATTEMPT}/closed")

    def check(kill: int) -> list[str]:
        seen = OutputFaults(site.directory / f"out-{kill}")
        wrong = killed_and_run_again(site, site.job(f"out-{kill}"), seen, [kill])
        if kill >= committed and (again := seen.rows_processed_again()):
            wrong.append(f"{again} committed rows were done again")
        return wrong

    return check


@on_disk
def test_next_run_finishes_a_job_that_died_before_any_step(site: Site) -> None:
    job, seen = site.job("out"), OutputFaults(site.directory / "out")
    recording = Recording(site, job)
    committed = recording.steps.index(f"write {ATTEMPT}/closed")

    def check(step: int) -> list[str]:
        wrong = [*seen.at_any_moment(), *faults_in_the_end(site, site.run_again(job), seen)]
        if step >= committed and (again := seen.rows_processed_again()):
            wrong.append(f"{again} committed rows were done again")
        return wrong

    assert recording.faults(check, every_step(recording.steps)) == {}


@pytest.mark.scaled("crash-points")
@pytest.mark.parametrize(
    "site", ["s3", pytest.param("posix", marks=pytest.mark.long("crash-points"))], indirect=True
)
def test_next_run_finishes_a_job_killed_before_any_step(site: Site) -> None:
    steps = site.run(site.job("undisturbed")).steps
    chosen = every_step if in_long_tier() else one_write_of_each_kind
    assert faults(finished_by_the_next_run(site, steps), chosen(steps)) == {}


@pytest.mark.long("clouds")
@pytest.mark.parametrize("site", ["gs", "az"], indirect=True)
def test_next_run_finishes_a_killed_job_on_other_clouds(site: Site) -> None:
    steps = site.run(site.job("undisturbed")).steps
    assert set(OF_TASKS) < set(steps)
    assert faults(finished_by_the_next_run(site, steps), one_of_each_kind(steps)) == {}


@on_disk_and_long_on_s3
def test_uncommitted_files_are_removed_before_their_rows_are_processed_again(site: Site) -> None:
    data, _, manifest = OF_TASKS
    steps = site.run(site.job("undisturbed")).steps
    for name in ("known", "out"):
        site.run(site.job(name), steps.index(manifest))
    again = site.run(site.job("known")).steps
    assert OutputFaults(site.directory / "out").rows() != []
    site.run(site.job("out"), again.index(data))
    assert OutputFaults(site.directory / "out").rows() == []


@on_disk_and_long_on_s3
def test_commits_of_several_killed_runs_are_kept(site: Site) -> None:
    steps = site.run(site.job("undisturbed")).steps
    last = max(number for number, name in enumerate(steps) if name == OF_TASKS[-1])
    for name in ("known", "out"):
        site.run(site.job(name), last)
    again = site.run(site.job("known")).steps
    site.run(site.job("out"), again.index(f"write {ATTEMPT}/closed"))
    third = site.run(site.job("out"))
    assert third.report.pass_number == 3
    assert not set(OF_TASKS[1:]) & set(third.steps)


@pytest.mark.scaled("crash-points")
@on_disk_and_long_on_s3
def test_job_killed_several_times_is_finished(site: Site) -> None:
    steps = len(site.run(site.job("undisturbed")).steps)

    def check(seed: int) -> list[str]:
        chance, job = random.Random(seed), site.job(f"out-{seed}")
        kills = [chance.randrange(steps) for _ in range(chance.randint(2, 4))]
        return killed_and_run_again(site, job, OutputFaults(site.directory / f"out-{seed}"), kills)

    assert faults(check, range(examples(8))) == {}


@on_disk
def test_unfinished_file_is_hidden_and_removed_by_the_next_run(site: Site) -> None:
    steps = site.run(site.job("undisturbed")).steps
    site.run(site.job("out"), steps.index("write part-*.parquet: rename"))
    output = site.directory / "out"
    (left,) = (path.name for path in output.iterdir() if path.is_file())
    assert left.startswith(".part-")
    assert OutputFaults(output).rows() == []
    assert site.run(site.job("out")).report.state == JobState.SUCCEEDED
    assert not (output / left).exists()


@pytest.mark.scaled("crash-points")
@on_disk_and_long_on_s3
def test_overwrite_keeps_the_old_output_until_the_new_one_is_complete(site: Site) -> None:
    """Before the switch, the old output is unchanged. After it, the new one is complete."""
    new, job = site.directory / "out", site.job("out", mode="overwrite")
    site.run(other_job(site, "out"))
    unchanged, seen = files_of(new), OutputFaults(new, replaced=(OTHER,))
    recording = Recording(site, job)
    switch = recording.steps.index(f"write {REPLACEMENT}/_SUCCESS")

    def check(step: int) -> list[str]:
        wrong = [fault for fault in seen.at_any_moment() if REPLACEMENT not in fault]
        if step <= switch and files_of(new) != unchanged:
            wrong.append("the old output has changed")
        if step > switch and not any((new / mark).exists() for mark in SUCCESS_MARKS):
            wrong.append("no output is complete")
        return [*wrong, *faults_in_the_end(site, site.run_again(job), seen)]

    chosen = every_step if in_long_tier() else one_of_each_kind
    assert recording.faults(check, chosen(recording.steps)) == {}


def files_of(directory: Path) -> dict[str, bytes]:
    """Return the files of an output, without those of a replacement and the history."""
    files = {str(path.relative_to(directory)): path for path in directory.rglob("*")}
    return {
        name: path.read_bytes()
        for name, path in files.items()
        if path.is_file() and not name.startswith((REPLACEMENT, HISTORY))
    }


@on_disk
def test_append_keeps_the_rows_of_earlier_jobs(site: Site) -> None:
    output, job = site.directory / "out", site.job("out", mode="append", partitionBy=["n"])
    site.run(other_job(site, "out"))
    before = frozenset(OutputFaults(output).names())
    recording = Recording(site, job)
    state = Path(Layout.of(parse(job).spec).state.path).relative_to(output)
    seen = OutputFaults(output, str(state), (OTHER,), before)

    def check(_: int) -> list[str]:
        return [*seen.at_any_moment(), *faults_in_the_end(site, site.run_again(job), seen)]

    assert recording.faults(check, one_of_each_kind(recording.steps)) == {}


@on_disk
@pytest.mark.parametrize(
    "kind",
    [
        *("delta", "iceberg", "lance", "sql", "delta merge"),
        *(
            pytest.param(f"{format_} merge", marks=pytest.mark.long("crash-points"))
            for format_ in ("iceberg", "sql")
        ),
    ],
)
def test_table_gets_all_rows_at_once(site: Site, kind: str) -> None:
    format_, _, mode = kind.partition(" ")
    directory = site.directory / "table"
    directory.mkdir()
    merge = {"mode": mode, "key": ["values"]} if mode else {}
    job = site.job("table/out", **write_fields(format_, directory), **merge)
    recording = Recording(site, job, directory)
    closed = [step.endswith("/closed") for step in recording.steps].index(True)

    def check(step: int) -> list[str]:
        directory.mkdir(exist_ok=True)
        assert len(table_rows(format_, directory)) in (0, len(ROWS))
        CALLS.clear()
        report = site.run_again(job)
        assert report.state == JobState.SUCCEEDED, report.message
        again = [f"{len(CALLS)} batches were computed again"] if step > closed and CALLS else []
        rows = table_rows(format_, directory)
        wrong = [] if without_order(rows) == without_order(ROWS) else [f"{len(rows)} rows"]
        return [*wrong, *again, *unproven(directory / "out")]

    assert recording.faults(check, one_of_each_kind(recording.steps)) == {}
