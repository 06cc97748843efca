"""Renders the objects of an attempt from the spec of its job."""

from datetime import datetime

from batchinference.rendering import (
    RAY_API_VERSION,
    RAY_JOB,
    Names,
    Owner,
    attempt_objects,
    head_budget,
    token_secret,
)
from batchinference.spec import SpecError
from batchinference.spec.status import Phase
from batchinference_operator.reconcile.cluster_tokens import cluster_tokens
from batchinference_operator.reconcile.config import Config
from batchinference_operator.reconcile.cost import add_prices
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.reconcile.observed_and_actions import Actions
from batchinference_operator.reconcile.requeue import POLL_SECONDS
from batchinference_operator.reconcile.spec_check import invalid_spec_status, parse_with_defaults
from batchinference_operator.status.attempts import add_attempt
from batchinference_operator.status.conditions import Summary
from batchinference_operator.status.job_status import Status, StatusUpdate
from batchinference_operator.status.ray_job_view import Object, RayJobView


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
        return Actions(status=invalid_spec_status(job, error, now), requeue_after=0)


def planning_status(job: JobView, names: Names, now: datetime) -> Status:
    """Return the status with a new attempt in the phase Planning."""
    update = StatusUpdate(Phase.PLANNING, Summary("Planning", f"creating RayJob {names.ray_job}"))
    return job.with_status(add_attempt(job.status, names)).build_status(update, now)


def objects_of_ray_job(job: JobView, owner: RayJobView, config: Config) -> tuple[Object, ...]:
    """Return the token Secret, and the PodDisruptionBudget if the head is protected. These objects
    are created after the RayJob, because the RayJob owns them."""
    reference = Owner(owner.name, owner.uid, RAY_JOB, RAY_API_VERSION)
    names, token = job.last_attempt_names, cluster_tokens(config, job, owner.name)[0]
    secret = token_secret(job.namespace, names, token, reference)
    budget = head_budget(job.namespace, names, reference)
    return (secret, budget) if owner.head_protected else (secret,)
