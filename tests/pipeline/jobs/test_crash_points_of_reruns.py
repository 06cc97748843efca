"""Reruns that die: retries of failed rows, new files, or both in a complete output, and a
correction of the code before the first commit.

The next run finishes the output with each row exactly once. `make landing` tests only the rerun
that retries and adds files, and the one with corrected code."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from batchinference.pipeline.commit.code_and_spec_changes import serialized_code
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.verify.verify import verify
from batchinference.spec.report import JobState
from support.documents.minimal import Document
from support.jobs.crash_points import Recording, Site, one_of_each_kind
from support.jobs.on_ray import without_order
from support.jobs.user_code import LATER
from support.jobs.without_ray import INPUT, ROWS
from support.outputs.checks import OutputFaults
from support.tiers import in_long_tier

pytestmark = [
    pytest.mark.xdist_group("crashes"),
    pytest.mark.parametrize("site", ["posix"], indirect=True),
]

GOOD = {"n": 20, "values": 8, "half": 4.0}
REPAIRED = {"n": 21, "values": 11, "half": None}
BAD = {"n": 22, "values": -3}
"""Rows that earlier nights have read."""
OLD = {"n": 23, "values": 6, "half": 3.0}
"""A row of a file that changes, or of one that is deleted."""
NOWHERE = "nowhere"
"""No state directory. Of an output of several nights, only the rows are checked."""


def faults(
    site: Site, job: Document, seen: Callable[[], OutputFaults], every: int = 1
) -> dict[str, list[str]]:
    """Return the faults in the state before each kind of step of this run, and after the next
    run. With `every`, test only every second or third kind."""
    output = Path(job["spec"]["write"]["path"])
    recording = Recording(site, job)

    def in_the_end() -> list[str]:
        proof = verify(Location(str(output)))
        findings = [*proof.findings, *(finding for work in proof.jobs for finding in work.findings)]
        of_rows = seen().at_the_end() if seen().state != NOWHERE else rows_of_all(seen())
        return [f"in the end: {fault}" for fault in (*findings, *of_rows)]

    def after_the_next_run(_: int) -> list[str]:
        wrong = [f"at once: {fault}" for fault in seen().at_any_moment()]
        last = site.run_again(job)
        if last.state != JobState.SUCCEEDED:
            return [*wrong, f"in the end: {last.reason}: {last.message}"]
        return [*wrong, *in_the_end()]

    assert in_the_end() == []
    return recording.faults(after_the_next_run, one_of_each_kind(recording.steps)[::every])


def rows_of_all(seen: OutputFaults) -> list[str]:
    wanted = without_order([*ROWS, GOOD, REPAIRED])
    return [] if without_order(seen.rows()) == wanted else [f"rows: {seen.rows()}"]


def repairable(site: Site, name: str, **write: str) -> Document:
    """Return the small job, in which more rows fail until a file exists."""
    job = site.job(name, **write)
    own = {"callable": "support.jobs.user_code:half_until"}
    own["callArgs"] = {"file": str(site.directory / "repaired")}
    job["spec"]["steps"][2]["python"] = own
    return job


@pytest.mark.long("crash-points")
def test_killed_retry_of_failed_rows_is_finished(site: Site) -> None:
    """The output already has other values for some of these rows."""
    job = repairable(site, "out")
    assert site.run(job).report.state == JobState.SUCCEEDED
    first = tuple(row for row in ROWS if row["values"] not in LATER)
    (site.directory / "repaired").touch()
    job["spec"]["errors"]["retryFailedRows"] = True
    seen = OutputFaults(site.directory / "out", replaced=first)
    assert len(seen.rows()) == len(first) == len(ROWS) - len(LATER)
    assert faults(site, job, lambda: seen) == {}


def night(site: Site, job: Document, *rows: Document) -> None:
    """Add these rows to the input, and run the job of that night."""
    source = site.directory / "nights"
    source.mkdir(exist_ok=True)
    job["spec"]["read"]["paths"] = [str(source)]
    lines = "".join(json.dumps({"n": row["n"], "values": [row["values"]]}) + "\n" for row in rows)
    (source / f"{len(list(source.iterdir()))}.jsonl").write_text(lines)
    assert site.run(job).report.state == JobState.SUCCEEDED


def add_input(site: Site) -> None:
    for name in INPUT:
        shutil.copy(site.directory / "in" / name, site.directory / "nights")


@pytest.mark.long("crash-points")
def test_killed_append_of_new_files_is_finished(site: Site) -> None:
    job, output = site.job("out", mode="append"), site.directory / "out"
    night(site, job, GOOD)
    before = frozenset(OutputFaults(output).names())
    add_input(site)

    def seen() -> OutputFaults:
        names = [path.name for path in (output / "_batchinference").glob("append-*-0001")]
        return OutputFaults(output, f"_batchinference/{(names or ['append'])[0]}", (GOOD,), before)

    assert faults(site, job, seen) == {}


@pytest.mark.scaled("crash-points")
def test_killed_retry_of_several_appends_is_finished(site: Site) -> None:
    """The steps are those of three jobs of the output, with 51 kinds."""
    job = repairable(site, "out", mode="append")
    night(site, job, GOOD, BAD)
    night(site, job, REPAIRED)
    add_input(site)
    (site.directory / "repaired").touch()
    job["spec"]["errors"]["retryFailedRows"] = True
    seen = OutputFaults(site.directory / "out", NOWHERE, (GOOD,), replaced=(REPAIRED,))
    assert without_order(seen.rows()) == without_order([GOOD])
    assert faults(site, job, lambda: seen, every=1 if in_long_tier() else 2) == {}


class OldOrNew(OutputFaults):
    """An output with the rows of one file: while it is complete, either the old or the new ones."""

    def at_any_moment(self) -> Iterator[str]:
        yield from super().at_any_moment()
        rows = self.rows()
        complete = list(self.output.glob("_batchinference/append-????????/_SUCCESS"))
        if complete and (OLD in rows) == (REPAIRED in rows):
            yield f"complete with the rows {rows}"


@pytest.mark.scaled("crash-points")
def test_killed_replacement_of_changed_and_deleted_files_is_finished(site: Site) -> None:
    """Each kill leaves the old rows, the new ones or, without _SUCCESS, none of them."""
    job = site.job("out", mode="append")
    job["spec"]["read"] |= {"onChange": "recompute", "onDelete": "removeRows"}
    night(site, job, GOOD)
    night(site, job, OLD)
    night(site, job, OLD | {"n": 24})
    source = site.directory / "nights"
    shutil.rmtree(site.directory / "out")
    assert site.run(job).report.state == JobState.SUCCEEDED, "all files in one output file"
    (source / "1.jsonl").write_text(json.dumps({"n": 21, "values": [11]}) + "\n")
    (source / "2.jsonl").unlink()
    add_input(site)
    replaced = (REPAIRED, OLD, OLD | {"n": 24})
    seen = OldOrNew(site.directory / "out", NOWHERE, (GOOD,), replaced=replaced)
    assert faults(site, job, lambda: seen, every=1 if in_long_tier() else 2) == {}


def test_correction_of_the_code_before_the_first_commit(site: Site) -> None:
    job, manifest = site.job("out"), "write _batchinference/attempts/*/TASK.json"
    site.run(job, site.run(site.job("undisturbed")).steps.index(manifest))
    code = Location(str(site.directory / "out" / "_batchinference" / "code.json"))
    code.write(serialized_code({"steps[2].python: module corrected.py": "0"}))
    seen = OutputFaults(site.directory / "out")
    assert any("part-" in name for name in seen.names()), "a file without a commit"
    assert faults(site, job, lambda: seen) == {}
