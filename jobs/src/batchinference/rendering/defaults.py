"""Merges the platform's defaults and limits into the settings of a job."""

from collections.abc import Iterator, Sequence

from pydantic import ValidationError

from batchinference.plan import plan_for_cluster
from batchinference.plan.groups import HEAD_GROUP
from batchinference.rendering.kueue import scaling_groups
from batchinference.spec.cluster import ALL_GROUPS, Cluster, lower_limits
from batchinference.spec.defaults_merge import with_defaults
from batchinference.spec.job import BatchInference
from batchinference.spec.platform_defaults import Lifecycle, Patch, PlatformDefaults
from batchinference.spec.problems import Problem, SpecError, raise_for_problems
from batchinference.spec.validation_messages import problems_of


def with_platform_defaults(job: BatchInference, defaults: Cluster) -> BatchInference:
    """Return the job with its unset cluster settings taken from the defaults. Raises SpecError if
    the merged settings are invalid, or if the job cannot be planned.

    - Objects (head, workers, requests) and maps (nodeSelector, profiles) are merged by key.
    - Lists of named items (env, volumes, volumeMounts, imagePullSecrets) are merged by name.
    - Any other value of the job replaces the default.
    - The lower of two limits applies, so a job cannot exceed the limits of the platform.
    - `retry`, `deadlines` and `ttl` also get defaults and limits.

    Defaults that do not fit the job are left out. These are `rayStartParams` of groups that the job
    lacks, and images of profiles if the job has an image. `topology` and `queuePriorityClassName`
    are left out if Kueue would refuse them."""
    if job.spec.cluster.image is not None:
        defaults = _without_images(defaults)
    limits = lower_limits(job.spec.cluster.limits, defaults.limits)
    cluster = with_defaults(job.spec.cluster, defaults).model_copy(update={"limits": limits})
    _check(cluster)
    cluster = _without_unsuitable(job, cluster)
    if isinstance(defaults, PlatformDefaults):
        raise_for_problems(_volumes_of_patches(job.spec.cluster, defaults.patches))
        sections = Lifecycle(job.spec.retry, job.spec.deadlines, job.spec.ttl)
        job = job.with_spec(**defaults.complete(sections)._asdict())
    if defaults.ray_start_params:
        groups = plan_for_cluster(job.with_spec(cluster=cluster).spec).groups
        own, given = job.spec.cluster.ray_start_params, cluster.ray_start_params
        known = {ALL_GROUPS, HEAD_GROUP, *own, *(group.name for group in groups)}
        params = {group: given[group] for group in given if group in known}
        cluster = cluster.model_copy(update={"ray_start_params": params})
    return job.with_spec(cluster=cluster)


def _without_images(defaults: Cluster) -> Cluster:
    """Return the defaults without the images of their profiles. These images lack the content of
    the job's own image, such as code."""
    profiles = {name: profile.model_copy(update={"image": None})
                for name, profile in defaults.profiles.items()}  # fmt: skip
    return defaults.model_copy(update={"profiles": profiles})


def _without_unsuitable(job: BatchInference, cluster: Cluster) -> Cluster:
    """Return the merged settings without defaults about queues that Kueue would refuse."""
    own, update = job.spec.cluster, dict[str, None]()
    if cluster.queue_name is None and own.queue_priority_class_name is None:
        update["queue_priority_class_name"] = None
    if cluster.topology is not None and own.topology is None:
        groups = plan_for_cluster(job.with_spec(cluster=cluster).spec).groups
        if cluster.queue_name is None or scaling_groups(groups):
            update["topology"] = None
    return cluster.model_copy(update=update)


def _volumes_of_patches(own: Cluster, patches: Sequence[Patch]) -> Iterator[Problem]:
    """Yield a problem for each volume of a job that has the name of a volume in a patch. The merged
    volume could be invalid, or the platform's volume, which the job must not mount."""
    lists = [patch.pod.spec.get("volumes") for patch in patches]
    patched = [volume for volumes in lists if isinstance(volumes, list) for volume in volumes]
    names = {str(volume.get("name")) for volume in patched if isinstance(volume, dict)}
    for index, volume in enumerate(own.volumes):
        if volume.name in names:
            message = f"the platform has a volume '{volume.name}'. Choose another name"
            yield Problem(f"spec.cluster.volumes[{index}].name", message)


def _check(cluster: Cluster) -> None:
    """Raise SpecError if the merged settings are invalid, such as two volumes at one mount path."""
    try:
        Cluster.model_validate(cluster.model_dump(by_alias=True, exclude_none=True))
    except ValidationError as error:
        raise SpecError([
            Problem(f"spec.cluster.{problem.path}".rstrip("."),
                    f"with the platform's defaults: {problem.message}")
            for problem in problems_of(error, Cluster)
        ]) from None  # fmt: skip
