"""Checks the spec of a job, and renders the objects of an attempt from it."""

from datetime import datetime

from batchinference.rendering import (
    RAY_API_VERSION,
    RAY_JOB,
    Names,
    Owner,
    attempt_objects,
    choices_of,
    head_budget,
    token_secret,
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
from batchinference_operator.reconcile.config import Config
from batchinference_operator.reconcile.cost import add_prices
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.reconcile.out_of_memory import memory_of_next_attempt
from batchinference_operator.reconcile.requeue import POLL_SECONDS
from batchinference_operator.reconcile.state import Actions
from batchinference_operator.status.attempts import (
    add_attempt,
    faulty_nodes,
    is_running,
    last_attempt,
    next_choice,
    remove_attempt,
)
from batchinference_operator.status.conditions import Summary, find_condition
from batchinference_operator.status.job_status import Status, StatusUpdate
from batchinference_operator.status.ray_job import Object, RayJobView


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


def _invalid_spec(job: JobView, error: SpecError, now: datetime) -> Status:
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
    status = job.build_status(StatusUpdate(Phase.PENDING, summary), now)
    return Actions(status=status, requeue_after=0)


def create_actions(job: JobView, names: Names, config: Config, now: datetime) -> Actions:
    """Return the actions that create the ConfigMap of an attempt, and then its RayJob, which mounts
    the ConfigMap. If the spec is invalid, return the actions that fail the job."""
    try:
        complete, choice = parse_with_defaults(job, config)
        owner = Owner(job.name, job.uid)
        objects = attempt_objects(complete, names, owner, job.generation, config.defaults, choice)
        add_prices(objects[1], config.prices, job.status)
        return Actions(create=objects, requeue_after=POLL_SECONDS)
    except SpecError as error:
        return Actions(status=_invalid_spec(job, error, now), requeue_after=0)


def planning_status(job: JobView, names: Names, now: datetime) -> Status:
    """Return the status with a new attempt in the phase Planning."""
    update = StatusUpdate(Phase.PLANNING, Summary("Planning", f"creating RayJob {names.ray_job}"))
    return job.with_status(add_attempt(job.status, names)).build_status(update, now)


def objects_of_ray_job(job: JobView, owner: RayJobView, config: Config) -> tuple[Object, ...]:
    """Return the token Secret, and the PodDisruptionBudget if the head is protected. These objects
    are created after the RayJob, because the RayJob owns them."""
    reference = Owner(owner.name, owner.uid, RAY_JOB, RAY_API_VERSION)
    names, token = job.last_attempt_names, config.token(job, owner.name)
    secret = token_secret(job.namespace, names, token, reference)
    budget = head_budget(job.namespace, names, reference)
    return (secret, budget) if owner.head_protected else (secret,)
