"""Merges the platform's defaults into a job's cluster settings."""

from __future__ import annotations

from pydantic import ValidationError

from batchinference.spec.cluster import Cluster
from batchinference.spec.job import BatchInference
from batchinference.spec.limits import lowest
from batchinference.spec.merge import filled
from batchinference.spec.problems import Problem, SpecError, problems_of


def effective(job: BatchInference, defaults: Cluster) -> BatchInference:
    """Return the job with its unset cluster settings taken from the defaults.

    Objects (head, workers, requests) and maps (nodeSelector, profiles) are merged by key. Lists of
    named items (env, volumes, imagePullSecrets) are merged by name. Any other value of the job
    replaces the default. Of two limits the lower one applies: a job may set a lower limit than the
    platform, but not a higher one. Patches of the platform come after those of the job, so that
    they are applied last and the job's keep their indexes.
    Raises SpecError if the merged settings are invalid.
    """
    limits = lowest(job.spec.cluster.limits, defaults.limits)
    patches = [*job.spec.cluster.patches, *defaults.patches]
    changes = {"limits": limits, "patches": patches}
    cluster = filled(job.spec.cluster, defaults).model_copy(update=changes)
    _check(cluster)
    return job.model_copy(update={"spec": job.spec.model_copy(update={"cluster": cluster})})


def _check(cluster: Cluster) -> None:
    """Raise SpecError if the merged settings are invalid.

    Settings that are valid separately may use the same mount path, or exceed a limit together.
    """
    try:
        Cluster.model_validate(cluster.model_dump(by_alias=True, exclude_none=True))
    except ValidationError as error:
        raise SpecError([
            Problem(f"spec.cluster.{problem.path}".rstrip("."),
                    f"with the platform's defaults: {problem.message}")
            for problem in problems_of(error, Cluster)
        ]) from None  # fmt: skip
