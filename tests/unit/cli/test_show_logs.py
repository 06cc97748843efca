"""`logs --follow` prints each line of a growing log once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import typer

from batchinference.api.cluster_error import ClusterError
from batchinference.cli import show_logs
from batchinference.cli.show_logs import follow_log, new_lines
from batchinference.pipeline.errors import BadInput

NO_HEAD = ClusterError("no head")
NO_ANSWER = ClusterError("no answer")
NO_OUTPUT = BadInput("no output")
NOT_FOUND = ClusterError("not found (404)", 404)


@pytest.mark.parametrize(
    ("shown", "lines", "new"),
    [
        ([], ["a", "b"], ["a", "b"]),
        (["a"], ["a", "b"], ["b"]),
        (["a", "b"], ["a", "b"], []),
        (["a", "b", "c"], ["b", "c", "d"], ["d"]),
        (["a", "x", "a"], ["a", "x", "a", "x", "a"], ["x", "a"]),
        (["a", "b"], ["c", "d"], ["c", "d"]),
    ],
)
def test_lines_after_the_shown_ones_are_new(
    shown: list[str], lines: list[str], new: list[str]
) -> None:
    assert new_lines(shown, lines) == new


class Job:
    """A job on a cluster, and what can be read of it in each round: its phase, and its log. An
    exception is what reading raises."""

    is_job, text = True, "daily"

    def __init__(self, *rounds: tuple[Any, Any]) -> None:
        self._rounds = list(rounds)

    def sleep(self, _: float) -> None:
        self._rounds.pop(0)

    def cluster(self) -> Job:
        return self

    def get(self, name: str) -> Any:
        status = {"phase": answer(self._rounds[0][0])}
        return {"metadata": {"name": name}, "spec": {"write": {"path": "out"}}, "status": status}

    def log(self, *_: Any) -> str:
        return str(answer(self._rounds[0][1]))


def answer(given: Any) -> Any:
    if isinstance(given, Exception):
        raise given
    return given


@pytest.fixture
def follow(monkeypatch: pytest.MonkeyPatch) -> Callable[[Job], None]:
    """Return a function that follows the log of a job."""

    def run(job: Job) -> None:
        running = {"Starting", "Running"}
        phase = lambda: job.get("")["status"]["phase"]  # noqa: E731
        monkeypatch.setattr(
            show_logs, "running_log", lambda *_: job.log() if phase() in running else None
        )
        monkeypatch.setattr(show_logs, "last_log", job.log)
        monkeypatch.setattr(show_logs, "read_output", lambda *_: job.log())
        follow_log(job, job.sleep)  # type: ignore[arg-type]

    return run


def test_log_is_followed_until_the_run_has_ended(
    follow: Callable[[Job], None], capsys: pytest.CaptureFixture[str]
) -> None:
    rounds = [("Pending", NO_OUTPUT), ("Starting", NO_HEAD), ("Starting", NO_HEAD)]
    rounds += [("Running", "a"), ("Running", OSError("reset")), ("Running", "a\nb")]
    rounds += [(NO_ANSWER, ""), ("Running", NO_HEAD), ("Succeeded", "a\nb\nc")]
    follow(Job(*rounds))
    printed = capsys.readouterr()
    assert printed.out.split() == ["a", "b", "c"]
    reasons = [NO_OUTPUT, NO_HEAD, "reset", NO_ANSWER]
    assert printed.err.splitlines() == [f"logs: {reason}" for reason in reasons]


@pytest.mark.parametrize("rounds", [[(NO_ANSWER, "")], [("Running", "a"), (NOT_FOUND, "")]])
def test_job_that_cannot_be_followed_ends_the_command(
    follow: Callable[[Job], None], rounds: list[tuple[Any, Any]]
) -> None:
    with pytest.raises(typer.Exit):
        follow(Job(*rounds))
