"""Submits, suspends, resumes and cancels jobs on a cluster."""

from collections.abc import Sequence
from typing import Any

from batchinference.api.job_files import parameter_values, read_file_or_stdin
from batchinference.api.jobs_on_cluster import JobHandle, checked_for_cluster
from batchinference.api.kubernetes import Kubernetes
from batchinference.cli import exits
from batchinference.cli.exit_on_error import exit_on_cluster_error
from batchinference.cli.printing import echo
from batchinference.cli.validate_and_plan import print_problems
from batchinference.cli.verbosity import note
from batchinference.spec import KIND, Problem, SpecError, load_documents
from batchinference.spec.job import SCHEDULE_KIND
from batchinference.spec.parameters import ParameterValues
from batchinference.spec.schedule import parse_schedule

_PAST_TENSE = {"suspend": "suspended", "resume": "resumed", "cancel": "deleted"}


def submit_file(
    file: str,
    settings: Sequence[str],
    name: str | None,
    namespace: str | None,
    context: str | None,
    *,
    wait: bool,
) -> int:
    """Apply the jobs and schedules in a file, print the results, and return the exit code. `name`
    replaces the name of the job. With `name`, the file must have only one document."""
    try:
        values = parameter_values(settings)
        documents = load_documents(read_file_or_stdin(file), (KIND, SCHEDULE_KIND))
        if name is not None:
            documents = [_renamed(documents, name)]
        checked = [_checked(each, values) for each in documents]
    except SpecError as error:
        print_problems(file, error)
        return exits.BAD_INPUT
    with exit_on_cluster_error("submit"):
        cluster = Kubernetes(namespace, context)
        applied = [_apply(cluster, document) for document in checked]
        jobs = [each["metadata"] for each in applied if each["kind"] == KIND]
        handles = [JobHandle(job["name"], Kubernetes(job["namespace"], context)) for job in jobs]
        return _wait(handles) if wait else exits.SUCCESS


def _renamed(documents: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Return the only job with another name. Raises SpecError if `documents` has other objects."""
    kinds = [str(each["kind"]) for each in documents]
    if kinds != [KIND]:
        fix = f"Give a file with one {KIND}"
        raise SpecError(
            [Problem("--name", f"renames a single job, and the file has {', '.join(kinds)}. {fix}")]
        )
    metadata = documents[0].get("metadata")
    metadata = {**metadata, "name": name} if isinstance(metadata, dict) else {"name": name}
    return {**documents[0], "metadata": metadata}


def _checked(document: dict[str, Any], values: ParameterValues) -> dict[str, Any]:
    """Return a job with the values of its parameters, or an unchanged schedule. Raises SpecError if
    a cluster would refuse the document."""
    if document["kind"] == KIND:
        return checked_for_cluster(document, values)
    parse_schedule(document)
    return document


def _apply(cluster: Kubernetes, document: dict[str, Any]) -> dict[str, Any]:
    applied = cluster.apply(document)
    metadata = applied["metadata"]
    verb = "created" if metadata.get("generation") == 1 and not applied.get("status") else "applied"
    kind = document["kind"].lower()
    note(f"{kind}/{metadata['name']} {verb} in namespace {metadata['namespace']} of {cluster.host}")
    return applied


def _wait(handles: Sequence[JobHandle]) -> int:
    ended = [handle.wait() for handle in handles]
    for job in ended:
        echo(f"{job.name}: {job.phase}: {job.message}")
    return exits.JOB_FAILED if any(job.phase == "Failed" for job in ended) else exits.SUCCESS


def control(command: str, name: str, namespace: str | None, context: str | None) -> None:
    """Suspend, resume or cancel a job, and print the result."""
    with exit_on_cluster_error(command):
        cluster = Kubernetes(namespace, context)
        getattr(JobHandle(name, cluster), command)()
    note(f"batchinference/{name} {_PAST_TENSE[command]} in namespace {cluster.namespace}")
