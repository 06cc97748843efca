"""Creates and controls jobs on a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from batchinference.api.files import parameter_values, read_text
from batchinference.api.jobs_on_cluster import JobHandle, checked_for_cluster
from batchinference.api.kubernetes import Kubernetes
from batchinference.cli import exits
from batchinference.cli.check import complain
from batchinference.cli.printing import echo
from batchinference.cli.targets import failures_are_printed
from batchinference.spec import KIND, SpecError, load_documents
from batchinference.spec.job import SCHEDULE_KIND
from batchinference.spec.schedule import parse_schedule

_DONE = {"suspend": "suspended", "resume": "resumed", "cancel": "deleted"}


def submit_file(
    file: str, namespace: str | None, context: str | None, settings: Sequence[str], *, wait: bool
) -> int:
    """Apply the jobs and schedules of a file, print them, and return the exit code."""
    try:
        values = parameter_values(settings)
        documents = load_documents(read_text(file), (KIND, SCHEDULE_KIND))
        checked = [
            checked_for_cluster(each, values) if each["kind"] == KIND else _checked(each)
            for each in documents
        ]
    except SpecError as error:
        complain(file, error)
        return exits.BAD_INPUT
    with failures_are_printed("submit"):
        cluster = Kubernetes(namespace, context)
        applied = [_apply(cluster, document) for document in checked]
        jobs = [each["metadata"] for each in applied if each["kind"] == KIND]
        handles = [JobHandle(job["name"], Kubernetes(job["namespace"], context)) for job in jobs]
        return _wait(handles) if wait else exits.SUCCESS


def _checked(document: dict[str, Any]) -> dict[str, Any]:
    parse_schedule(document)
    return document


def _apply(cluster: Kubernetes, document: dict[str, Any]) -> dict[str, Any]:
    """Apply a document, print what has happened to the object, and return it."""
    applied = cluster.apply(document)
    metadata = applied["metadata"]
    done = "created" if metadata.get("generation") == 1 and not applied.get("status") else "applied"
    kind = document["kind"].lower()
    echo(f"{kind}/{metadata['name']} {done} in namespace {metadata['namespace']} of {cluster.host}")
    return applied


def _wait(handles: Sequence[JobHandle]) -> int:
    """Wait until all jobs have ended, print how, and return the exit code."""
    ended = [handle.wait() for handle in handles]
    for job in ended:
        echo(f"{job.name}: {job.phase}: {job.message}")
    failed = any(job.phase == "Failed" for job in ended)
    return exits.JOB_FAILED if failed else exits.SUCCESS


def control(command: str, name: str, namespace: str | None, context: str | None) -> None:
    """Suspend, resume or cancel a job, and print what was done."""
    with failures_are_printed(command):
        cluster = Kubernetes(namespace, context)
        getattr(JobHandle(name, cluster), command)()
    echo(f"batchinference/{name} {_DONE[command]} in namespace {cluster.namespace}")
