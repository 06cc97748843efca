"""Python steps: the user's function or class, called in the same way as by Ray Data.

It takes batches of NumPy arrays, rows, or (`predictBatch`, for existing classes) lists of values. A
row is a dict as Ray Data passes it to `map`: plain values, and NumPy arrays for columns of tensors.
If code that takes rows raises an error, only that row fails, and no other row is retried. A row
also fails if the code returns a value that does not fit into its column.
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from batchinference.pipeline.arrow import Batch, require_columns, rows_of, to_batch, values_of
from batchinference.pipeline.error_classification import is_about_the_row
from batchinference.pipeline.errors import JobFailure, ModelLoad, describe
from batchinference.pipeline.runtimes import load_callable
from batchinference.pipeline.steps import Transform, TransformResult
from batchinference.pipeline.steps.result_columns import (
    ResultColumns,
    check_has_rows,
    check_reserved,
    given_columns,
    no_column,
)
from batchinference.pipeline.storage.arrow_files import UnsafeColumn, checked
from batchinference.spec.python_step import DEVICE
from batchinference.text import counted, with_article

if TYPE_CHECKING:
    import ast

    import pandas as pd

    from batchinference.pipeline.runtimes.device import Device
    from batchinference.spec.python_step import PredictBatch, PythonStep

Row = dict[str, Any]
_ARRAY_AS_VALUE = (
    "truth value of an array",
    "length-1 arrays can be converted",
    "0-dimensional arrays can be converted",
    "unhashable type: 'numpy.ndarray'",
)
"""Parts of errors about an array that was treated as one value."""
_SINGLE_ROWS = "A batch holds an array for each column. Set method: map to get single rows"


class UserCode(Transform):
    """Calls code of the user."""

    NEEDS_VALUES = True

    @classmethod
    def check(cls, step: str, settings: PythonStep, *, batch_size: int | str | None = None) -> None:
        from batchinference.pipeline.steps.signatures import signature_problem
        from batchinference.pipeline.steps.user_modules import check_callable

        for path in settings.constructor_refs.values():
            check_callable(step, path)
        module = check_callable(step, settings.callable)
        if module is None or batch_size == 1:  # a column of one row may be used as one value
            return
        if problem := signature_problem(settings, module):
            raise ModelLoad(f"step '{step}': {problem}")

    @classmethod
    def reads(cls, step: str, settings: PythonStep) -> dict[str, int]:
        """Return the columns that the code certainly reads, with the line of each."""
        from batchinference.pipeline.steps.signatures import columns_of_code

        module = _module_of(step, settings)
        return columns_of_code(settings, module) if module is not None else {}

    @classmethod
    def columns_after(cls, step: str, settings: PythonStep) -> tuple[list[str], str] | None:
        """Return the columns after the code, and how to keep the others; None if unknown."""
        from batchinference.pipeline.steps.signatures import columns_after_code

        module = _module_of(step, settings)
        return columns_after_code(settings, module) if module is not None else None

    @classmethod
    def load(cls, step: str, settings: PythonStep, device: Device) -> Transform:
        return python_transform(step, settings, device.assigned_name)


def _module_of(step: str, settings: PythonStep) -> ast.Module | None:
    """Return the source of the code of a step; None if it is unknown or not valid."""
    from batchinference.pipeline.steps.user_modules import check_callable

    try:
        return check_callable(step, settings.callable)
    except ModelLoad:
        return None  # `check` says why


class _UserFunction(UserCode):
    """A function of the user with its arguments, and the columns of its results."""

    def __init__(self, name: str, function: Callable[..., Any], arguments: dict[str, Any]) -> None:
        self._name = name
        self._function = function
        self._arguments = arguments
        self.result_columns = ResultColumns(name)


class MapBatches(_UserFunction):
    """Calls the user's code on each batch. Columns returned unchanged are not converted back."""

    def __call__(self, batch: pa.Table) -> pa.Table | TransformResult:
        inputs = to_batch(batch)
        for array in inputs.values():
            # an in-place change would be lost, because the column would count as unchanged
            array.flags.writeable = False
        result = columns_of(self._name, self._returned(dict(inputs)))
        for name, values in result.items():
            self._check(name, values, batch.num_rows)
        return self._changed(batch, inputs, result)

    def _returned(self, batch: Batch) -> Any:
        """Call the code. An error about an array that was treated as one value says what to do."""
        try:
            return self._function(batch, **self._arguments)
        except Exception as error:
            of_array = isinstance(error, AttributeError) and isinstance(error.obj, np.ndarray)
            if of_array or any(part in str(error) for part in _ARRAY_AS_VALUE):
                error.args = (f"{error}. {_SINGLE_ROWS}",)
            raise

    def _check(self, name: str, values: Any, rows: int) -> None:
        check_reserved(self._name, name)
        check_has_rows(self._name, name, values)
        try:
            returned = len(values)
        except TypeError as error:
            raise no_column(self._name, name, values, error) from error
        if returned != rows:
            raise JobFailure(
                f"step '{self._name}' returned {counted(returned, 'row')} in column '{name}' "
                f"for a batch of {rows}: it must return one for each"
            )

    def _changed(
        self, batch: pa.Table, inputs: Batch, result: dict[str, Any]
    ) -> pa.Table | TransformResult:
        untouched = {name for name, values in result.items() if values is inputs.get(name)}
        changed = {name: values for name, values in result.items() if name not in untouched}
        given = batch.select([name for name in changed if name in inputs])
        made, misfits = self.result_columns.of(changed, given_columns(given, _as_array))
        fit = np.setdiff1d(np.arange(batch.num_rows), [*misfits]) if misfits else None
        if fit is not None and len(fit) == 0:
            return TransformResult(pa.table({}), fit, misfits)  # no rows, so no types
        rest = batch if fit is None else batch.take(fit)
        table = pa.table(
            {name: rest.column(name) if name in untouched else made[name] for name in result}
        )
        return table if fit is None else TransformResult(table, fit, misfits)


