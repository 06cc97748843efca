"""Phases follow one another as the diagram has it: each transition that it shows, and no other."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.spec.phases import TRANSITIONS, Phase
from batchinference.spec.report import JobState
from batchinference_operator.status.attempts import is_open
from batchinference_operator.status.pods import PodView
from support.looks import Looks
from support.operator_objects import (
    INITIALIZING,
    OTHER_UID,
    RUNNING,
    owner,
    placed,
    pod_body,
    ray_job_body,
)

Life = Callable[[Looks], None]
PAIRS = [(before, after) for before, following in TRANSITIONS.items() for after in following]
UNMADE = {Phase.PLANNING, Phase.SUSPENDED}
"""What follows on Pending only where nothing was made yet."""


# --- how a job comes to a phase ---------------------------------------------------------


def nowhere(looks: Looks) -> None:
    pass


def unmade(looks: Looks) -> None:
    take_name(looks, "job-1")
    looks.look()


def suspending(looks: Looks) -> None:
    looks.run()
    looks.spec["suspend"], looks.said = True, None
    looks.look()


def suspended(looks: Looks) -> None:
    looks.spec["suspend"] = True
    looks.look()


BEFORE: dict[Phase | None, Life] = {
    None: nowhere,
    Phase.PENDING: Looks.queue,
    Phase.PLANNING: Looks.plan,
    Phase.STARTING: Looks.start,
    Phase.RUNNING: Looks.run,
    Phase.FINALIZING: Looks.finalize,
    Phase.RETRYING: Looks.lose,
    Phase.SUSPENDING: suspending,
    Phase.SUSPENDED: suspended,
}


def take_name(looks: Looks, name: str) -> None:
    """Another's RayJob has this name."""
    looks.ray_jobs[name] = ray_job_body(name, owner_uid=OTHER_UID)


# --- what leads on from there -----------------------------------------------------------


def clear(looks: Looks) -> None:
    """Nothing is in the way of an attempt that follows."""
    looks.spec["suspend"] = False
    for name, body in list(looks.ray_jobs.items()):
        if not is_open(looks.status) or body["metadata"]["ownerReferences"] != [owner()]:
            del looks.ray_jobs[name]


def to_pending(looks: Looks) -> None:
    if is_open(looks.status):
        looks.ray_job["spec"]["suspend"] = True
    else:
        clear(looks)
        take_name(looks, f"job-{looks.status.get('attempt', 0) + 1}")
    looks.look(10)


def to_planning(looks: Looks) -> None:
    clear(looks)
    looks.look(10)


def to_failed(looks: Looks) -> None:
    if is_open(looks.status):
        looks.fail("BadInput")
        return
    clear(looks)
    looks.spec["read"] = {"format": "text"}
    looks.look(10)


def to_starting(looks: Looks) -> None:
    if not is_open(looks.status):
        clear(looks)
        looks.begin(10)
        return
    looks.ray_job["spec"]["suspend"], looks.said = False, None
    looks.play(**{**INITIALIZING, "jobStatus": ""})
    looks.look(10)


def driven(state: JobState) -> Life:
    def lead(looks: Looks) -> None:
        looks.ray_job["spec"]["suspend"] = False
        looks.play(**RUNNING)
        looks.tell(state, rows=20)
        looks.look(10)

    return lead


def to_suspending(looks: Looks) -> None:
    if not looks.status:
        looks.plan()
        looks.status = {}
        looks.phases.clear()
    elif looks.phase == Phase.SUSPENDED:
        looks.pods = (PodView.of(pod_body(**placed())),)
    looks.spec["suspend"], looks.said = True, None
    looks.look(10)


def to_suspended(looks: Looks) -> None:
    if looks.status and not is_open(looks.status):
        looks.ray_jobs.clear()
    looks.spec["suspend"], looks.said = True, None
    looks.look(10)


AFTER: dict[Phase, Life] = {
    Phase.PENDING: to_pending,
    Phase.PLANNING: to_planning,
    Phase.STARTING: to_starting,
    Phase.RUNNING: driven(JobState.RUNNING),
    Phase.FINALIZING: driven(JobState.FINALIZING),
    Phase.SUCCEEDED: driven(JobState.SUCCEEDED),
    Phase.FAILED: to_failed,
    Phase.RETRYING: lambda looks: looks.fail("NodeLost") and None,
    Phase.SUSPENDING: to_suspending,
    Phase.SUSPENDED: to_suspended,
}


@pytest.mark.parametrize(("before", "after"), PAIRS, ids=lambda phase: phase or "new")
def test_each_transition_of_the_diagram_is_made(before: Phase | None, after: Phase) -> None:
    looks = Looks()
    lead = unmade if before == Phase.PENDING and after in UNMADE else BEFORE[before]
    lead(looks)
    assert (looks.phases[-1] if looks.phases else None) == before
    seen = len(looks.phases)
    AFTER[after](looks)
    assert looks.phases[seen:] == [after]


# --- and no other -----------------------------------------------------------------------

MANY = st.lists(
    st.sampled_from(["suspend", "resume", "let go", "wait", "fail", "queue", *RUNNING, *JobState]),
    max_size=15,
)


@given(events=MANY)
@settings(max_examples=200, deadline=None)
def test_whatever_happens_a_phase_follows_that_may_follow(events: list[str]) -> None:
    looks = Looks(deadlines={"total": "2h"})
    looks.look()
    for event in events:
        happen(looks, event)
    path = [None, *looks.phases]
    for before, after in itertools.pairwise(path):
        last = None if before is None else Phase(before)
        assert before == after or Phase(str(after)) in TRANSITIONS[last]


def happen(looks: Looks, event: str) -> None:
    """One thing, and two looks."""
    there = "rayJobName" in looks.status and looks.status["rayJobName"] in looks.ray_jobs
    if event in ("suspend", "resume"):
        looks.spec["suspend"] = event == "suspend"
    elif event == "let go":
        looks.let_go()
    elif there and event == "queue":
        looks.ray_job["spec"]["suspend"] = not looks.ray_job["spec"].get("suspend", False)
    elif there and event == "fail":
        looks.play(jobStatus="FAILED", jobDeploymentStatus="Failed", reason="SubmissionFailed")
    elif there and event in list(JobState) and "deletionTimestamp" not in looks.ray_job["metadata"]:
        looks.play(**RUNNING)
        looks.tell(JobState(event), rows=5, reason="NodeLost")
    looks.look(15)
    looks.said = None
    looks.look(15)
