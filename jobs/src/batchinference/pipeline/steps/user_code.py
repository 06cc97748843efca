"""Python steps: the user's function or class, called in the same way as by Ray Data."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.imports import load_callable
from batchinference.pipeline.steps.base import Transform
from batchinference.pipeline.steps.map_batches import MapBatches
from batchinference.pipeline.steps.map_rows import FlatMap, MapRows

if TYPE_CHECKING:
    from batchinference.spec.python_step import PythonStep


def python_transform(name: str, step: PythonStep) -> Transform:
    """Return a step that runs the user's code. Raises ModelLoad if the code cannot be loaded or
    constructed."""
    target = _construct(name, step)
    if step.predict_batch is not None:
        from batchinference.pipeline.steps.predict_batch import PredictBatchTransform  # Pillow

        method = getattr(target, "predict_batch", None)
        if not callable(method):
            raise ModelLoad(f"step '{name}': '{step.callable}' has no method predict_batch")
        return PredictBatchTransform(name, step.predict_batch, method, step.call_args)
    function = _callable(name, target)
    if step.method == "mapBatches":
        return MapBatches(name, function, step.call_args)
    kind = FlatMap if step.method == "flatMap" else MapRows
    return kind(name, function, step.call_args)


def _construct(name: str, step: PythonStep) -> Any:
    target = load_callable(step.callable)
    if not inspect.isclass(target):
        if step.constructor_args or step.constructor_refs:
            raise ModelLoad(
                f"step '{name}': constructorArgs is for a class and '{step.callable}' is none"
            )
        return target
    objects = {key: load_callable(path) for key, path in step.constructor_refs.items()}
    try:
        return target(**step.constructor_args, **objects)
    except Exception as error:
        raise ModelLoad(
            f"step '{name}': '{step.callable}' cannot be constructed: "
            f"{type(error).__name__}: {error}"
        ) from error


def _callable(name: str, target: Any) -> Callable[..., Any]:
    if not callable(target):
        hint = ": set predictBatch" if hasattr(target, "predict_batch") else ""
        raise ModelLoad(
            f"step '{name}': a {type(target).__name__} cannot be called with a batch{hint}"
        )
    function: Callable[..., Any] = target
    return function
