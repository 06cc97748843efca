"""Two jobs as kubectl, the command line and the page of `ui` show them while they run, are retried,
and have ended.

One is the example text-embeddings. In the other one, a step raises an error for each row. Each job
waits at a gate until it has been recorded: no test depends on how fast the commands are.
docs/transcript.md is a recording of what kubectl shows: `make transcript`.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from batchinference.spec.progress import STARTING
from e2e.job_pages import fetched_page
from e2e.jobs import Example
from e2e.transcripts import CommandLine, anonymous, check_page, is_watched
from support.cluster.kubectl import Kubectl, Object, condition
from support.cluster.object_store import ObjectStore
from support.cluster.statuses import Statuses, WatchingKubectl
from support.cluster.waits import (
    CLUSTER_START,
    JOB_END,
    outcomes,
    patch,
    wait_for_phase,
    wait_for_rows,
    wait_until_none_is_left,
)
from support.documents.minimal import document, python_step
from support.documents.recordings import Shown, thinned
from support.outputs.rows import assert_same_rows
from support.timeouts import scaled, time_limit

pytestmark = pytest.mark.xdist_group("transcript")
Job = dict[str, Any]
NAME, FAILS = "text-embeddings", "division"
RECORDING_MINUTES = 15
"""Minutes that both jobs and all commands may take. The timeouts of tests exclude fixtures."""
RUNNING, RETRIED, FAILED, FINISHED = (
    "A running job", "A job that is retried", "A failed job", "A finished job"
)  # fmt: skip
PHASES = {RUNNING: "running", RETRIED: STARTING, FAILED: "failed", FINISHED: "succeeded"}
"""The phase on the page of `ui`, by the state of the job."""
WORKERS = r"cpu \d+/\d+ ready"
PAGE = "docs/transcript.md"
HEAD = """# A job as kubectl shows it

This page shows what kubectl prints for a job that succeeds, and for one that is retried and fails.

