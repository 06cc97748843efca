"""Plans the stages, actor pools and worker groups for a spec.

Names are imported on first use, because a worker process needs only the module `stages`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batchinference.plan.groups import CPU_GROUP, WorkerGroup
    from batchinference.plan.plan import (
        Plan,
        cpus_needed,
        plan_for_cluster,
        plan_for_machine,
        ray_cpus,
        requested_plan,
    )
    from batchinference.plan.plan_file import parse_plan, serialize_plan
    from batchinference.plan.stages import Stage

_MODULES = {
    **dict.fromkeys(("CPU_GROUP", "WorkerGroup"), "groups"),
    **dict.fromkeys(("Plan", "cpus_needed", "ray_cpus", "requested_plan"), "plan"),
    **dict.fromkeys(("plan_for_cluster", "plan_for_machine"), "plan"),
    **dict.fromkeys(("parse_plan", "serialize_plan"), "plan_file"),
    "Stage": "stages",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