class MapRows(_UserFunction):
    """Calls the user's code on each row. The code returns one row."""

    def __call__(self, batch: pa.Table) -> TransformResult:
        results: list[Row] = []
        parents: list[int] = []
        failed: dict[int, Exception] = {}
        for number, row in enumerate(rows_of(batch)):
            try:
                made = self._made(row)
            except Exception as error:
                if not is_about_the_row(error):
                    raise
                failed[number] = error
                continue
            results += made
            parents += [number] * len(made)
        return self._changed(batch, results, parents, failed)

    def _made(self, row: Row) -> list[Row]:
        return [self._checked(self._function(row, **self._arguments))]

    def _checked(self, row: Any) -> Row:
        if not isinstance(row, dict) or not row:
            got = "an empty dict" if isinstance(row, dict) else type(row).__name__
            raise JobFailure(f"step '{self._name}' must return a row as a dict, got {got}")
        for column in row:
            check_reserved(self._name, column)
        return row

    def _changed(
        self,
        batch: pa.Table,
        results: list[Row],
        parents: list[int],
        failed: dict[int, Exception],
    ) -> TransformResult:
        names = dict.fromkeys(name for row in results for name in row)
        given = batch.select([name for name in batch.column_names if name in names])
        columns, misfits = self.result_columns.of(
            {name: [row.get(name) for row in results] for name in names},
            given_columns(given.take(pa.array(parents, pa.int64())), values_of),
        )
        bad = {parents[row]: error for row, error in misfits.items()}
        kept = [row for row in range(len(results)) if row not in misfits]
        # a row fails as a whole: if one of its results does not fit, drop the others too
        whole = [row for row in kept if parents[row] not in bad]
        table = pa.table(columns)
        if len(whole) < len(kept):
            table = table.filter(pa.array([parents[row] not in bad for row in kept]))
        numbers = np.array([parents[row] for row in whole], dtype=np.int64)
        return TransformResult(table, numbers, failed | bad)


class FlatMap(MapRows):
    """Calls the user's code on each row. The code returns any number of rows."""

    def _made(self, row: Row) -> list[Row]:
        made = self._function(row, **self._arguments)
        if isinstance(made, dict | str | bytes) or not hasattr(made, "__iter__"):
            kind = type(made).__name__
            raise JobFailure(f"step '{self._name}' must return a list of rows, got {kind}")
        return [self._checked(result) for result in made]


class PredictBatchTransform(_UserFunction):
    """Passes one column to the method as a list, and adds its results as a new column."""

    def __init__(
        self, name: str, function: Callable[..., Any], arguments: dict[str, Any], of: PredictBatch
    ) -> None:
        super().__init__(name, function, arguments)
        self._columns = of

    def __call__(self, batch: pa.Table) -> pa.Table | TransformResult:
        require_columns(self._name, [self._columns.input], batch)
        values = to_batch(batch.select([self._columns.input]))[self._columns.input]
        results = _plain(self._function([_legacy(value) for value in values], **self._arguments))
        if len(results) != batch.num_rows:
            raise JobFailure(
                f"step '{self._name}': predict_batch returned "
                f"{counted(len(results), 'result')} for {counted(batch.num_rows, 'value')}: it "
                "must return one for each"
            )
        return self.result_columns.added(batch, {self._columns.output: results}, failed={})


def _as_array(column: pa.ChunkedArray) -> np.ndarray:
    return to_batch(pa.table({"column": column}))["column"]


def _legacy(value: Any) -> Any:
    """Return an image (uint8; height x width, or height x width x 3 or 4 channels) as a Pillow
    image, and any other value unchanged."""
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8:
        return value
    from PIL import Image  # other steps do not need it

    is_image = value.ndim == 2 or (value.ndim == 3 and value.shape[2] in (3, 4))
    return Image.fromarray(value) if is_image else value


