"""A job as kubectl shows it. docs/transcript.md is what this test has recorded.

Record it anew with `python -m pytest tests/e2e/test_transcript.py --write-transcript`.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from support.deployment import ROOT
from support.documentation import blocks
from support.documents import document
from support.kubectl import Kubectl
from support.lives import phase_is, rows_are_done
from support.objectstore import ObjectStore

Job = dict[str, Any]
PAGE = "docs/transcript.md"
NAME, FAILS = "reviews", "typo"
_HEAD = """# A job as kubectl shows it

Recorded by `tests/e2e/test_transcript.py` on a cluster with KubeRay 1.6: a job of 2,000 rows whose
step takes its time, as a person would watch it, and one whose input is not there, though it is to
be tried again. A test compares what kubectl shows today with this page, but for names, numbers and
times.
"""


@pytest.fixture
def named(
    kubectl: Kubectl, slow_job: Callable[[str], Job], store: ObjectStore
) -> Iterator[list[Job]]:
    """The jobs of the page, which have names of their own."""
    works, fails = slow_job(NAME), document(FAILS)
    fails["spec"]["read"]["paths"] = [store.uri("nothing/here")]
    again = {"maxAttempts": 2, "backoff": {"initial": "5s"}, "onCause": {"BadInput": "retry"}}
    fails["spec"]["retry"] = again
    yield [works, fails]
    kubectl("delete", "batchinference", NAME, FAILS, "--ignore-not-found", "--wait=false")


@contextmanager
def watched(kubectl: Kubectl, name: str) -> Iterator[list[str]]:
    """The lines of `kubectl get --watch` during the block."""
    command = ["kubectl", "--namespace", kubectl.namespace, "get", "bi", name, "--watch"]
    lines: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield lines
        finally:
            process.terminate()
            lines += process.stdout.read().splitlines()


def test_what_a_person_sees(
    kubectl: Kubectl, named: list[Job], request: pytest.FixtureRequest
) -> None:
    kubectl.apply(*named)
    with watched(kubectl, NAME) as lines, watched(kubectl, FAILS) as of_failure:
        rows_are_done(kubectl, NAME)
        running = kubectl("describe", "bi", NAME)
        waited = kubectl("wait", "--for=condition=Complete", f"bi/{NAME}", "--timeout=300s",
                         timeout=310)  # fmt: skip
        phase_is(kubectl, FAILS, "Failed")
    seen = {
        "get bi reviews --watch": _thinned(lines),
        "describe bi reviews": running,
        "wait --for=condition=Complete bi/reviews --timeout=300s": waited,
        "describe bi reviews ": kubectl("describe", "bi", NAME),
        "get bi typo --watch": _thinned(of_failure),
        "describe bi typo": kubectl("describe", "bi", FAILS),
    }
    if request.config.getoption("--write-transcript"):
        (ROOT / PAGE).write_text(_page(kubectl, seen))
    shown = [_shape(block.split("\n", 1)[1]) for block in blocks(PAGE, "console")]
    assert [_shape(text) for text in seen.values()] == shown


def _thinned(lines: list[str]) -> str:
    """The first line of each phase and the last of all: there are dozens of Running ones."""
    kept = [line for line, before in zip(lines, ["", *lines], strict=False)
            if line.split()[1:2] != before.split()[1:2] or line == lines[-1]]  # fmt: skip
    return "\n".join(kept) + "\n"


def _page(kubectl: Kubectl, seen: dict[str, str]) -> str:
    parts = [_HEAD]
    for command, text in seen.items():
        shown = text.replace(kubectl.namespace, "team")
        parts.append(f"```console\n$ kubectl {command.strip()}\n{shown.rstrip()}\n```\n")
    return "\n".join(parts)


_FIELD = re.compile(r"^ {0,2}([A-Z][A-Za-z ]+):")
"""Those further in come and go with what is known of the progress."""


def _shape(text: str) -> list[str]:
    """What must not change: the columns of a table, the fields of a description."""
    lines = text.splitlines()
    fields = [found.group(1) for line in lines if (found := _FIELD.match(line))]
    return fields or lines[0].split()
