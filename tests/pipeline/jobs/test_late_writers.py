"""Processes that are stopped (SIGSTOP) and continue after another run has finished the output.

A late task finds that another run holds the lease, or that the pass is closed. It then removes
the file that it has written, so a plain reader may see this file for a moment. One window remains:
a task that dies between its write and its check. `batchinference verify` finds the file it leaves.
"""

from __future__ import annotations

import signal
from itertools import product
from pathlib import Path

import pytest

from batchinference.spec.report import JobState
from support.documents.minimal import Document
from support.jobs.crash_points import JobProcess, Site, faults, on_disk, on_disk_and_long_on_s3
from support.outputs.checks import OutputFaults
from support.tiers import in_long_tier

pytestmark = pytest.mark.xdist_group("crashes")
STOP, KILL = signal.SIGSTOP, signal.SIGKILL
OF_TASKS = ("part-", "TASK.json")
"""The files that tasks write."""


def of_tasks(steps: list[str]) -> list[int]:
    """Return the numbers of the steps that tasks perform."""
    closing = steps.index("write _batchinference/attempts/*/closed")
    return [n for n, name in enumerate(steps[:closing]) if any(put in name for put in OF_TASKS)]


def of_kinds(steps: list[str]) -> list[int]:
    """Return the number of the first task step of each kind."""
    return list({steps[n]: n for n in reversed(of_tasks(steps))}.values())


def driver_steps_at_the_end(steps: list[str]) -> list[int]:
    closing = steps.index("write _batchinference/attempts/*/closed")
    return [n for n in range(closing, len(steps)) if ": " not in steps[n]]


def driver_steps_at_the_beginning(steps: list[str]) -> list[int]:
    """Return the numbers of the steps before the first task: from the claim on, or the pass."""
    first = next(n for n, name in enumerate(steps) if any(put in name for put in OF_TASKS))
    return [n for n in range(first) if ": " not in steps[n]]


def driver_steps_at_the_replacement(steps: list[str]) -> list[int]:
    """Return those after its claim. Before it, the run begins another one after the other run."""
    claim = steps.index("write _batchinference/replacement/job.json")
    return [n for n in driver_steps_at_the_beginning(steps) if n > claim]


def without_runs(output: Path) -> dict[str, bytes]:
    """Return the files of an output, without locks, the page for people, and those with the name
    of a pass or a run."""
    files = (path for path in output.rglob("*") if path.is_file())
    named = {str(path.relative_to(output)): path.read_bytes() for path in files}
    others = ("attempts/", "history/", ".lock", "report.html")
    return {name: named[name] for name in named if not any(part in name for part in others)}


def changed_files(before: dict[str, bytes], output: Path) -> list[str]:
    """Return the names of the files that differ from `before`."""
    return sorted({file for file, _ in before.items() ^ without_runs(output).items()})


BEGINNINGS = {
    "new": lambda site, job, steps: job,
    "restarted": lambda site, job, steps: _interrupted(site, job, steps, resume=False),
    "resumed": lambda site, job, steps: _interrupted(site, job, steps, resume=True),
    "replacement": lambda site, job, steps: _complete(site, job),
}
"""Each prepares the output of a job, and returns the job that begins there."""


def _interrupted(site: Site, job: Document, steps: list[str], *, resume: bool) -> Document:
    manifests = [n for n, name in enumerate(steps) if name.endswith("TASK.json")]
    site.run(job, manifests[-1])
    changed = job["spec"] | {"resume": resume, "errors": {"maxRows": 11}}
    return job | {"spec": changed}


def _complete(site: Site, job: Document) -> Document:
    assert site.run(job).report.state == JobState.SUCCEEDED
    return job | {"spec": job["spec"] | {"write": job["spec"]["write"] | {"mode": "overwrite"}}}


class TestLateBeginning:
    @on_disk_and_long_on_s3
    @pytest.mark.scaled("crash-points")
    @pytest.mark.parametrize("beginning", BEGINNINGS)
    def test_late_driver_changes_nothing(self, site: Site, beginning: str) -> None:
        """It is stopped before a change while it begins, and another run completes the output."""

        def check(step: int) -> list[str]:
            name = f"out-{step}"
            job = BEGINNINGS[beginning](site, site.job(name), undisturbed)
            late = JobProcess(site, job, {step: STOP})
            late.wait_for_stop()
            later = site.run(job).report
            output = site.directory / name
            seen, before = OutputFaults(output), without_runs(output)
            late.continue_process()
            assert late.end() == 0
            wrong = [] if later.state == JobState.SUCCEEDED else [f"later: {later.message}"]
            wrong += [] if late.report.state == JobState.FAILED else ["no failure"]
            return [*wrong, *changed_files(before, output), *seen.at_the_end()]

        undisturbed = site.run(site.job("undisturbed")).steps
        job = BEGINNINGS[beginning](site, site.job("known"), undisturbed)
        steps = site.run(job).steps
        of_replacement = beginning == "replacement"
        steps_of = (
            driver_steps_at_the_replacement if of_replacement else driver_steps_at_the_beginning
        )
        every = 1 if in_long_tier() or beginning == "new" else 3
        assert faults(check, steps_of(steps)[::every]) == {}


