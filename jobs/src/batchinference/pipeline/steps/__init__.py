"""One module a kind of step."""

from __future__ import annotations

from batchinference.pipeline.devices import Device
from batchinference.pipeline.steps.base import Transform
from batchinference.pipeline.steps.columns import AddLabel, DropColumns, SelectColumns
from batchinference.pipeline.steps.filter import Filter
from batchinference.pipeline.steps.python import PythonTransform
from batchinference.spec.steps import Step


def load_step(step: Step, device: Device) -> Transform | Filter:
    """A step ready to run. Raises ModelLoad when its model or code cannot be loaded."""
    if step.model is not None:
        from batchinference.pipeline.steps.model import ModelTransform  # brings in torch

        return ModelTransform(step, device)
    if step.python is not None:
        return PythonTransform(step.name, step.python)
    if step.filter is not None:
        return Filter(step.name, step.filter)
    if step.label_from_path is not None:
        return AddLabel(step.name, step.label_from_path)
    if step.select_columns is not None:
        return SelectColumns(step.name, step.select_columns)
    return DropColumns(step.name, step.drop_columns or [])


__all__ = ["Filter", "Transform", "load_step"]