def _plain(results: Any) -> Any:
    """Return tensors on any device as NumPy arrays, and other results unchanged."""
    if hasattr(results, "detach"):
        results = results.detach().cpu()
        return (
            results.float().numpy() if str(results.dtype) == "torch.bfloat16" else results.numpy()
        )
    if isinstance(results, list | tuple) and results and hasattr(results[0], "detach"):
        return [_plain(result) for result in results]
    return results


def python_transform(name: str, step: PythonStep, device: str = "cpu") -> Transform:
    """Return a step that runs the user's code. `device` is the torch name of the replica's device.
    Raises ModelLoad if the code cannot be loaded or constructed."""
    target = _construct(name, step, device)
    if step.predict_batch is not None:
        method = getattr(target, "predict_batch", None)
        if not callable(method):
            raise ModelLoad(f"step '{name}': '{step.callable}' has no method predict_batch")
        return PredictBatchTransform(name, method, step.call_args, step.predict_batch)
    function = _callable(name, target)
    if step.method == "mapBatches":
        return MapBatches(name, function, step.call_args)
    kind = FlatMap if step.method == "flatMap" else MapRows
    return kind(name, function, step.call_args)


def _construct(name: str, step: PythonStep, device: str) -> Any:
    target = load_callable(step.callable)
    if not inspect.isclass(target):
        if step.constructor_args or step.constructor_refs:
            raise ModelLoad(
                f"step '{name}': constructorArgs needs a class ('{step.callable}'). Use callArgs"
            )
        return target
    objects = {key: load_callable(path) for key, path in step.constructor_refs.items()}
    try:
        arguments = {
            key: device if value == DEVICE else value
            for key, value in step.constructor_args.items()
        }
        return target(**arguments, **objects)
    except Exception as error:
        raise ModelLoad(
            f"step '{name}': '{step.callable}' cannot be constructed: {describe(error)}"
        ) from error


def _callable(name: str, target: Any) -> Callable[..., Any]:
    if not callable(target):
        hint = ". Set predictBatch" if hasattr(target, "predict_batch") else ""
        kind = with_article(type(target).__name__)
        raise ModelLoad(f"step '{name}': {kind} cannot be called with a batch{hint}")
    function: Callable[..., Any] = target
    return function


def columns_of(step: str, result: Any) -> dict[str, Any]:
    """Return the columns of a returned batch by name. Raises JobFailure if it is no batch, or if
    its names are not unique texts."""
    columns = _columns_of(result)
    if not columns:
        got = type(result).__name__ if columns is None else f"an empty {type(result).__name__}"
        raise JobFailure(
            f"step '{step}' must return a dict of column name to array, a pandas DataFrame or an "
            f"Arrow table, got {got}"
        )
    for name, count in Counter(name for name, _ in columns).items():
        if not isinstance(name, str):
            raise JobFailure(
                f"step '{step}' returned the column {name!r}: the name of a column must be text"
            )
        if count > 1:
            raise JobFailure(f"step '{step}' returned {count} columns with the name '{name}'")
    try:
        checked(_arrow_schema(result, columns))
    except UnsafeColumn as error:
        raise JobFailure(f"step '{step}' returned a table whose {error}") from None
    return dict(columns)


def _arrow_schema(result: Any, columns: list[tuple[Any, Any]]) -> pa.Schema:
    """Return the schema of the returned Arrow data."""
    if isinstance(result, pa.Table | pa.RecordBatch):
        return result.schema
    arrays = pa.Array | pa.ChunkedArray
    return pa.schema(
        [(name, values.type) for name, values in columns if isinstance(values, arrays)]
    )


def _columns_of(result: Any) -> list[tuple[Any, Any]] | None:
    """Return the names and values of a returned batch; None if it is no batch."""
    if isinstance(result, dict):
        return list(result.items())
    if isinstance(result, pa.Table | pa.RecordBatch):
        return list(zip(result.schema.names, result.columns, strict=True))
    if _is_frame(result):
        return [(name, _series(result.iloc[:, at])) for at, name in enumerate(result.columns)]
    return None


def _is_frame(result: Any) -> bool:
    pandas = sys.modules.get("pandas")  # code that returns a DataFrame has imported it
    return pandas is not None and isinstance(result, pandas.DataFrame)


def _series(series: pd.Series) -> Any:
    """Return the values of a column. Missing values become null. Objects and texts are converted
    like those of a dict, so arrays become tensors."""
    text = isinstance(series.dtype, sys.modules["pandas"].StringDtype)
    if series.dtype != object and not text:
        return pa.Array.from_pandas(series)
    values = series.to_numpy(dtype=object, copy=True)
    values[series.isna().to_numpy()] = None
    return list(values)
