"""The phases of a job: every transition in the diagram happens. test_model_check finds others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from batchinference.spec.platform_defaults import PlatformDefaults
from batchinference.spec.report import JobState
from batchinference.spec.status import Phase
from batchinference_operator.status.attempts import is_running
from batchinference_operator.status.pod_view import PodView
from generators.lifecycle import TRANSITIONS
from support.operator.objects import (
    INITIALIZING,
    OTHER_UID,
    RUNNING,
    owner,
    placed,
    pod_body,
    ray_job_body,
)
from support.operator.reconcile_loop import ReconcileLoop

Life = Callable[[ReconcileLoop], None]
WITHOUT_ATTEMPT = {Phase.PLANNING, Phase.SUSPENDED}
"""Phases that follow Pending only before the first attempt."""


def stay_new(loop: ReconcileLoop) -> None:
    pass


def blocked_by_name(loop: ReconcileLoop) -> None:
    take_name(loop, "job-1")
    loop.reconcile()


def suspending(loop: ReconcileLoop) -> None:
    loop.run()
    loop.spec["suspend"], loop.report = True, None
    loop.reconcile()


def suspended(loop: ReconcileLoop) -> None:
    loop.spec["suspend"] = True
    loop.reconcile()


def invalid(loop: ReconcileLoop) -> None:
    loop.config = replace(loop.config, defaults=PlatformDefaults())
    loop.reconcile()


BEFORE: dict[Phase | None, Life] = {
    None: stay_new,
    Phase.PENDING: ReconcileLoop.queue,
    Phase.PLANNING: ReconcileLoop.plan,
    Phase.STARTING: ReconcileLoop.start,
    Phase.RUNNING: ReconcileLoop.run,
    Phase.FINALIZING: ReconcileLoop.finalize,
    Phase.RETRYING: ReconcileLoop.lose,
    Phase.SUSPENDING: suspending,
    Phase.SUSPENDED: suspended,
    Phase.FAILED: invalid,
}


def take_name(loop: ReconcileLoop, name: str) -> None:
    """Create a foreign RayJob of this name."""
    loop.ray_jobs[name] = ray_job_body(name, owner_uid=OTHER_UID)


def clear(loop: ReconcileLoop) -> None:
    """Remove everything that blocks the next attempt."""
    loop.spec["suspend"] = False
    for name, body in list(loop.ray_jobs.items()):
        if not is_running(loop.status) or body["metadata"]["ownerReferences"] != [owner()]:
            del loop.ray_jobs[name]


def to_pending(loop: ReconcileLoop) -> None:
    if is_running(loop.status):
        loop.ray_job["spec"]["suspend"] = True
    elif loop.phases[-1:] == [Phase.FAILED]:
        loop.generation += 1
    else:
        clear(loop)
        take_name(loop, f"job-{loop.status.get('attempt', 0) + 1}")
    loop.reconcile(10)


def to_planning(loop: ReconcileLoop) -> None:
    clear(loop)
    loop.reconcile(10)


def to_failed(loop: ReconcileLoop) -> None:
    if is_running(loop.status):
        loop.fail("BadInput")
        return
    clear(loop)
    loop.spec["read"] = {"format": "text"}
    loop.reconcile(10)


def to_starting(loop: ReconcileLoop) -> None:
    if not is_running(loop.status):
        clear(loop)
        loop.begin(10)
        return
    loop.ray_job["spec"]["suspend"], loop.report = False, None
    loop.set_kuberay_status(**{**INITIALIZING, "jobStatus": ""})
    loop.reconcile(10)


def report_state(state: JobState) -> Life:
    def lead(loop: ReconcileLoop) -> None:
        loop.ray_job["spec"]["suspend"] = False
        loop.set_kuberay_status(**RUNNING)
        loop.set_report(state, rows=20)
        loop.reconcile(10)

    return lead


def to_suspending(loop: ReconcileLoop) -> None:
    if not loop.status:
        loop.plan()
        loop.status = {}
        loop.phases.clear()
    elif loop.phase == Phase.SUSPENDED:
        loop.pods = (PodView.of(pod_body(**placed())),)
    loop.spec["suspend"], loop.report = True, None
    loop.reconcile(10)


def to_suspended(loop: ReconcileLoop) -> None:
    if loop.status and not is_running(loop.status):
        loop.ray_jobs.clear()
    loop.spec["suspend"], loop.report = True, None
    loop.reconcile(10)


AFTER: dict[Phase, Life] = {
    Phase.PENDING: to_pending,
    Phase.PLANNING: to_planning,
    Phase.STARTING: to_starting,
    Phase.RUNNING: report_state(JobState.RUNNING),
    Phase.FINALIZING: report_state(JobState.FINALIZING),
    Phase.SUCCEEDED: report_state(JobState.SUCCEEDED),
    Phase.FAILED: to_failed,
    Phase.RETRYING: lambda loop: loop.fail("NodeLost") and None,
    Phase.SUSPENDING: to_suspending,
    Phase.SUSPENDED: to_suspended,
}


@pytest.mark.parametrize("before", TRANSITIONS, ids=lambda phase: phase or "new")
def test_each_transition_of_the_diagram_happens(before: Phase | None) -> None:
    for after in TRANSITIONS[before]:
        loop = ReconcileLoop()
        blocked = before == Phase.PENDING and after in WITHOUT_ATTEMPT
        (blocked_by_name if blocked else BEFORE[before])(loop)
        assert (loop.phases[-1] if loop.phases else None) == before
        seen = len(loop.phases)
        AFTER[after](loop)
        assert loop.phases[seen:] == [after]
