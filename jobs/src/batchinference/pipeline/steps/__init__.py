"""The table of all kinds of steps. Checks and loads steps."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from batchinference.pipeline.steps.transform import Transform

if TYPE_CHECKING:
    from batchinference.pipeline.runtimes.device import Device
    from batchinference.spec.column_types import ColumnType
    from batchinference.spec.steps import Step

STEPS = {
    "model": ("model", "ModelTransform"),
    "python": ("user_code", "UserCode"),
    "filter": ("column_steps", "Filter"),
    "add_columns": ("column_steps", "AddColumns"),
    "decode": ("decode", "DecodeColumn"),
    "label_from_path": ("column_steps", "AddLabel"),
    "select_columns": ("column_steps", "SelectColumns"),
    "drop_columns": ("column_steps", "DropColumns"),
    "rename_columns": ("column_steps", "RenameColumns"),
    "explode": ("explode", "ExplodeList"),
    "chunk": ("chunk", "ChunkText"),
}
"""The module and the class of each kind of step. A module is imported when it is needed."""


def class_of(step: Step) -> type[Transform]:
    """Return the class for the kind of a step."""
    module, name = STEPS[step.kind]
    return cast(type[Transform], getattr(importlib.import_module(f"{__name__}.{module}"), name))


def check_step(step: Step) -> None:
    """Raise ModelLoad if it is already known that `load_step` would fail. Nothing is loaded."""
    class_of(step).check(step.name, getattr(step, step.kind), batch_size=step.batch_size)


def load_step(step: Step, device: Device) -> Transform:
    """Return a step ready to run, including its `when`, `dedupe` and `cache`. Raises ModelLoad if
    its model or code cannot be loaded."""
    transform = class_of(step).load(step.name, getattr(step, step.kind), device)
    if step.model is not None and (step.dedupe or step.cache):
        from batchinference.pipeline.steps.dedupe import Dedupe

        transform = Dedupe(step, step.model, transform, device)
    return with_condition(step, transform)


def with_condition(
    step: Step, transform: Transform, adds: Mapping[str, ColumnType | None] | None = None
) -> Transform:
    """Return a step that runs `transform` only for the rows that meet the `when` of `step`. Return
    `transform` itself if `step` has no `when`. `adds` has the columns that `transform` adds, by
    default the columns that `step` adds."""
    if step.when is None:
        return transform
    from batchinference.pipeline.steps.when import Conditional

    return Conditional(step, transform, step.facts.adds if adds is None else adds)
