"""Plans the stages, actor pools and worker groups for a specification."""

from batchinference.plan.groups import CPU_GROUP, WorkerGroup
from batchinference.plan.plan import (
    Plan,
    cpus_needed,
    plan_for_cluster,
    plan_for_machine,
    ray_cpus,
)
from batchinference.plan.stages import Stage

__all__ = [
    "CPU_GROUP",
    "Plan",
    "Stage",
    "WorkerGroup",
    "cpus_needed",
    "plan_for_cluster",
    "plan_for_machine",
    "ray_cpus",
]
