"""The kinds of steps, one module per kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.steps.base import Transform, TransformResult
from batchinference.pipeline.steps.columns import (
    AddLabel,
    DropColumns,
    RenameColumns,
    SelectColumns,
)
from batchinference.pipeline.steps.explode import ExplodeList
from batchinference.pipeline.steps.filter import Filter
from batchinference.pipeline.steps.nearest import NearestRows
from batchinference.pipeline.steps.user_code import python_transform
from batchinference.spec.steps import Step

_LOADERS: dict[str, Callable[[str, Any], Transform]] = {
    "python": python_transform,
    "filter": Filter,
    "label_from_path": AddLabel,
    "select_columns": SelectColumns,
    "drop_columns": DropColumns,
    "rename_columns": RenameColumns,
    "explode": ExplodeList,
    "nearest": NearestRows,
}
"""The loader for each kind of step. Arguments: the step's name and its settings for that kind."""


def load_step(step: Step, device: Device) -> Transform:
    """Return a step ready to run. Raises ModelLoad if its model or code cannot be loaded."""
    if step.model is not None:
        from batchinference.pipeline.steps.model import ModelTransform  # imports torch

        return ModelTransform(step, device)
    return _LOADERS[step.kind](step.name, getattr(step, step.kind))


__all__ = ["Transform", "TransformResult", "load_step"]
