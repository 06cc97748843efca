"""Python steps: call the user's function or class as Ray Data does.

The code takes a batch (a dict of NumPy arrays) or a row (a dict of Python values, and of arrays for
tensors). With `predictBatch`, for existing classes, it takes a list of values. If code that takes a
row raises an error, only that row fails, and no other row is computed again. A row also fails if
the returned value does not fit the type of its column (see result_columns)."""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from batchinference.pipeline.arrow import (
    Batch,
    require_columns,
    rows_of,
    to_batch,
    to_numpy,
    values_of,
)
from batchinference.pipeline.error_classification import is_about_the_row
from batchinference.pipeline.errors import JobFailure, ModelLoad, describe
from batchinference.pipeline.runtimes import load_callable
from batchinference.pipeline.steps.result_columns import (
    ResultColumns,
    check_is_column,
    check_reserved,
    no_column_error,
)
from batchinference.pipeline.steps.transform import Transform, TransformResult
from batchinference.pipeline.steps.unchanged_values import copied, input_columns
from batchinference.pipeline.storage.arrow_files import UnsafeColumn, refuse_pickles
from batchinference.spec.python_step import DEVICE
from batchinference.text import counted, with_article

if TYPE_CHECKING:
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
"""Texts in the errors of code that uses an array, such as a column of a batch, as one value."""
_UNENCODED = ("mixed", "mixed-integer", "period", "interval")  # categories that Arrow changes
_SINGLE_ROWS = "A batch holds an array for each column. Set method: map to get single rows"


class WrongResult(TypeError):
    """Code that takes a row has not returned a row or, with `flatMap`, a list of rows."""


class UserCode(Transform):
    """The base class of python steps, which call a function or object of the user."""

    NEEDS_VALUES = True

    def __init__(self, name: str, function: Callable[..., Any], arguments: dict[str, Any]) -> None:
        self._name = name
        self._function = function
        self._arguments = arguments
        self.result_columns = ResultColumns(name)

    @classmethod
    def check(cls, step: str, settings: PythonStep, *, batch_size: int | str | None = None) -> None:
        from batchinference.pipeline.steps.code_checks.function_signatures import signature_problem
        from batchinference.pipeline.steps.code_checks.imports import check_callable

        for path in settings.constructor_refs.values():
            check_callable(step, path)
        module = check_callable(step, settings.callable)
        if module is None or batch_size == 1:  # an array of one row can be used as a value
            return
        if problem := signature_problem(settings, module):
            raise ModelLoad(f"step '{step}': {problem}")

    @classmethod
    def load(cls, step: str, settings: PythonStep, device: Device) -> Transform:
        return python_transform(step, settings, device.used_name)


class MapBatches(UserCode):
    """Calls the user's code on each batch. Arrays that it returns unchanged are not converted."""

    def __call__(self, batch: pa.Table) -> pa.Table | TransformResult:
        inputs = to_batch(batch)
        for array in inputs.values():
            # a change in place would be lost, because `_result` uses the column of the batch
            array.flags.writeable = False
        returned = columns_of(self._name, self._call_code(dict(inputs)))
        for name, values in returned.items():
            self._check(name, values, batch.num_rows)
        return self._result(batch, inputs, returned)

    def _call_code(self, batch: Batch) -> Any:
        """Call the code, and return its result. Add a fix to errors of arrays used as one value."""
        try:
            return self._function(batch, **self._arguments)
        except Exception as error:
            of_array = isinstance(error, AttributeError) and isinstance(error.obj, np.ndarray)
            if of_array or any(part in str(error) for part in _ARRAY_AS_VALUE):
                error.args = (f"{error}. {_SINGLE_ROWS}",)
            raise

    def _check(self, name: str, values: Any, rows: int) -> None:
        check_reserved(self._name, name)
        check_is_column(self._name, name, values)
        try:
            returned = len(values)
        except TypeError as error:
            raise no_column_error(self._name, name, values, error) from error
        if returned != rows:
            raise JobFailure(
                f"step '{self._name}' returned {counted(returned, 'row')} in column '{name}' "
                f"for a batch of {rows}: it must return one for each"
            )

    def _result(
        self, batch: pa.Table, inputs: Batch, returned: dict[str, Any]
    ) -> pa.Table | TransformResult:
        """Return the result. Arrays of `inputs` that the code has returned are not converted."""
        untouched = {name for name, values in returned.items() if values is inputs.get(name)}
        changed = {name: copied(returned[name]) for name in returned if name not in untouched}
        replaced = batch.select([name for name in changed if name in inputs])
        columns, misfits = self.result_columns.fitting(changed, input_columns(replaced, to_numpy))
        fitting = np.setdiff1d(np.arange(batch.num_rows), [*misfits]) if misfits else None
        if fitting is not None and len(fitting) == 0:
            return TransformResult(pa.table({}), fitting, misfits)  # no rows, so no types
        good = batch if fitting is None else batch.take(fitting)
        table = pa.table(
            {name: good.column(name) if name in untouched else columns[name] for name in returned}
        )
        return table if fitting is None else TransformResult(table, fitting, misfits)


