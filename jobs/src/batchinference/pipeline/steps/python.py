"""Python steps: the user's function or class over batches of NumPy arrays."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from functools import reduce
from typing import Any

import pyarrow as pa

from batchinference.pipeline.blocks import Batch, to_batch, to_column
from batchinference.pipeline.failures import JobFailure, ModelLoad
from batchinference.plan.columns import OWN_PREFIX
from batchinference.spec.steps import PythonStep


class PythonTransform:
    """Calls the user's code; columns that come back untouched are not converted twice."""

    def __init__(self, name: str, step: PythonStep) -> None:
        self._name = name
        self._arguments = step.call_args
        self._function = _construct(name, step)

    def __call__(self, batch: pa.Table) -> pa.Table:
        given = to_batch(batch)
        for array in given.values():
            # a change in place would be lost where the column counts as untouched
            array.flags.writeable = False
        result = self._function(dict(given), **self._arguments)
        if not isinstance(result, dict) or not result:
            got = "an empty dict" if isinstance(result, dict) else type(result).__name__
            raise JobFailure(
                f"step '{self._name}' must return a dict of column name to array, got {got}"
            )
        return self._table(batch, given, result)

    def _table(self, batch: pa.Table, given: Batch, result: dict[str, Any]) -> pa.Table:
        columns = {}
        for name, values in result.items():
            if str(name).startswith(OWN_PREFIX):
                raise JobFailure(f"step '{self._name}' returned a column '{name}': names that "
                                 f"begin with {OWN_PREFIX} are reserved")  # fmt: skip
            untouched = name in given and values is given[name]
            columns[name] = batch.column(name) if untouched else self._column(name, values)
            if len(columns[name]) != batch.num_rows:
                raise JobFailure(
                    f"step '{self._name}' returned {len(columns[name])} rows in column '{name}' "
                    f"for a batch of {batch.num_rows}: it must return one for each"
                )
        return pa.table(columns)

    def _column(self, name: str, values: Any) -> pa.Array | pa.ChunkedArray:
        try:
            return to_column(values)
        except TypeError as error:
            raise JobFailure(
                f"step '{self._name}' returned a {type(values).__name__} in column '{name}' that "
                f"is no column: {error}"
            ) from error


def load_callable(path: str) -> Any:
    """The object at `module:name`. Raises ModelLoad that says what was not found."""
    module_name, _, name = path.partition(":")
    try:
        module = importlib.import_module(module_name)
        return reduce(getattr, name.split("."), module)
    except Exception as error:  # whatever the module does when it is imported
        raise ModelLoad(
            f"cannot load '{path}': {type(error).__name__}: {error}. The module must lie beside "
            "the job's file, be installed, or be in the image"
        ) from error


def _construct(name: str, step: PythonStep) -> Callable[..., Any]:
    target = load_callable(step.callable)
    if not inspect.isclass(target):
        if step.constructor_args:
            raise ModelLoad(
                f"step '{name}': constructorArgs is for a class and '{step.callable}' is none"
            )
        return _callable(name, target)
    try:
        return _callable(name, target(**step.constructor_args))
    except Exception as error:
        raise ModelLoad(
            f"step '{name}': '{step.callable}' cannot be constructed: "
            f"{type(error).__name__}: {error}"
        ) from error


def _callable(name: str, target: Any) -> Callable[..., Any]:
    if not callable(target):
        raise ModelLoad(f"step '{name}': a {type(target).__name__} cannot be called with a batch")
    function: Callable[..., Any] = target
    return function
