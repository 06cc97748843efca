"""Processes that were held up, and go on when others have done their work: they change nothing.

Each is stopped before every step in turn (SIGSTOP), until another run has finished the output. A
task that comes late finds that the output is another run's, or closed, and takes back what it has
put. So a plain reader may see its file for a moment, and one window is left: a task that dies
between that put and its look. `batchinference verify` finds such a file.
"""

from __future__ import annotations

import signal
from itertools import product

import pytest

from batchinference.spec.report import JobState
from support.crashes import Place, Played, faults
from support.played_outputs import Seen

STOP, KILL = signal.SIGSTOP, signal.SIGKILL
OF_TASKS = ("part-", "TASK.json")
"""What tasks put."""


def of_tasks(steps: list[str]) -> list[int]:
    """The numbers of the steps that tasks do."""
    closing = steps.index("write _batchinference/attempts/*/closed")
    return [n for n, name in enumerate(steps[:closing]) if any(put in name for put in OF_TASKS)]


def of_the_driver_at_the_end(steps: list[str]) -> list[int]:
    closing = steps.index("write _batchinference/attempts/*/closed")
    return [n for n in range(closing, len(steps)) if ": " not in steps[n]]


class TestOfAnEarlierRun:
    def late(self, place: Place, step: int) -> tuple[Played, Seen, set[str]]:
        """A run that is stopped, and the files of the one that has finished the output."""
        job, seen = place.job(f"out-{step}"), Seen(place.directory / f"out-{step}")
        late = Played(place, job, {step: STOP})
        late.wait_for_stop()
        later = place.play(job).report
        assert later.state == JobState.SUCCEEDED, later.message
        assert list(seen.of_the_end()) == []
        return late, seen, {name for name in seen.names() if "/attempts/" not in name}

    def test_a_task_that_goes_on_adds_nothing(self, place: Place) -> None:
        def check(step: int) -> list[str]:
            late, seen, files = self.late(place, step)
            late.go_on()
            assert late.end() == 0
            changed = {name for name in seen.names() if "/attempts/" not in name} ^ files
            wrong = [*seen.of_the_end(), *sorted(changed)]
            return wrong if late.report.state == JobState.FAILED else [*wrong, "no failure"]

        steps = place.play(place.job("undisturbed")).steps
        assert faults(check, of_tasks(steps)[::2]) == {}

    @pytest.mark.parametrize("place", ["posix"], indirect=True)
    def test_a_driver_that_goes_on_to_finish_changes_no_row(self, place: Place) -> None:
        def check(step: int) -> list[str]:
            late, seen, _ = self.late(place, step)
            late.go_on()
            assert late.end() == 0
            return list(seen.of_the_end())

        steps = place.play(place.job("undisturbed")).steps
        assert faults(check, of_the_driver_at_the_end(steps)) == {}

    @pytest.mark.parametrize("place", ["posix"], indirect=True)
    def test_a_driver_that_goes_on_does_not_bring_a_file_back(self, place: Place) -> None:
        """One that was damaged meanwhile, so that its rows were done again."""
        steps = place.play(place.job("undisturbed")).steps
        job, output = place.job("out"), place.directory / "out"
        retyping = steps.index("write _batchinference/attempts/*/retyped/*.json")
        late = Played(place, job, {retyping: STOP})
        late.wait_for_stop()
        for file in output.glob("part-*"):
            file.write_bytes(b"")
        assert place.play(job).report.state == JobState.SUCCEEDED
        late.go_on()
        assert late.end() == 0
        assert late.report.reason == "BadOutput"
        assert list(Seen(output).of_the_end()) == []


class TestThatRunsTwice:
    """A task that Ray has started again elsewhere, because it has lost sight of the first."""

    def finished(
        self, place: Place, name: str, driver: int, task: dict[int, signal.Signals]
    ) -> Played:
        """The driver is stopped before a step until the task has come to its own stop, or its
        end; then it finishes the output. The task comes back."""
        job = place.job(name)
        run = Played(place, job, {driver: STOP})
        run.wait_for_stop()
        twin = Played(place, job, task, task=0)
        twin.wait_for_stop()
        run.go_on()
        assert run.end() == 0
        assert run.report.state == JobState.SUCCEEDED, run.report.message
        return twin

    def test_counts_once_whichever_of_the_two_is_late(self, place: Place) -> None:
        steps = place.play(place.job("undisturbed")).steps
        cases = list(product(of_the_driver_at_the_end(steps)[:3], range(4)))

        def check(case: int) -> list[str]:
            driver, step = cases[case]
            # a step on a disk is two: the file, and its name
            step = 2 * step if place.local else step
            twin = self.finished(place, f"out-{case}", driver, {step: STOP})
            twin.go_on()
            assert twin.end() == 0
            return list(Seen(place.directory / f"out-{case}").of_the_end())

        assert faults(check, range(len(cases))) == {}

    @pytest.mark.parametrize("place", ["posix"], indirect=True)
    def test_adds_nothing_to_the_run_after_a_driver_that_was_killed(self, place: Place) -> None:
        """Its manifest comes when the output was closed, and its data has been removed."""
        steps = place.play(place.job("undisturbed")).steps
        closing = steps.index("write _batchinference/attempts/*/closed")
        job = place.job("out")
        run = Played(place, job, {closing: STOP, steps.index("write _SUCCESS"): KILL})
        run.wait_for_stop()
        manifest = steps.index("write _batchinference/attempts/*/TASK.json")
        twin = Played(place, job, {manifest - steps.index("write part-*.parquet"): STOP}, task=0)
        twin.wait_for_stop()
        run.go_on()
        assert run.end() == -KILL
        twin.go_on()
        assert twin.end() == 0
        assert twin.steps[-2].endswith("TASK.json: rename")
        assert place.play(job).report.state == JobState.SUCCEEDED
        assert list(Seen(place.directory / "out").of_the_end()) == []

    @pytest.mark.parametrize("place", ["posix"], indirect=True)
    def test_and_dies_before_it_takes_its_file_back_leaves_that(self, place: Place) -> None:
        """The window that is left: it has begun before the output was closed, puts its file when
        others have been removed, and dies. No list names the file."""
        steps = place.play(place.job("undisturbed")).steps
        closing = steps.index("write _batchinference/attempts/*/closed")
        twin = self.finished(place, "out", closing, {0: STOP, 2: KILL})
        seen = Seen(place.directory / "out")
        assert list(seen.of_the_end()) == []
        twin.go_on()
        assert twin.end() == -KILL
        rows, file = seen.of_the_end()
        assert rows.startswith("rows too many")
        assert file.startswith("too many: part-")