class MapRows(UserCode):
    """Calls the user's code on each row. The code returns one row."""

    FIX = "Return a dict of column name to value; for none or several rows, set method: flatMap"

    def __call__(self, batch: pa.Table) -> TransformResult:
        results: list[Row] = []
        parents: list[int] = []
        failed: dict[int, Exception] = {}
        for number, row in enumerate(rows_of(batch)):
            try:
                new_rows = self._rows_made_from(row)
            except Exception as error:
                if not is_about_the_row(error):
                    raise
                failed[number] = error
                continue
            results += new_rows
            parents += [number] * len(new_rows)
        return self._result(batch, results, parents, failed)

    def _rows_made_from(self, row: Row) -> list[Row]:
        return [self._checked(self._function(row, **self._arguments))]

    def _checked(self, row: Any) -> Row:
        """Return a copy of a returned row. Raises JobFailure for a reserved column. Raises
        WrongResult, which fails only the input row, for a value that is not a row."""
        if not isinstance(row, dict) or not row:
            got = "an empty dict" if isinstance(row, dict) else type(row).__name__
            what = f"step '{self._name}' must return a row as a dict, got {got}"
            raise WrongResult(f"{what}. {self.FIX}")
        for column in row:
            check_reserved(self._name, column)
        return {name: copied(value) for name, value in row.items()}

    def _result(
        self, batch: pa.Table, results: list[Row], parents: list[int], failed: dict[int, Exception]
    ) -> TransformResult:
        """Return the result of the step: the rows that the code has returned, and their parents."""
        names = dict.fromkeys(name for row in results for name in row)
        replaced = batch.select([name for name in batch.column_names if name in names])
        columns, misfits = self.result_columns.fitting(
            {name: [row.get(name) for row in results] for name in names},
            input_columns(replaced.take(pa.array(parents, pa.int64())), values_of),
        )
        failed = failed | {parents[row]: error for row, error in misfits.items()}
        fitting = [row for row in range(len(results)) if row not in misfits]
        # if one row made from a batch row does not fit, drop all rows made from it
        rows = [row for row in fitting if parents[row] not in failed]
        table = pa.table(columns)
        if len(rows) < len(fitting):
            table = table.filter(pa.array([parents[row] not in failed for row in fitting]))
        return TransformResult(table, np.array([parents[row] for row in rows], np.int64), failed)


class FlatMap(MapRows):
    """Calls the user's code on each row. The code returns any number of rows."""

    FIX = "Each item of the list is a dict of column name to value"

    def _rows_made_from(self, row: Row) -> list[Row]:
        new_rows = self._function(row, **self._arguments)
        if isinstance(new_rows, dict | str | bytes) or not hasattr(new_rows, "__iter__"):
            what = f"step '{self._name}' must return a list of rows, got {type(new_rows).__name__}"
            raise WrongResult(f"{what}. Return a list of dicts, or [] for no rows")
        return [self._checked(result) for result in new_rows]


class PredictBatchTransform(UserCode):
    """Calls the method `predict_batch` with a list of the values of a column, and adds a column."""

    def __init__(
        self, name: str, method: Callable[..., Any], arguments: dict[str, Any], names: PredictBatch
    ) -> None:
        super().__init__(name, method, arguments)
        self._columns = names

    def __call__(self, batch: pa.Table) -> pa.Table | TransformResult:
        require_columns(self._name, [self._columns.input], batch)
        inputs = [_with_pillow(value) for value in to_numpy(batch.column(self._columns.input))]
        results = copied(self._function(inputs, **self._arguments))
        if len(results) != batch.num_rows:
            raise JobFailure(
                f"step '{self._name}': predict_batch returned "
                f"{counted(len(results), 'result')} for {counted(batch.num_rows, 'value')}: it "
                "must return one for each"
            )
        return self.result_columns.added(batch, {self._columns.output: results}, failed={})


