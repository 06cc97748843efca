"""Python steps: the user's function or class over batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, time, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from batchinference.pipeline.arrow import tensors_to_lists, to_column
from batchinference.pipeline.errors import JobFailure, ModelLoad, describe
from batchinference.pipeline.runtimes import load_callable
from batchinference.pipeline.steps.transform import Transform, as_result
from batchinference.pipeline.steps.user_code import python_transform
from batchinference.spec.python_step import PythonStep
from plugins.messages import Messages

TABLE = pa.table({"n": [1, 2, 3], "text": ["a", "bb", "ccc"]})


def transform(callable_: str, **arguments: Any) -> Transform:
    return python_transform("own", PythonStep.model_validate({"callable": callable_, **arguments}))


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Any]], Transform]:
    """Return a function that makes a step of a test's function."""
    import user_code

    def make(function: Callable[..., Any], **fields: Any) -> Transform:
        monkeypatch.setattr(user_code, "of_the_test", function, raising=False)
        return transform("user_code:of_the_test", **fields)

    return make


def test_function_changes_columns() -> None:
    text = {"text": ["a", "bb", "ccc"]}
    for name, arguments, expected in (
        ("lengths", {}, {"n": [1, 2, 3], **text, "length": [1, 2, 3]}),
        ("Outer.double", {}, {"n": [2, 4, 6]}),
        ("add", {"amount": 10}, {"n": [11, 12, 13], **text}),
    ):
        step = transform(f"user_code:{name}", callArgs=arguments)
        assert step(TABLE).to_pydict() == expected, name


def test_class_is_constructed_once() -> None:
    import user_code

    before = user_code.Scaler.made
    step = transform("user_code:Scaler", constructorArgs={"factor": 2.5}, callArgs={"offset": 1})
    for _ in range(3):
        assert step(TABLE).to_pydict() == {"n": [3.5, 6.0, 8.5]}
    assert user_code.Scaler.made == before + 1


def test_constructor_gets_the_device() -> None:
    arguments = {"factor": 2, "column": "{device}"}
    step = PythonStep(callable="user_code:Scaler", constructorArgs=arguments)
    assert python_transform("own", step, "cuda:0")._function.column == "cuda:0"


def test_untouched_columns_keep_their_types() -> None:
    table = pa.table(
        {
            "time": pa.array([1], pa.timestamp("ms", "UTC")),
            "category": pa.array(["a"]).dictionary_encode(),
            "missing": pa.array([None], pa.int8()),
            "tensor": to_column(np.zeros((1, 2, 2), np.uint8)),
        }
    )
    assert transform("user_code:untouched")(table).schema == table.schema


