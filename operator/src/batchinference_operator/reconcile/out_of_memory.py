"""Records which groups of pods ran out of memory, and raises their memory in the next attempt."""

from batchinference.plan.groups import HEAD_GROUP
from batchinference.spec.causes import Cause
from batchinference.spec.lifecycle import OutOfMemory
from batchinference.spec.quantities import memory_bytes, memory_quantity
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.reconcile.observed_and_actions import Observed
from batchinference_operator.status.attempts import update_last
from batchinference_operator.status.failure_cause import head_ran_out_of_memory
from batchinference_operator.status.job_status import Status
from batchinference_operator.status.ray_job_view import RayJobView


def record_out_of_memory(observed: Observed, ray_job: RayJobView, cause: Cause) -> JobView:
    """Return the job with the groups that ran out of memory recorded in its attempt.

    For another cause, nothing is recorded. If no pod was killed, for instance because Ray killed a
    process earlier, the group is unknown. Then all worker groups are recorded.
    """
    job = observed.job
    if cause != Cause.OUT_OF_MEMORY or not ray_job.memory:
        return job
    memory = dict(ray_job.memory)
    lost = observed.disruption
    killed = {lost.group} if lost is not None and lost.cause == Cause.OUT_OF_MEMORY else set()
    if head_ran_out_of_memory(ray_job, observed.crashes):
        killed.add(HEAD_GROUP)
    groups = killed & memory.keys() or memory.keys() - {HEAD_GROUP}
    recorded = {group: memory[group] for group in sorted(groups)}
    return job.with_status(update_last(job.status, outOfMemory=recorded))


def memory_of_next_attempt(status: Status, policy: OutOfMemory | None) -> dict[str, str]:
    """Return the new memory of each group that ran out of memory in an earlier attempt."""
    if policy is None:
        return {}
    maximum, sizes = memory_bytes(policy.max_memory), dict[str, float]()
    for attempt in status.get("attempts", []):
        # also `memory`, because older attempts with `outOfMemory` may no longer be in the status
        for field, factor in (("memory", 1.0), ("outOfMemory", policy.memory_factor)):
            for group, memory in attempt.get(field, {}).items():
                size = min(memory_bytes(memory) * factor, maximum)
                sizes[group] = max(size, sizes.get(group, 0))
    return {group: memory_quantity(size) for group, size in sizes.items()}
