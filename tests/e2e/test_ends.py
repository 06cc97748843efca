"""When a job is given up, and what is left of one that has ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.kubectl import Kubectl
from support.lives import none_is_left, outcomes, phase_is, reason_is

Job = dict[str, Any]
SOON = 30
"""Seconds within which a pod that cannot start shows in the job's status."""
MISSING_IMAGE = "localhost:5000/batchinference/no-such-image:v0"
MISSING_SECRET = {
    "name": "KEY",
    "valueFrom": {"secretKeyRef": {"name": "no-such-secret", "key": "key"}},
}


def test_a_job_that_takes_too_long_fails_and_leaves_no_cluster(
    kubectl: Kubectl, slow_job: Callable[[str], Job], create: Callable[[Job], str]
) -> None:
    job = slow_job("late")
    job["spec"]["deadlines"] = {"active": "15s"}
    name = create(job)
    status = phase_is(kubectl, name, "Failed")
    assert outcomes(status) == ["Failed"]
    assert status["attempts"][0]["cause"] == "DeadlineExceeded"
    assert "deadlines.active 15s" in status["attempts"][0]["message"]
    none_is_left(kubectl, name, "rayclusters,pods")


def test_the_rayjob_of_a_finished_job_goes_and_the_job_stays(
    kubectl: Kubectl, slow_job: Callable[[str], Job], create: Callable[[Job], str]
) -> None:
    job = slow_job("tidy")
    job["spec"] |= {"steps": [], "ttl": {"rayJob": "1s"}}
    name = create(job)
    status = kubectl.wait_complete(name, timeout=240)
    none_is_left(kubectl, name, "rayjobs,rayclusters,pods")
    assert kubectl.status(name) == status


def test_pods_that_cannot_start_say_why_until_the_time_is_up(
    kubectl: Kubectl, slow_job: Callable[[str], Job], create: Callable[[Job], str]
) -> None:
    no_image, no_secret, no_account = map(slow_job, ("no-image", "no-secret", "no-account"))
    no_image["spec"]["cluster"]["image"] = MISSING_IMAGE
    no_secret["spec"]["cluster"]["env"].append(MISSING_SECRET)
    no_account["spec"]["cluster"]["serviceAccountName"] = "nobody"
    names = {}
    for job, cause, words in (
        (no_image, "ImagePull", "no-such-image"),
        (no_secret, "ContainerConfig", 'secret "no-such-secret" not found'),
        (no_account, "Refused", "ServiceAccount nobody is not found"),
    ):
        job["spec"]["deadlines"] = {"pending": "40s"}
        names[create(job)] = cause, words
    for name, (cause, words) in names.items():
        status = reason_is(kubectl, name, cause, SOON)
        assert status["phase"] == "Pending"
        assert words in status["conditions"][0]["message"]
    for name, (cause, words) in names.items():
        status = phase_is(kubectl, name, "Failed", timeout=90)
        assert status["attempts"][0]["cause"] == cause
        assert "deadlines.pending 40s" in status["attempts"][0]["message"]
        assert words in status["attempts"][0]["message"]


def test_a_pod_that_has_what_it_lacked_starts_and_the_words_are_gone(
    kubectl: Kubectl,
    slow_job: Callable[[str], Job],
    create: Callable[[Job], str],
) -> None:
    job = slow_job("healed")
    variable = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "late", "key": "key"}}}
    job["spec"]["cluster"]["env"].append(variable)
    name = create(job)
    reason_is(kubectl, name, "ContainerConfig", SOON)
    kubectl("create", "secret", "generic", "late", "--from-literal=key=x")
    status = phase_is(kubectl, name, "Starting", timeout=60)
    assert "late" not in status["conditions"][0]["message"]