Recorded by `make transcript` on a cluster with KubeRay 1.6. The first job is the example
[text-embeddings](../examples/text-embeddings/job.yaml). In the second one, a step raises an error
for each row. Its first attempt allows no failed row; then `errors.maxRows` is raised to 100 for its
only retry, which `retry.onCause: {Application: Retry}` allows. A test compares columns and fields
with this page.
"""


@dataclass(frozen=True)
class State:
    """What the command line shows in a state of a job, and the HTML of the page of `ui`."""

    commands: list[Shown]
    page: str


@dataclass(frozen=True)
class Recording:
    kubectl: list[Shown]
    states: dict[str, State]
    complete: Object
    """The last status of the job that succeeds."""
    failed: Object
    """The last status of the job that fails."""
    history: Statuses

    @property
    def commands(self) -> dict[str, list[Shown]]:
        """What the command line shows, by the state of the job."""
        return {title: state.commands for title, state in self.states.items()}

    def shown(self, state: str, verb: str) -> Shown:
        (one,) = (
            one
            for one in self.states[state].commands
            if one.command.split()[1] == verb and not is_watched(one)
        )
        return one

    def watched(self, state: str) -> Shown:
        """Return what `status --watch` has printed."""
        (command,) = filter(is_watched, self.states[state].commands)
        return command


@pytest.fixture(scope="module")
def embeddings(example: Callable[..., Example]) -> Example:
    return example(NAME, files=1)


@pytest.fixture(scope="module")
def command_line(kubectl: WatchingKubectl, store: ObjectStore) -> CommandLine:
    return CommandLine(kubectl, store)


@pytest.fixture(scope="module")
def small_cluster(own_code: Job) -> Job:
    """Return the field `cluster` of a job with one worker."""
    return {**own_code, "workers": {"max": 1}}


@pytest.fixture(scope="module")
def succeeding(embeddings: Example, store: ObjectStore, small_cluster: Job) -> Job:
    """Return the example with a step that waits at the gate with one of the last rows."""
    job = embeddings.job()
    wait = python_step("wait", "slow:hold")
    wait["python"]["callArgs"] = {"last": last_row(embeddings), "gate": gate_of(store, NAME)}
    *others, embed = job["spec"]["steps"]
    embed["replicas"] = {"min": 1, "max": 1}
    job["spec"] |= {"steps": [wait, *others, embed], "cluster": small_cluster}
    return job


def last_row(example: Example) -> str:
    """Return the last line of the input that occurs only once."""
    (file,) = (example.directory / "data").iterdir()
    lines = file.read_text().split("\n")
    occurrences = Counter(lines)
    return next(line for line in reversed(lines) if line.strip() and occurrences[line] == 1)


@pytest.fixture(scope="module")
def failing(embeddings: Example, store: ObjectStore, small_cluster: Job) -> Job:
    """Return a job whose step raises an error for each row. No failed row is allowed."""
    return document(
        FAILS,
        read=embeddings.job()["spec"]["read"],
        steps=[python_step("divide", "slow:divide")],
        write={"format": "parquet", "path": store.uri(FAILS)},
        errors={"values": True},
        retry={"maxAttempts": 2, "backoff": {"initial": "1s"}, "onCause": {"Application": "Retry"}},
        cluster=small_cluster,
    )


def gate_of(store: ObjectStore, name: str) -> str:
    """Return the URI of the object for which a job waits."""
    return store.uri(f"gates/{name}")


@pytest.fixture(scope="module")
def delete_jobs(kubectl: Kubectl) -> Iterator[None]:
    """Delete the jobs after the tests: if the recording has failed, they may wait at a gate."""
    yield
    kubectl("delete", "bi", NAME, FAILS, "--ignore-not-found", "--wait=false")


@pytest.fixture(scope="module")
def recording(
    kubectl: WatchingKubectl,
    command_line: CommandLine,
    succeeding: Job,
    failing: Job,
    delete_jobs: None,
) -> Recording:
    """Record one job after the other: two Ray clusters of one test overload a small machine."""
    with time_limit("both jobs are recorded", RECORDING_MINUTES):
        shown, running, complete = _record_success(kubectl, command_line, succeeding)
        more, retried, failed = _record_failure(kubectl, command_line, failing)
        states = {
            RUNNING: running,
            RETRIED: retried,
            FAILED: _after_the_end(command_line, FAILS),
            FINISHED: _after_the_end(command_line, NAME),
        }
    return Recording([*shown, *more], states, complete, failed, kubectl.history[NAME])


def _record_success(
    kubectl: WatchingKubectl, command_line: CommandLine, job: Job
) -> tuple[list[Shown], State, Object]:
    """Return what kubectl shows, the state of the running job, and the last status."""
    kubectl.apply(job)
    table: list[str] = []
    with watched(kubectl, NAME, table):
        wait_for_rows(kubectl, NAME)
        shown = [command_line("status", NAME)]
        page = fetched_page(command_line, NAME)
        with command_line.watching(NAME, shown):
            shown += command_line.of_output(NAME)
            _open_gate(command_line, NAME)
            seconds = scaled(JOB_END)
            wait = ("wait", "--for=condition=Complete", f"bi/{NAME}", f"--timeout={seconds:.0f}s")
            waited = _kubectl(kubectl, *wait, timeout=seconds + 10)
            complete = kubectl.wait_complete(NAME, JOB_END)
    return [_table(NAME, table), waited], State(shown, page), complete


def _record_failure(
    kubectl: WatchingKubectl, command_line: CommandLine, job: Job
) -> tuple[list[Shown], State, Object]:
    """Return what kubectl shows, the state of the job during the retry, and the last status."""
    kubectl.apply(job)
    table: list[str] = []
    with watched(kubectl, FAILS, table):
        kubectl.status_when(FAILS, "has started", _has_started, CLUSTER_START)
        _allow_failed_rows(kubectl, job, gate_of(command_line.store, FAILS))
        kubectl.status_when(FAILS, "runs again", _runs_again, JOB_END)
        shown = [command_line("status", FAILS)]
        page = fetched_page(command_line, FAILS)
        with command_line.watching(FAILS, shown):
            shown += command_line.of_output(FAILS)
            _open_gate(command_line, FAILS)
            failed = wait_for_phase(kubectl, FAILS, "Failed")
    described = _kubectl(kubectl, "describe", "bi", FAILS)
    return [_table(FAILS, table), described], State(shown, page), failed


def _has_started(status: Object) -> bool:
    """Return whether the RayJob of the first attempt exists: changes apply to the next attempt."""
    return any("startTime" in attempt for attempt in status.get("attempts", []))


def _runs_again(status: Object) -> bool:
    return (status.get("attempt"), status.get("phase")) == (2, "Running")


def _allow_failed_rows(kubectl: Kubectl, job: Job, gate: str) -> None:
    """Allow failed rows in the next attempt, and let its step wait at a gate."""
    env = [*job["spec"]["cluster"]["env"], {"name": "GATE", "value": gate}]
    patch(kubectl, FAILS, errors={"maxRows": 100}, cluster={"env": env})


def _open_gate(command_line: CommandLine, name: str) -> None:
    command_line.store.put(gate_of(command_line.store, name))


def _after_the_end(command_line: CommandLine, name: str) -> State:
    shown = [command_line("status", name), command_line("status", name, "--watch")]
    page = fetched_page(command_line, name)
    return State([*shown, *command_line.of_output(name)], page)


def _kubectl(kubectl: Kubectl, *arguments: str, timeout: float = 120) -> Shown:
    return Shown(f"kubectl {' '.join(arguments)}", kubectl(*arguments, timeout=timeout))


def _table(name: str, lines: list[str]) -> Shown:
    states = [line.split()[1] for line in lines]
    return Shown(f"kubectl get bi {name} --watch", thinned(lines, states))


@contextmanager
def watched(kubectl: Kubectl, name: str, lines: list[str]) -> Iterator[None]:
    """Add the lines of `kubectl get --watch` during the block to `lines`."""
    command = ["kubectl", "--namespace", kubectl.namespace, "get", "bi", name, "--watch"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield
        finally:
            process.terminate()
            lines += process.stdout.read().splitlines()


@pytest.fixture
def write(request: pytest.FixtureRequest) -> bool:
    """Return whether the page is written, and not only compared."""
    return bool(request.config.getoption("--write-transcript"))


def test_page_has_the_columns_and_fields_that_kubectl_shows(
    kubectl: Kubectl, recording: Recording, write: bool
) -> None:
    sections = anonymous({"": recording.kubectl}, kubectl.namespace)
    check_page(PAGE, HEAD, sections, write=write)


def test_command_line_shows_a_running_job_and_its_workers(recording: Recording) -> None:
    assert re.search(r"^state +Running$", recording.shown(RUNNING, "status").text, re.MULTILINE)
    assert re.search(rf"^workers +{WORKERS}", recording.shown(RUNNING, "status").text, re.MULTILINE)
    watched_lines = recording.watched(RUNNING)
    assert re.search(rf"^Running, .* rows.* workers {WORKERS}", watched_lines.text, re.MULTILINE)
    assert (watched_lines.exit_code, watched_lines.lines[-1].split(",")[0]) == (0, "Succeeded")
    assert [recording.shown(RUNNING, verb).exit_code for verb in ("errors", "logs")] == [0, 0]
    assert "text-embeddings: running" in recording.shown(RUNNING, "logs").text


def test_command_line_shows_the_last_attempt_of_a_retried_job(recording: Recording) -> None:
    assert re.search(r"^attempt +2$", recording.shown(RETRIED, "status").text, re.MULTILINE)
    assert recording.shown(RETRIED, "errors").text == "no failed rows\n"
    assert "division: preparing" in recording.shown(RETRIED, "logs").text
    assert recording.watched(RETRIED).exit_code == 1


def test_command_line_shows_why_a_job_has_failed(recording: Recording) -> None:
    shown = [recording.shown(FAILED, verb) for verb in ("status", "logs")]
    for one in (*shown, recording.watched(FAILED)):
        limit = "TooManyErrors" in one.text or "limit: errors.maxRows (100)" in one.text
        assert limit, one.command
    assert recording.watched(FAILED).exit_code == 1
    errors = recording.shown(FAILED, "errors").text
    for word in ("1 cause", "step 'divide': ZeroDivisionError", "topics-0.txt", "values: "):
        assert word in errors


def test_command_line_shows_a_finished_job(recording: Recording) -> None:
    assert [one.exit_code for one in recording.commands[FINISHED]] == [0] * 4
    assert recording.shown(FINISHED, "errors").text == "no failed rows\n"
    assert "text-embeddings: succeeded" in recording.shown(FINISHED, "logs").text


@pytest.mark.parametrize(("state", "phase"), PHASES.items())
def test_page_of_ui_shows_the_phase(recording: Recording, state: str, phase: str) -> None:
    assert f">{phase}</strong>" in recording.states[state].page


def test_page_of_ui_shows_the_workers_of_a_running_job(recording: Recording) -> None:
    with_workers = {state for state in PHASES if re.search(WORKERS, recording.states[state].page)}
    assert RUNNING in with_workers
    assert not with_workers & {FAILED, FINISHED}


def test_page_of_ui_shows_failed_rows_and_links_to_the_report(recording: Recording) -> None:
    failed, finished = recording.states[FAILED].page, recording.states[FINISHED].page
    assert "ZeroDivisionError: no row can be divided today" in failed
    assert "Failed rows by cause" in failed
    for page in (failed, finished):
        assert 'href="0/report"' in page
    assert "Failed rows by cause" not in finished


def test_cost_in_the_report_is_about_that_of_the_status(
    command_line: CommandLine, recording: Recording
) -> None:
    """The driver does not count the start of the pods and the end of the attempt."""
    outputs = (recording.complete["output"], recording.failed["output"])
    costs, again = (command_line.report_of(output)["cost"] for output in outputs)
    total = float(recording.complete["cost"]["amount"])
    assert float(costs["before"]) == 0
    assert 0.25 * total < float(costs["amount"]) < 1.1 * total
    before = cost_of_first_attempt(recording.failed)
    assert float(again["before"]) == pytest.approx(before, rel=0.1)
    assert float(again["amount"]) > 0


def cost_of_first_attempt(status: Object) -> float:
    """Return the share of the first attempt in the cost of a job."""
    first, _ = status["attempts"]
    return float(float(status["cost"]["amount"]) * first["cpuSeconds"] / status["cpuSeconds"])


def test_text_embeddings_equal_those_made_on_this_machine(
    embeddings: Example, recording: Recording, tmp_path: Path
) -> None:
    rows = embeddings.rows(tmp_path)
    assert_same_rows(rows, embeddings.local_rows())
    counts = recording.complete["counts"]
    assert counts["written"] == len(rows)
    assert counts["read"] == counts["written"] + counts["filtered"]


def test_progress_is_reported_while_rows_are_done_and_never_decreases(recording: Recording) -> None:
    rows = recording.history.rows
    assert rows == sorted(rows)
    assert len(rows) > 2
    status = recording.complete
    assert rows[-1] == status["progress"]["rows"] == status["counts"]["read"]
    assert status["progress"]["percent"] == 100
    assert status["startTime"] < status["completionTime"]


def test_get_shows_the_result_of_a_complete_job(kubectl: Kubectl, recording: Recording) -> None:
    header, line = kubectl("get", "bi", NAME).splitlines()
    columns = "NAME PHASE REASON PROGRESS ROWS FAILED ROWSPERSECOND ETA ATTEMPTS AGE"
    assert header.split() == columns.split()
    phase, reason, percent, rows, failed, rate = line.split()[1:7]
    assert (phase, reason, percent, failed) == ("Succeeded", "Succeeded", "100", "0")
    assert int(rows) == recording.complete["counts"]["read"]
    assert float(rate) > 0


def test_complete_job_releases_its_cluster(kubectl: Kubectl, recording: Recording) -> None:
    wait_until_none_is_left(kubectl, NAME, "rayclusters,pods")


def test_raising_step_is_retried_and_named_with_exception_and_file(recording: Recording) -> None:
    """Without a limit, the first failed row fails an attempt. With one, too many failed rows do."""
    attempts = recording.failed["attempts"]
    assert outcomes(recording.failed) == ["Failed", "Failed"]
    assert [one["cause"] for one in attempts] == ["Application", "TooManyErrors"]
    failed = condition(recording.failed, "Failed", "True")
    assert failed is not None
    assert failed["reason"] == "TooManyErrors"
    for message in (attempts[0]["message"], failed["message"]):
        for word in ("divide", "ZeroDivisionError", "no row can be divided today", ".txt"):
            assert word in message