def _with_pillow(value: Any) -> Any:
    """Return a Pillow image for an array of an image, and any other value unchanged. An array of an
    image is uint8, and height x width, or height x width x 3 or 4 channels."""
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8:
        return value
    from PIL import Image  # other steps do not need Pillow

    is_image = value.ndim == 2 or (value.ndim == 3 and value.shape[2] in (3, 4))
    return Image.fromarray(value) if is_image else value


def python_transform(name: str, step: PythonStep, device: str = "cpu") -> Transform:
    """Return a step that runs the user's code. `device` is the torch name of the replica's device.
    Raises ModelLoad if the code cannot be loaded or constructed."""
    target = _loaded(name, step, device)
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


def _loaded(name: str, step: PythonStep, device: str) -> Any:
    """Return the object that the step names; if that is a class, a new object of the class."""
    target = load_callable(step.callable)
    if not inspect.isclass(target):
        if step.constructor_args or step.constructor_refs:
            raise ModelLoad(
                f"step '{name}': constructorArgs needs a class ('{step.callable}'). Use callArgs"
            )
        return target
    objects = {key: load_callable(path) for key, path in step.constructor_refs.items()}
    try:
        settings = step.constructor_args.items()
        arguments = {key: device if value == DEVICE else value for key, value in settings}
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
    return cast(Callable[..., Any], target)


def columns_of(step: str, result: Any) -> dict[str, Any]:
    """Return the values of each column of a batch that the code has returned. Raises JobFailure if
    `result` is not a batch or has pickled values, or if its column names are not unique texts."""
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
        refuse_pickles(_arrow_schema(result, columns))
    except UnsafeColumn as error:
        raise JobFailure(f"step '{step}' returned a table whose {error}") from None
    return dict(columns)


def _arrow_schema(result: Any, columns: list[tuple[Any, Any]]) -> pa.Schema:
    """Return the schema of the columns that are Arrow data."""
    if isinstance(result, pa.Table | pa.RecordBatch):
        return result.schema
    arrays = pa.Array | pa.ChunkedArray
    return pa.schema([(name, x.type) for name, x in columns if isinstance(x, arrays)])


def _columns_of(result: Any) -> list[tuple[Any, Any]] | None:
    """Return the name and values of each column of a batch; None if the result is not a batch."""
    if isinstance(result, dict):
        return [(name, _with_nulls_of_pandas(values)) for name, values in result.items()]
    if isinstance(result, pa.Table | pa.RecordBatch):
        return list(zip(result.schema.names, result.columns, strict=True))
    pandas = sys.modules.get("pandas")  # code that returns a DataFrame has imported pandas
    if pandas is not None and isinstance(result, pandas.DataFrame):
        return [(name, _series(result.iloc[:, at])) for at, name in enumerate(result.columns)]
    return None


def _with_nulls_of_pandas(values: Any) -> Any:
    """Convert values of a type that only pandas has, such as Int64. Return any others unchanged."""
    is_extension = hasattr(getattr(values, "dtype", None), "construct_array_type")
    return _series(sys.modules["pandas"].Series(values), True) if is_extension else values


def _series(series: pd.Series, decode: bool = False) -> Any:
    """Return the values of a column of a DataFrame, with None for missing values. With `decode`,
    they are not dictionary-encoded. Objects, texts, periods and intervals become a list. So arrays
    become tensors later, and periods do not change."""
    pandas, kind = sys.modules["pandas"], series.dtype
    series = series.sparse.to_dense() if isinstance(kind, pandas.SparseDtype) else series
    categories = getattr(kind, "categories", None)
    if decode and categories is not None and categories.dtype.kind in "iu":
        return pa.Array.from_pandas(series).dictionary_decode()  # objects would become int64
    if categories is not None and (decode or categories.inferred_type in _UNENCODED):
        series = series.astype(object if series.hasnans else categories.dtype)
    list_types = pandas.StringDtype | pandas.PeriodDtype | pandas.IntervalDtype
    if series.dtype != object and not isinstance(series.dtype, list_types):
        return pa.Array.from_pandas(series)
    values = series.to_numpy(dtype=object, copy=True)
    values[series.isna().to_numpy()] = None
    return list(values)
