"""The platform's defaults under a job's own cluster settings."""

from __future__ import annotations

from pydantic import ValidationError

from batchinference.spec.cluster import Cluster
from batchinference.spec.job import BatchInference
from batchinference.spec.limits import lowest
from batchinference.spec.merge import filled
from batchinference.spec.problems import Problem, SpecError, problems_of


def effective(job: BatchInference, defaults: Cluster) -> BatchInference:
    """The job with each cluster setting that it leaves out taken from the defaults.

    Objects (head, workers, requests) and maps (nodeSelector, profiles) are filled in key by key,
    lists of named things (env, volumes, imagePullSecrets) name by name; any other value of the job
    stands alone. Of two limits the lower one counts: a job may do with less than the platform
    allows, not take more.
    Raises SpecError when the two do not go together.
    """
    limits = lowest(job.spec.cluster.limits, defaults.limits)
    cluster = filled(job.spec.cluster, defaults).model_copy(update={"limits": limits})
    _check(cluster)
    return job.model_copy(update={"spec": job.spec.model_copy(update={"cluster": cluster})})


def _check(cluster: Cluster) -> None:
    """Two that are valid by themselves may still name one mount path or exceed a limit."""
    try:
        Cluster.model_validate(cluster.model_dump(by_alias=True, exclude_none=True))
    except ValidationError as error:
        raise SpecError([
            Problem(f"spec.cluster.{problem.path}".rstrip("."),
                    f"with the platform's defaults: {problem.message}")
            for problem in problems_of(error, Cluster)
        ]) from None  # fmt: skip
