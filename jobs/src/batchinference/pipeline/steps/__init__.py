"""The kinds of steps, one module per kind."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

from batchinference.pipeline.steps.base import Transform, TransformResult

if TYPE_CHECKING:
    from batchinference.pipeline.runtimes.device import Device
    from batchinference.spec.steps import Step

_LOADERS = {
    "filter": ("relational", "Filter"),
    "add_columns": ("relational", "AddColumns"),
    "decode": ("decode", "DecodeColumn"),
    "label_from_path": ("relational", "AddLabel"),
    "select_columns": ("relational", "SelectColumns"),
    "drop_columns": ("relational", "DropColumns"),
    "rename_columns": ("relational", "RenameColumns"),
    "explode": ("relational", "ExplodeList"),
    "nearest": ("nearest", "NearestRows"),
}
"""The loader for each kind of step: a module of this package, which is imported when it is needed,
and a callable. Its arguments are the step's name and its settings for that kind."""


def load_step(step: Step, device: Device) -> Transform:
    """Return a step ready to run. Raises ModelLoad if its model or code cannot be loaded."""
    if step.model is not None:
        from batchinference.pipeline.steps.model import ModelTransform  # imports torch

        return ModelTransform(step, device)
    if step.python is not None:
        from batchinference.pipeline.steps.user_code import python_transform

        return python_transform(step.name, step.python, device.assigned_name)
    module, name = _LOADERS[step.kind]
    load = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    return cast(Transform, load(step.name, getattr(step, step.kind)))


__all__ = ["Transform", "TransformResult", "load_step"]
