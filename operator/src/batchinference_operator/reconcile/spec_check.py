"""Checks the spec of a job before an attempt starts, and reports why it is invalid."""

from datetime import datetime

from batchinference.rendering import (
    choices_of,
    with_choice,
    with_memory,
    with_platform_defaults,
    without_nodes,
)
from batchinference.rendering.cluster_checks import check_fallback
from batchinference.spec import BatchInference, SpecError, parse
from batchinference.spec.causes import Cause
from batchinference.spec.problems import Problem, raise_for_problems
from batchinference.spec.status import Choice, Phase
from batchinference_operator.reconcile.capacity_wait import next_choice
from batchinference_operator.reconcile.config import Config
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.reconcile.observed_and_actions import Actions
from batchinference_operator.reconcile.out_of_memory import memory_of_next_attempt
from batchinference_operator.status.attempts import is_running, last_attempt, remove_attempt
from batchinference_operator.status.conditions import Summary, find_condition
from batchinference_operator.status.faulty_nodes import faulty_nodes
from batchinference_operator.status.job_status import Status, StatusUpdate


def in_own_namespace(namespace: str) -> Problem:
    """Return the problem of a job in the namespace of the operator."""
    why = f"'{namespace}' is the operator's namespace, whose Secrets its jobs could read"
    fix = "create the BatchInference in another namespace"
    return Problem("metadata.namespace", f"{why}: {fix}")


def parse_with_defaults(job: JobView, config: Config) -> tuple[BatchInference, Choice | None]:
    """Return the parsed job as its next attempt runs it, and the choice of the attempt, if any.

    The job has the platform's defaults and the raised memory after OutOfMemory, and avoids faulty
    nodes. Raises SpecError if the spec is invalid, or the policy or the namespace forbids the job.
    """
    if job.namespace == config.own_namespace:
        raise SpecError([in_own_namespace(job.namespace)])
    parsed = parse(job.document)
    raise_for_problems(config.policy.check_spec(parsed.spec))
    complete = with_platform_defaults(parsed, config.defaults)
    choice = None
    if choices := choices_of(complete):
        raise_for_problems(check_fallback(complete.spec))
        choice = choices[min(next_choice(job.status), len(choices)) - 1]
        complete = with_choice(complete, choice.number)
    memory = memory_of_next_attempt(job.status, complete.spec.retry.out_of_memory)
    return without_nodes(with_memory(complete, memory), faulty_nodes(job.status)), choice


def invalid_spec_status(job: JobView, error: SpecError, now: datetime) -> Status:
    """Return the status of a job whose next attempt cannot be created from its spec. The attempt is
    removed from the status, so that the job continues when the spec is corrected."""
    if is_running(job.status):
        job = job.with_status(remove_attempt(job.status))
    message = "; ".join(str(error).splitlines())
    summary = Summary(Cause.INVALID_SPEC.value, message, failed=True)
    return job.build_status(StatusUpdate(Phase.FAILED, summary), now)


def retry_corrected_spec(job: JobView, now: datetime) -> Actions | None:
    """Return the actions that move a job from InvalidSpec back to Pending, if its spec has changed.
    None for other jobs, and if an attempt that has run failed with InvalidSpec."""
    failed = find_condition(job.status, "Failed")
    invalid = failed.get("status") == "True" and failed.get("reason") == Cause.INVALID_SPEC.value
    changed = job.status.get("observedGeneration") != job.generation
    of_attempt = last_attempt(job.status).get("cause") == Cause.INVALID_SPEC.value
    if not (invalid and changed) or of_attempt:
        return None
    summary = Summary("Pending", "the spec has changed; checking it again")
    return Actions(status=job.pending_status(summary, now), requeue_after=0)
