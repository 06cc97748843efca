"""What a report says about the limit of a job: its figures follow from the measured times."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchinference.pipeline.html_report.performance_advice import advice, bottleneck
from plugins.messages import Messages
from support.documents.http_models import chat
from support.documents.refusals import short
from support.documents.report_pages import page_data

EMBED = {
    "runtime": "transformers",
    "task": "feature-extraction",
    "source": "org/model",
    "inputs": {"text": "text"},
    "output": "vector",
}
ON_GPU = {"name": "embed", "model": EMBED, "resources": {"gpu": 1}}
ASK = {"name": "ask", "model": chat()}
OWN = {"name": "own", "python": {"callable": "steps:Own"}}
SHARE = st.floats(0, 1)
SECONDS = st.floats(1, 1e5)


def times(seconds: float, wait: float | None = None) -> dict[str, Any]:
    found = {"rows": 1000, "rowsPerSecond": 1, "seconds": seconds}
    return {**found, **({} if wait is None else {"waitSeconds": wait})}


def said(
    measured: dict[str, Any],
    steps: list[dict[str, Any]],
    *,
    cpus: float = 4,
    gpus: float = 1,
    running: float = 100,
) -> str | None:
    """Return what limits a job that ran for `running` seconds."""
    capacity = {"cpus": cpus, "gpus": gpus, "writers": max(1, int(cpus / 2))}
    report = {"seconds": {"running": running}, "steps": measured, "capacity": capacity}
    data = page_data(report, steps=steps)
    found = bottleneck(data.report, data.spec)
    assert found is None or found in advice(data.report, data.spec)
    return found


STARVED = {"read": times(300), "embed": times(30, wait=70), "write": times(20)}
MEASURED = times(90, wait=50) | {"computeSeconds": 30, "blockedSeconds": 20}
BLOCKED = times(30, wait=1) | {"blockedSeconds": 69}
FED = {"read": times(100), "embed": times(95, wait=5), "write": times(4)}


@pytest.mark.parametrize(
    ("measured", "steps"),
    [
        (STARVED, [ON_GPU]),
        ({**STARVED, "embed": MEASURED}, [ON_GPU]),
        ({**STARVED, "read": times(100), "embed (preparation)": times(200)}, [ON_GPU]),
        (FED, [ON_GPU]),
        ({"read": times(50), "embed": times(30, wait=70), "write": times(160)}, [ON_GPU]),
        ({"read": times(50), "embed": BLOCKED, "write": times(160)}, [ON_GPU]),
        (
            {"read": times(20), "own": times(95, wait=5), "write": times(1)},
            [{**OWN, "replicas": {"max": 2}, "resources": {"cpu": 2}}],
        ),
        ({"read": times(20), "own": times(190, wait=10), "write": times(1)}, [OWN]),
        ({"read": times(60), "own": times(300), "write": times(10)}, [OWN]),
    ],
    ids=short,
)
def test_limit_of_a_job_is_stated_with_figures(
    measured: dict[str, Any], steps: list[dict[str, Any]], messages: Messages
) -> None:
    messages.check(said(measured, steps) or "")


@pytest.mark.parametrize(
    ("measured", "steps", "changes"),
    [
        ({"embed": times(30, wait=70)}, [ON_GPU], {}),  # reading was not measured
        ({"read": times(300)}, [ON_GPU], {}),  # the model was not measured
        ({**STARVED, "embed": times(30)}, [ON_GPU], {}),  # waiting was not measured
        (STARVED, [ON_GPU], {"gpus": 0}),  # the model ran on the CPU
        (STARVED, [ON_GPU], {"cpus": 16}),  # neither CPUs nor writers nor the GPU are busy
        ({**STARVED, "embed": times(75, wait=25)}, [ON_GPU], {}),  # neither waits nor limits
        (FED, [ON_GPU], {"running": 1000}),  # loading the model took most of the time
        ({"read": times(10), "own": times(20)}, [OWN], {}),  # the CPUs are idle
        ({"read": times(200), "ask": times(190)}, [ASK], {}),  # the step waits for a server
        ({**STARVED, "own": times(9, wait=1)}, [ON_GPU, {**OWN, "replicas": {}}], {}),
    ],
)
def test_nothing_is_said_without_evidence(
    measured: dict[str, Any], steps: list[dict[str, Any]], changes: dict[str, float]
) -> None:
    assert said(measured, steps, **changes) is None


@given(reading=SECONDS, busy=SECONDS, waiting=SECONDS, cpus=st.integers(1, 256))
def test_added_cpus_are_the_least_with_which_the_gpu_never_waits(
    reading: float, busy: float, waiting: float, cpus: int
) -> None:
    measured = {"read": times(reading), "embed": times(busy, wait=waiting)}
    found = said(measured, [ON_GPU], cpus=cpus, running=busy + waiting)
    match = re.search(r"Add (\S+) CPUs? per GPU", found or "")
    if match is None:
        return
    used, added = reading / (busy + waiting), float(match[1].replace(",", ""))
    needed = reading / busy
    assert used >= 0.7 * cpus * (1 - 1e-6)
    assert used + added >= needed * (1 - 1e-6)
    assert used + added - 1 < needed * (1 + 1e-6)


@given(
    shares=st.tuples(SHARE, SHARE, SHARE, SHARE),
    pool=st.booleans(),
    cpus=st.integers(1, 64),
    running=st.floats(1, 1e5),
)
def test_every_percentage_is_a_share(
    *, shares: tuple[float, ...], pool: bool, cpus: int, running: float
) -> None:
    read, busy, wait, write = (share * running for share in shares)
    measured = {"read": times(read * cpus), "write": times(write * cpus)}
    name, step = ("embed", ON_GPU) if pool else ("own", OWN)
    measured[name] = times(busy, wait=wait) if pool else times(busy * cpus)
    found = said(measured, [step], cpus=cpus, running=running) or ""
    assert all(0 <= int(value) <= 100 for value in re.findall(r"(\d+) %", found))
    assert not re.search(r"nan|inf|-\d", found)


@pytest.mark.parametrize("busy", [5e-324, 1e-6, 100])
@pytest.mark.parametrize("reading", [5e-324, 1e-6, 300])
def test_short_times_do_not_overflow(reading: float, busy: float) -> None:
    """The smallest positive number is a valid time of a report."""
    measured = {"read": times(reading), "embed": times(busy, wait=0), "write": times(reading)}
    found = said(measured, [ON_GPU])
    assert (found is not None) == (busy == 100)


@given(own=SHARE, cpus=st.integers(1, 64))
def test_more_cpus_are_advised_only_if_all_are_busy(own: float, cpus: int) -> None:
    measured = {"read": times(0.0), "own": times(100 * own * cpus)}
    found = said(measured, [OWN], cpus=cpus)
    if math.isclose(own, 0.7):
        return
    assert (found is not None) == (own > 0.7)