class TestEarlierRun:
    def late(self, site: Site, step: int) -> tuple[JobProcess, OutputFaults, set[str]]:
        """Stop a run before a step, and finish the output by another run. Return the stopped run, a
        checker of the output, and the files of the finished output."""
        job, seen = site.job(f"out-{step}"), OutputFaults(site.directory / f"out-{step}")
        late = JobProcess(site, job, {step: STOP})
        late.wait_for_stop()
        later = site.run(job).report
        assert later.state == JobState.SUCCEEDED, later.message
        assert list(seen.at_the_end()) == []
        return late, seen, {name for name in seen.names() if "/attempts/" not in name}

    @pytest.mark.scaled("crash-points")
    def test_late_task_adds_nothing(self, site: Site) -> None:
        def check(step: int) -> list[str]:
            late, seen, files = self.late(site, step)
            late.continue_process()
            assert late.end() == 0
            changed = {name for name in seen.names() if "/attempts/" not in name} ^ files
            wrong = [*seen.at_the_end(), *sorted(changed)]
            return wrong if late.report.state == JobState.FAILED else [*wrong, "no failure"]

        steps = site.run(site.job("undisturbed")).steps
        chosen = of_tasks(steps)[::2] if in_long_tier() else of_kinds(steps)
        assert faults(check, chosen) == {}

    @on_disk
    def test_late_driver_changes_nothing(self, site: Site) -> None:
        def check(step: int) -> list[str]:
            late, seen, _ = self.late(site, step)
            before = without_runs(seen.output)
            late.continue_process()
            assert late.end() == 0
            return [*changed_files(before, seen.output), *seen.at_the_end()]

        steps = site.run(site.job("undisturbed")).steps
        assert faults(check, driver_steps_at_the_end(steps)) == {}

    @on_disk
    def test_late_driver_does_not_restore_a_removed_file(self, site: Site) -> None:
        """The file was damaged meanwhile, so its rows were processed again."""
        steps = site.run(site.job("undisturbed")).steps
        job, output = site.job("out"), site.directory / "out"
        closing = steps.index("write _batchinference/attempts/*/closed")
        rewriting = steps.index("write part-*.parquet", closing)
        late = JobProcess(site, job, {rewriting: STOP})
        late.wait_for_stop()
        for file in output.glob("part-*"):
            file.write_bytes(b"")
        assert site.run(job).report.state == JobState.SUCCEEDED
        late.continue_process()
        assert late.end() == 0
        assert late.report.reason == "BadOutput"
        assert list(OutputFaults(output).at_the_end()) == []


class TestDuplicateTask:
    """Ray has started a task again because it lost contact with the first one."""

    def finished(
        self, site: Site, name: str, driver: int, task: dict[int, signal.Signals]
    ) -> JobProcess:
        """Stop the driver before a step until the task has stopped or ended. Then let the driver
        finish the output. Return the task."""
        job = site.job(name)
        run = JobProcess(site, job, {driver: STOP})
        run.wait_for_stop()
        twin = JobProcess(site, job, task, task=0)
        twin.wait_for_stop()
        run.continue_process()
        assert run.end() == 0
        assert run.report.state == JobState.SUCCEEDED, run.report.message
        return twin

    @on_disk_and_long_on_s3
    def test_rows_count_once_whichever_task_is_late(self, site: Site) -> None:
        steps = site.run(site.job("undisturbed")).steps
        cases = list(product(driver_steps_at_the_end(steps)[:3], range(4)))

        def check(case: int) -> list[str]:
            driver, step = cases[case]
            # on a disk, a write is two steps: the file and its rename
            step = 2 * step if site.local else step
            twin = self.finished(site, f"out-{case}", driver, {step: STOP})
            twin.continue_process()
            assert twin.end() == 0
            return list(OutputFaults(site.directory / f"out-{case}").at_the_end())

        assert faults(check, range(len(cases))) == {}

    @on_disk
    def test_late_task_of_a_killed_driver_adds_nothing(self, site: Site) -> None:
        """Its manifest arrives after the pass was closed and its data was removed."""
        steps = site.run(site.job("undisturbed")).steps
        closing = steps.index("write _batchinference/attempts/*/closed")
        job = site.job("out")
        run = JobProcess(site, job, {closing: STOP, steps.index("write _SUCCESS"): KILL})
        run.wait_for_stop()
        manifest = steps.index("write _batchinference/attempts/*/TASK.json")
        twin = JobProcess(site, job, {manifest - steps.index("write part-*.parquet"): STOP}, task=0)
        twin.wait_for_stop()
        run.continue_process()
        assert run.end() == -KILL
        twin.continue_process()
        assert twin.end() == 0
        assert any(step.endswith("TASK.json: rename") for step in twin.steps)
        assert site.run(job).report.state == JobState.SUCCEEDED
        assert list(OutputFaults(site.directory / "out").at_the_end()) == []

    @on_disk
    def test_task_killed_before_it_removes_its_file_leaves_the_file(self, site: Site) -> None:
        """The remaining window: the task began before the pass was closed, writes its file after
        uncommitted files were removed, and dies. No manifest names the file."""
        steps = site.run(site.job("undisturbed")).steps
        closing = steps.index("write _batchinference/attempts/*/closed")
        twin = self.finished(site, "out", closing, {0: STOP, 2: KILL})
        seen = OutputFaults(site.directory / "out")
        assert list(seen.at_the_end()) == []
        twin.continue_process()
        assert twin.end() == -KILL
        rows, file = seen.at_the_end()
        assert rows.startswith("rows too many")
        assert file.startswith("too many: part-")
