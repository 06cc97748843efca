"""Two jobs as kubectl shows them: the example text-embeddings, and one whose step raises.

docs/transcript.md is a recording of these tests. Record it with
`python -m pytest tests/e2e/test_transcript.py --write-transcript`.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from e2e.jobs import Example
from support.cluster.deployment import ROOT
from support.cluster.kubectl import Kubectl, Object, condition
from support.cluster.object_store import ObjectStore
from support.cluster.statuses import Statuses, WatchingKubectl
from support.cluster.waits import (
    JOB_END,
    outcomes,
    wait_for_phase,
    wait_for_rows,
    wait_until_none_is_left,
)
from support.documents.minimal import document, python_step
from support.documents.pages import blocks
from support.outputs.rows import assert_same_rows
from support.timeouts import scaled

pytestmark = pytest.mark.xdist_group("transcript")
Job = dict[str, Any]
PAGE = "docs/transcript.md"
NAME, FAILS = "text-embeddings", "division"
_HEAD = """# A job as kubectl shows it

Recorded by `tests/e2e/test_transcript.py` on a cluster with KubeRay 1.6: the example
[text-embeddings](../examples/text-embeddings/job.yaml), and a job whose step raises an error, with
one retry. A test compares the columns and fields that kubectl shows with those on this page.
"""


@dataclass(frozen=True)
class Recording:
    shown: dict[str, str]
    """The output of each command."""
    complete: Object
    """The last status of the job that succeeds."""
    history: Statuses
    failed: Object
    """The last status of the job that fails."""


@pytest.fixture(scope="module")
def embeddings(example: Callable[..., Example]) -> Example:
    return example(NAME, files=1)


@pytest.fixture(scope="module")
def recording(
    kubectl: WatchingKubectl, embeddings: Example, store: ObjectStore, own_code: Job
) -> Recording:
    failing = document(
        FAILS,
        read=embeddings.job()["spec"]["read"],
        steps=[python_step("divide", "slow:divide")],
        write={"format": "parquet", "path": store.uri(FAILS)},
        retry={"maxAttempts": 2, "backoff": {"initial": "1s"}, "onCause": {"Application": "retry"}},
        cluster=own_code,
    )
    kubectl.apply(embeddings.job(), failing)
    with ExitStack() as stack:
        of_success, of_failure = (
            stack.enter_context(watched(kubectl, name)) for name in (NAME, FAILS)
        )
        wait_for_rows(kubectl, NAME)
        running = kubectl("describe", "bi", NAME)
        seconds = scaled(JOB_END)
        wait = ("wait", "--for=condition=Complete", f"bi/{NAME}", f"--timeout={seconds:.0f}s")
        waited = kubectl(*wait, timeout=seconds + 10)
        complete = kubectl.wait_complete(NAME, JOB_END)
        failed = wait_for_phase(kubectl, FAILS, "Failed")
    shown = {
        f"get bi {NAME} --watch": _thinned(of_success),
        f"describe bi {NAME}": running,
        " ".join(wait): waited,
        f"describe bi {NAME} ": kubectl("describe", "bi", NAME),
        f"get bi {FAILS} --watch": _thinned(of_failure),
        f"describe bi {FAILS}": kubectl("describe", "bi", FAILS),
    }
    return Recording(shown, complete, kubectl.history[NAME], failed)


@contextmanager
def watched(kubectl: Kubectl, name: str) -> Iterator[list[str]]:
    """Collect the lines of `kubectl get --watch` during the block."""
    command = ["kubectl", "--namespace", kubectl.namespace, "get", "bi", name, "--watch"]
    lines: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield lines
        finally:
            process.terminate()
            lines += process.stdout.read().splitlines()


def test_page_has_the_columns_and_fields_that_kubectl_shows(
    kubectl: Kubectl, recording: Recording, request: pytest.FixtureRequest
) -> None:
    if request.config.getoption("--write-transcript"):
        (ROOT / PAGE).write_text(_page(kubectl, recording.shown))
    page = [_shape(block.split("\n", 1)[1]) for block in blocks(PAGE, "console")]
    assert [_shape(text) for text in recording.shown.values()] == page


def test_text_embeddings_equal_those_made_on_this_machine(
    embeddings: Example, recording: Recording, tmp_path: Path
) -> None:
    rows = embeddings.rows(tmp_path)
    assert_same_rows(rows, embeddings.local_rows())
    counts = recording.complete["counts"]
    assert counts["written"] == len(rows)
    assert counts["read"] == counts["written"] + counts["filtered"]


def test_progress_is_reported_while_rows_are_done_and_never_decreases(
    recording: Recording,
) -> None:
    rows = recording.history.rows
    assert rows == sorted(rows)
    assert len(rows) > 2
    status = recording.complete
    assert rows[-1] == status["progress"]["rows"] == status["counts"]["read"]
    assert status["progress"]["percent"] == 100
    assert status["startTime"] < status["completionTime"]


def test_get_shows_the_result_of_a_complete_job(kubectl: Kubectl, recording: Recording) -> None:
    header, line = kubectl("get", "bi", NAME).splitlines()
    columns = "NAME PHASE REASON % ROWS FAILED ROWS/S ETA ATTEMPTS AGE"
    assert header.split() == columns.split()
    phase, reason, percent, rows, failed, rate = line.split()[1:7]
    assert (phase, reason, percent, failed) == ("Succeeded", "Succeeded", "100", "0")
    assert int(rows) == recording.complete["counts"]["read"]
    assert float(rate) > 0


def test_complete_job_releases_its_cluster(kubectl: Kubectl, recording: Recording) -> None:
    wait_until_none_is_left(kubectl, NAME, "rayclusters,pods")


def test_raising_step_is_retried_and_named_with_exception_and_file(
    recording: Recording,
) -> None:
    assert outcomes(recording.failed) == ["Failed", "Failed"]
    failed = condition(recording.failed, "Failed", "True")
    assert failed is not None
    assert failed["reason"] == "Application"
    for word in ("divide", "ZeroDivisionError", "no row can be divided today", ".txt"):
        assert word in failed["message"]


def _thinned(lines: list[str]) -> str:
    """Keep the first line of each phase and the last line."""
    kept = [line for line, before in zip(lines, ["", *lines], strict=False)
            if line.split()[1:2] != before.split()[1:2] or line == lines[-1]]  # fmt: skip
    return "\n".join(kept) + "\n"


def _page(kubectl: Kubectl, shown: dict[str, str]) -> str:
    parts = [_HEAD]
    for command, text in shown.items():
        output = text.replace(kubectl.namespace, "team").rstrip()
        parts.append(f"```console\n$ kubectl {command.strip()}\n{output}\n```\n")
    return "\n".join(parts)


_FIELD = re.compile(r"^ {0,2}([A-Z][A-Za-z ]+):")
"""Fields that are indented further depend on the progress."""


def _shape(text: str) -> list[str]:
    """Return the columns of a table, or the fields of a description."""
    lines = text.splitlines()
    fields = [found.group(1) for line in lines if (found := _FIELD.match(line))]
    return fields or lines[0].split()