NANO = 1_704_067_200_123_456_789
"""A time in nanoseconds since 1970 that has digits in all units."""
GIVEN = {
    "integers": pa.array([(1 << 53) + 1, None, 3]),
    "unsigned": pa.array([(1 << 64) - 1, None, 3], pa.uint64()),
    "float32": pa.array([0.1, None, float("nan")], pa.float32()),
    "zone": pa.array([NANO // 1000, None, 1], pa.timestamp("us", "Asia/Tokyo")),
    "duration": pa.array([NANO, None, 1], pa.duration("ns")),
    "date": pa.array([1, None, 2], pa.date32()),
    "category": pa.array(["a", None, "b"]).dictionary_encode(),
    "texts": pa.array([["a", "b"], ["c", None], None]),
    "equal lists": pa.array([["a", "b"], ["c", "d"], ["e", "f"]]),
    "structs in lists": pa.array([[{"a": 1}], [{"a": 2}], [{"a": 3}]]),
    "lists in lists": pa.array([[[1, 2]], [[3]], [[4]]]),
    "large integers": pa.array([[(1 << 53) + 1, None], [1], []]),
    "times": pa.array([[NANO], [None], None], pa.list_(pa.timestamp("ns"))),
    "map": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
    "intervals": pa.array([pa.MonthDayNano([1, 2, 3]), None, pa.MonthDayNano([4, 5, 6])]),
    "UUIDs in lists": pa.ListArray.from_arrays(
        [0, 1, 2, 2], pa.array([b"a" * 16, None], pa.uuid())
    ),
    "struct": pa.array(
        [{"n": (1 << 53) + 1, "t": NANO}, {"n": None, "t": None}, None],
        pa.struct([("n", pa.int64()), ("t", pa.timestamp("ns"))]),
    ),
}
"""Columns whose values or types NumPy or Python does not keep."""


@pytest.mark.parametrize("name", GIVEN)
def test_copied_columns_are_unchanged(own: Callable[..., Transform], name: str) -> None:
    table = pa.table({"c": GIVEN[name]})
    functions: list[tuple[Any, str]] = [
        (lambda batch: {"c": batch["c"].copy()}, "mapBatches"),
        (lambda batch: {"c": list(batch["c"])}, "mapBatches"),
        (lambda row: {**row}, "map"),
        (lambda row: [row], "flatMap"),
    ]
    for function, method in functions:
        result = as_result(own(function, method=method)(table))
        assert not result.failed
        assert str(result.table) == str(table), method  # NaN does not equal itself


def test_changed_intervals_stay_intervals(own: Callable[..., Transform]) -> None:
    table = pa.table({"c": GIVEN["intervals"]})
    later = pa.MonthDayNano([7, 8, 9])
    result = as_result(own(lambda row: {"c": [row["c"], later]}, method="map")(table)).table
    assert result.column("c").type == pa.list_(pa.month_day_nano_interval())
    assert result.column("c").to_pylist() == [[each, later] for each in table["c"].to_pylist()]


def test_masked_values_of_an_input_column_are_null(own: Callable[..., Transform]) -> None:
    hidden = [False, True, False]
    table = pa.table({"n": [1, 2, 3], "text": ["a", "b", "c"], "f": [0.5, 1.5, 2.5]})
    dates = pa.array([1, 2, 3], pa.date32())
    step = own(lambda batch: {name: np.ma.array(batch[name], mask=hidden) for name in batch})
    result = as_result(step(table.append_column("date", dates)))
    assert not result.failed
    expected = {name: [values[0], None, values[2]] for name, values in table.to_pydict().items()}
    assert result.table.select(table.column_names).to_pydict() == expected
    assert result.table["date"].is_null().to_pylist() == hidden


@pytest.mark.parametrize("method", ["mapBatches", "map"])
def test_value_with_a_masked_array_fails_its_row(
    own: Callable[..., Transform], method: str
) -> None:
    arrays = {
        1: np.ma.array([1, 2], mask=[0, 1]),
        2: np.ma.array([3, 4], mask=[0, 0]),
        3: np.ma.array([5, 6]),
    }
    functions = {
        "map": lambda row: {"v": arrays[row["n"]]},
        "mapBatches": lambda batch: {"v": [arrays[n] for n in batch["n"].tolist()]},
    }
    result = as_result(own(functions[method], method=method)(TABLE))
    assert tensors_to_lists(result.table).to_pydict() == {"v": [[3, 4], [5, 6]]}
    assert list(result.failed) == [0]
    assert "masked_array(" in describe(result.failed[0])


def test_arrays_of_later_batches_fit_a_column_of_lists(own: Callable[..., Transform]) -> None:
    array = np.array([1, 2])
    batches = [[[3], None, array], [None, array, None], [array, array, array], [None, [4], array]]
    step = own(lambda batch: {"v": batches[batch["n"][0]]})
    for number, batch in enumerate(batches):
        result = as_result(step(pa.table({"n": [number] * 3})))
        assert not result.failed
        assert result.table["v"].type == pa.list_(pa.int64())
        assert result.table["v"].to_pylist() == [v if v is None else list(v) for v in batch]


def test_changed_columns_keep_type_that_holds_their_values(own: Callable[..., Transform]) -> None:
    def later(row: dict[str, Any]) -> dict[str, Any]:
        row["list"].append(row["list"][0])
        return {**row, "zone": row["zone"] and row["zone"] + timedelta(days=1)}

    day = 86_400_000_000
    columns = {
        "zone": pa.array([0, None], pa.timestamp("us", "Asia/Tokyo")),
        "list": pa.array([[NANO], [1]], pa.list_(pa.timestamp("ns"))),
    }
    result = as_result(own(later, method="map")(pa.table(columns))).table
    assert result.schema == pa.schema({name: column.type for name, column in columns.items()})
    assert result.column("zone").cast(pa.int64()).to_pylist() == [day, None]
    times = result.column("list").combine_chunks().flatten()
    assert times.cast(pa.int64()).to_pylist() == [NANO, NANO, 1, 1]


def test_array_keeps_the_integers_that_are_not_changed(own: Callable[..., Transform]) -> None:
    def change(batch: dict[str, Any]) -> dict[str, Any]:
        numbers = batch["n"].copy()
        numbers[2] = 5
        return {"n": numbers}

    table = pa.table({"n": [(1 << 53) + 1, None, 3]})
    assert own(change)(table).to_pydict() == {"n": [(1 << 53) + 1, None, 5]}


def test_values_of_another_type_are_not_cast_to_the_input(own: Callable[..., Transform]) -> None:
    for given, function, expected in (
        (pa.array([1, 2]), float, pa.float64()),
        (pa.array([1, 2], pa.timestamp("us")), lambda at: at.year, pa.int64()),
        (pa.array([1, 2], pa.timestamp("us")), lambda at: at.date(), pa.date32()),
        (pa.array([0], pa.date32()), lambda d: datetime.combine(d, time()), pa.timestamp("us")),
        (pa.array([b"a", b"b"]), bytes.decode, pa.string()),
        (pa.array([0.1, 0.2], pa.float32()), lambda number: number + 0.1, pa.float64()),
        (pa.array([True, False]), int, pa.int64()),
        (pa.array([1, None]), str, pa.string()),
    ):
        step = own(lambda row, f=function: {"c": f(row["c"])}, method="map")
        result = as_result(step(pa.table({"c": given})))
        assert (result.table.schema.field("c").type, result.failed) == (expected, {})


def test_array_of_another_type_is_not_cast_to_the_input(own: Callable[..., Transform]) -> None:
    times = pa.array([1, 2], pa.timestamp("us"))
    for given, dtype, expected in (
        (pa.array([1, 2]), "float64", pa.float64()),
        (pa.array([1, 2]), "datetime64[us]", pa.timestamp("us")),
        (pa.array([1, 2]), "int32", pa.int32()),
        (pa.array([0.0, 1.0]), "bool", pa.bool_()),
        (times, "int64", pa.int64()),
        (times, "datetime64[s]", pa.timestamp("s")),
        (pa.array([True, None]), "bool", pa.bool_()),
    ):
        step = own(lambda batch, dtype=dtype: {"c": batch["c"].astype(dtype)})
        result = as_result(step(pa.table({"c": given})))
        assert (result.table.schema.field("c").type, result.failed) == (expected, {}), dtype


def test_batch_arrays_are_read_only(own: Callable[..., Transform]) -> None:
    def change(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        batch["a"][0] = batch["a"][1]
        return batch

    values: list[list[Any]] = [[1.0, 2.0], ["a", "b"], [1, None], [True, False], [[1], [2]]]
    for column in (*values, pa.chunked_array([[1], [2]])):
        with pytest.raises(ValueError, match="read-only"):
            own(change)(pa.table({"a": column}))


def test_batch_dict_may_be_changed(own: Callable[..., Transform]) -> None:
    def change(batch: dict[str, Any]) -> dict[str, Any]:
        batch["text"] = [text.upper() for text in batch.pop("text")]
        return batch

    assert own(change)(TABLE).to_pydict() == {"n": [1, 2, 3], "text": ["A", "BB", "CCC"]}
    assert TABLE.column_names == ["n", "text"]


def test_invalid_results_end_the_job(own: Callable[..., Transform]) -> None:
    no_dict = "of column name to array, a pandas DataFrame or an Arrow table, got"
    reserved = "names that begin with _bi_ are reserved"
    for returned, reason in (
        (None, f"{no_dict} NoneType"),
        ([1, 2, 3], f"{no_dict} list"),
        (pa.table({}), f"{no_dict} an empty Table"),
        (pd.DataFrame(index=[1, 2, 3]), f"{no_dict} an empty DataFrame"),
        (pd.Series([1, 2, 3]), f"{no_dict} Series"),
        ({5: [1, 2, 3]}, "returned the column 5: the name of a column must be text"),
        (pd.DataFrame([1, 2, 3]), "returned the column 0: the name of a column must be text"),
        (pa.table([[1], [2]], ["a", "a"]), "returned 2 columns with the name 'a'"),
        (pd.DataFrame({"a": [1, 2]}), "returned 2 rows in column 'a' for a batch of 3"),
        (TABLE.slice(1), "returned 2 rows in column 'n' for a batch of 3"),
        (pa.table({"_bi_id": [1, 2, 3]}), f"column '_bi_id': {reserved}"),
        ({}, f"{no_dict} an empty dict"),
        ({"a": [1, 2]}, "returned 2 rows in column 'a' for a batch of 3: it must return one for"),
        ({"a": [1, 2, 3, 4]}, "returned 4 rows in column 'a' for a batch of 3"),
        ({"a": [1, 2, 3], "b": []}, "returned 0 rows in column 'b' for a batch of 3"),
        ({"_bi_id": [1, 2, 3]}, f"column '_bi_id': {reserved}"),
        ({"_bi_": [1, 2, 3]}, f"column '_bi_': {reserved}"),
        ({"a": 5}, "returned a value of type int in column 'a'. Return a list with one value"),
        ({"a": None}, "returned a value of type NoneType in column 'a'. Return"),
        ({"a": np.array(5)}, "returned a value of type ndarray in column 'a'. Return"),
        ({"a": {1, 2, 3}}, "returned a value of type set in column 'a'. Return a list"),
        ({"a": "abc"}, "returned a value of type str in column 'a'. Return a list"),
        ({"a": "of another length"}, "returned a value of type str in column 'a'"),
        ({"a": b"abc"}, "returned a value of type bytes in column 'a'"),
        ({"a": {"x": 1, "y": 2, "z": 3}}, "returned a value of type dict in column 'a'"),
    ):
        with pytest.raises(JobFailure) as failure:
            own(lambda batch, returned=returned: returned)(TABLE)
        assert failure.value.message.startswith("step 'own' ")
        assert reason in failure.value.message


@pytest.mark.parametrize(
    "function",
    [
        lambda batch: {"a": batch["text"].upper()},
        lambda batch: {"a": 1 if batch["n"] > 1 else 2},
        lambda batch: {"a": int(batch["n"])},
        lambda batch: {"a": {1: 2}[batch["n"]]},
    ],
)
def test_array_that_is_treated_as_a_value_has_a_fix(
    own: Callable[[Callable[..., Any]], Transform], function: Callable[..., Any]
) -> None:
    with pytest.raises((AttributeError, TypeError, ValueError), match="Set method: map") as caught:
        own(function)(TABLE)
    assert "test_python_steps.py" in describe(caught.value)


def test_other_errors_of_code_have_no_fix(own: Callable[[Callable[..., Any]], Transform]) -> None:
    for function in (lambda batch: batch.n, lambda batch: batch["x"], lambda batch: 1 / 0):
        with pytest.raises((AttributeError, KeyError, ZeroDivisionError)) as caught:
            own(function)(TABLE)
        assert "method: map" not in str(caught.value)


LARGE = [2**53 + 1, None, 3]
RETURNED: dict[str, tuple[Callable[[dict[str, Any]], Any], dict[str, Any], dict[str, str]]] = {
    "table": (
        lambda batch: pa.table({"n": pa.array(batch["n"], pa.int16()), "text": batch["text"]}),
        {"n": [1, 2, 3], "text": ["a", "bb", "ccc"]},
        {"n": "int16", "text": "string"},
    ),
    "batch": (lambda batch: pa.record_batch({"n": batch["n"]}), {"n": [1, 2, 3]}, {"n": "int64"}),
    "nulls": (
        lambda batch: {
            **{"n": pd.Series(LARGE, dtype="Int64"), "c": pd.Categorical(LARGE)},
            "u": pd.Categorical([2**63, None, 1]),
        },
        {"n": LARGE, "c": LARGE, "u": [2**63, None, 1]},
        {"n": "int64", "c": "int64", "u": "uint64"},
    ),
    "frame": (
        lambda batch: pd.DataFrame({"text": batch["text"], "half": batch["n"] / 2}),
        {"text": ["a", "bb", "ccc"], "half": [0.5, 1.0, 1.5]},
        {"text": "string", "half": "double"},
    ),
    "frame with missing values": (
        lambda batch: pd.DataFrame(
            {"text": ["a", None, "c"], "n": pd.array([1, None, 3], "Int8"), "x": [0.5, np.nan, 1]},
            index=[7, 7, 7],
        ),
        {"text": ["a", None, "c"], "n": [1, None, 3], "x": [0.5, None, 1.0]},
        {"text": "string", "n": "int8", "x": "double"},
    ),
    "frame of vectors": (
        lambda batch: pd.DataFrame({"v": [np.ones(2, np.float32)] * 3, "l": [["a"], [], ["b"]]}),
        {"v": [[1.0, 1.0]] * 3, "l": [["a"], [], ["b"]]},
        {"v": "list<item: float>", "l": "list<item: string>"},
    ),
    "frame of other kinds": (
        lambda batch: pd.DataFrame(
            {"c": pd.Categorical(["x", "y", "x"]), "s": pd.arrays.SparseArray([0, 1, 0])}
        ),
        {"c": ["x", "y", "x"], "s": [0, 1, 0]},
        {"c": "dictionary<values=string, indices=int8, ordered=0>", "s": "int64"},
    ),
}
"""What the code returns, and the values and types of its columns."""


@pytest.mark.parametrize("name", RETURNED)
def test_tables_and_frames_may_be_returned(own: Callable[..., Transform], name: str) -> None:
    function, values, types = RETURNED[name]
    tensors = tensors_to_lists(own(function)(TABLE))
    assert tensors.to_pydict() == values
    assert {field.name: str(field.type).replace("large_", "") for field in tensors.schema} == types


@pytest.mark.parametrize("column", [list, pd.Categorical])
@pytest.mark.parametrize("kind", [pd.DataFrame, dict])
def test_rows_of_a_frame_whose_value_does_not_fit_fail(
    own: Callable[..., Transform], kind: Callable[..., Any], column: Callable[..., Any]
) -> None:
    result = as_result(own(lambda batch: kind({"a": column([1, "two", 3])}))(TABLE))
    assert result.table.to_pydict() == {"a": [1, 3]}
    assert list(result.failed) == [1]


def test_types_of_frames_agree_over_batches(own: Callable[..., Transform]) -> None:
    for first, second, failed in (
        (pd.DataFrame({"a": [1, 2, 3]}), pd.DataFrame({"a": ["x", "y", "z"]}), {0, 1, 2}),
        (pd.DataFrame({"a": pd.Categorical([*"xyz"])}), {"a": ["x", "y", "z"]}, set()),
        (pd.DataFrame({"a": [0.5, 1, 2]}), pd.DataFrame({"a": [1, 2, 3]}), set()),
        ({"a": [1, 2, 3]}, {"a": pd.cut([1, 2, 3], 3)}, {0, 1, 2}),
        ({"a": np.ones((3, 2))}, {"a": [1, 2, 3]}, {0, 1, 2}),
        ({"a": [1, 2, 3]}, {"a": pd.Categorical(pd.period_range("2024", periods=3))}, {0, 1, 2}),
    ):
        batches = iter([first, second])
        step = own(lambda batch, batches=batches: next(batches))
        assert step(TABLE).num_rows == 3
        assert set(as_result(step(TABLE)).failed) == failed


def test_columns_may_be_any_sequence(own: Callable[..., Transform]) -> None:
    plain = ([1, None, 3], ("x", "y", "z"), range(3), [[1], [], [2, 3]])
    for values in (*plain, np.arange(3, dtype=np.uint8), pa.array([1, 2, 3])):
        result = own(lambda batch, values=values: {"a": values})(TABLE).column("a").to_pylist()
        assert result == (values.to_pylist() if isinstance(values, pa.Array) else list(values))
    dicts = own(lambda batch: {"a": [{"a": 1}, {"a": 2}, {"b": 3}]})(TABLE).column("a").to_pylist()
    assert dicts == [{"a": 1, "b": None}, {"a": 2, "b": None}, {"a": None, "b": 3}]


def test_load_error_is_raised_when_the_step_is_made(messages: Messages) -> None:
    for name, reason in (
        ("missing_module:f", "cannot load 'missing_module:f': ModuleNotFoundError: No module"),
        ("user_code:missing", "load 'user_code:missing': AttributeError: module 'user_code'"),
        ("user_code:Outer.missing", "cannot load 'user_code:Outer.missing': AttributeError"),
        ("user_code:Fragile", "be constructed: RuntimeError: the file of weights is missing"),
        ("user_code:Scaler", "cannot be constructed: TypeError"),
        ("user_code:NotCallable", "step 'own': a NotCallable cannot be called with a batch"),
        ("user_code:NOT_CALLABLE", "step 'own': an int cannot be called with a batch"),
    ):
        with pytest.raises(ModelLoad) as failure:
            transform(name)
        assert reason in failure.value.message
    with messages.raises(ModelLoad):
        transform("user_code:add", constructorArgs={"amount": 1})


def test_import_error_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    codes = ("1 / 0", "def broken(:", "raise SystemError('no')", "import missing_module_of_it")
    for number, code in enumerate(codes):
        name = f"broken_code_{number}"
        (tmp_path / f"{name}.py").write_text(code)
        with pytest.raises(ModelLoad, match=rf"cannot load '{name}:f': .*directory of the job's"):
            load_callable(f"{name}:f")


class Reusing:
    """User code that writes the results of each call into the same memory."""

    def __init__(self) -> None:
        self._results = np.zeros((3, 2))
        self._frame = pd.DataFrame({"n": np.zeros(3)})
        self._tensor = torch.zeros(3, dtype=torch.bfloat16)
        self._row: dict[str, Any] = {"n": np.zeros(2)}

    def _filled(self, batch: dict[str, np.ndarray]) -> np.ndarray:
        self._results[:] = batch["n"][:, None]
        return self._results

    def numbers(self, batch: dict[str, np.ndarray]) -> dict[str, Any]:
        return {"n": self._filled(batch)[:, 0]}

    def vectors(self, batch: dict[str, np.ndarray]) -> dict[str, Any]:
        return {"n": self._filled(batch)}

    def frame(self, batch: dict[str, np.ndarray]) -> pd.DataFrame:
        self._frame.loc[:, "n"] = batch["n"]
        return self._frame

    def tensor(self, batch: dict[str, np.ndarray]) -> dict[str, Any]:
        self._tensor[:] = torch.tensor(batch["n"])
        return {"n": self._tensor}

    def ragged(self, batch: dict[str, np.ndarray]) -> dict[str, Any]:
        return {"n": np.split(self._filled(batch).ravel(), [1, 3])}

    def arrow(self, batch: dict[str, np.ndarray]) -> pa.Table:
        self._filled(batch)
        return pa.table({"n": pa.FixedSizeListArray.from_arrays(self._results.ravel(), 2)})

    def series(self, batch: dict[str, np.ndarray]) -> dict[str, Any]:
        return {"n": self.frame(batch)["n"]}

    def row(self, row: dict[str, Any]) -> dict[str, Any]:
        self._row["n"][:] = row["n"]
        return self._row

    def nested(self, row: dict[str, Any]) -> dict[str, Any]:
        return {"n": [self.row(row)["n"]]}

    def rows(self, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for factor in (1, 1):
            self._row["n"] = [row["n"] * factor] * 2
            yield self._row


@pytest.mark.parametrize(
    ("call", "fields"),
    [
        *(("numbers", {}), ("vectors", {}), ("frame", {}), ("tensor", {}), ("ragged", {})),
        *(("arrow", {}), ("series", {}), ("row", {"method": "map"}), ("nested", {"method": "map"})),
        ("rows", {"method": "flatMap"}),
    ],
)
def test_code_may_use_its_memory_again(
    own: Callable[[Callable[..., Any]], Transform], call: str, fields: dict[str, str]
) -> None:
    step = own(getattr(Reusing(), call), **fields)
    first = as_result(step(TABLE)).table
    before = tensors_to_lists(first).to_pydict()
    step(pa.table({"n": [7, 8, 9], "text": ["", "", ""]}))
    assert tensors_to_lists(first).to_pydict() == before
    flat = np.unique(np.hstack(before["n"]))
    assert flat.tolist() == [1, 2, 3]
