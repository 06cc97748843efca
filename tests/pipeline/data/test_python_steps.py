"""Python steps: the user's function or class over batches."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from batchinference.pipeline.blocks import to_column
from batchinference.pipeline.failures import JobFailure, ModelLoad
from batchinference.pipeline.loading import load_callable
from batchinference.pipeline.steps import Transform
from batchinference.pipeline.steps.python import python_transform
from batchinference.spec.python_step import PythonStep

TABLE = pa.table({"n": [1, 2, 3], "text": ["a", "bb", "ccc"]})


def transform(callable_: str, **arguments: Any) -> Transform:
    return python_transform("own", PythonStep.model_validate({"callable": callable_, **arguments}))


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Any]], Transform]:
    """Makes a step of a function that a test has at hand."""
    import user_code

    def make(function: Callable[..., Any]) -> Transform:
        monkeypatch.setattr(user_code, "of_the_test", function, raising=False)
        return transform("user_code:of_the_test")

    return make


def test_a_function_adds_columns() -> None:
    assert transform("user_code:lengths")(TABLE).to_pydict() == {
        **TABLE.to_pydict(),
        "length": [1, 2, 3],
    }


def test_the_columns_that_come_back_are_all_there_are() -> None:
    assert transform("user_code:Outer.double")(TABLE).to_pydict() == {"n": [2, 4, 6]}


def test_call_arguments_follow_the_batch() -> None:
    step = transform("user_code:add", callArgs={"amount": 10})
    assert step(TABLE).column("n").to_pylist() == [11, 12, 13]


def test_a_class_is_constructed_once_and_called_with_each_batch() -> None:
    import user_code

    before = user_code.Scaler.made
    step = transform("user_code:Scaler", constructorArgs={"factor": 2.5}, callArgs={"offset": 1})
    for _ in range(3):
        assert step(TABLE).to_pydict() == {"n": [3.5, 6.0, 8.5]}
    assert user_code.Scaler.made == before + 1


def test_columns_that_come_back_untouched_keep_their_types() -> None:
    table = pa.table(
        {
            "time": pa.array([1], pa.timestamp("ms", "UTC")),
            "category": pa.array(["a"]).dictionary_encode(),
            "missing": pa.array([None], pa.int8()),
            "tensor": to_column(np.zeros((1, 2, 2), np.uint8)),
        }
    )
    assert transform("user_code:untouched")(table).schema == table.schema


@pytest.mark.parametrize(
    "column",
    [pa.array([1.0, 2.0]), pa.array(["a", "b"]), pa.array([1, None]), pa.array([True, False]),
     pa.chunked_array([[1], [2]]), pa.array([[1], [2]])],
    ids=["numbers", "text", "missing", "flags", "chunks", "lists"],
)  # fmt: skip
def test_a_batch_cannot_be_changed_in_place(
    own: Callable[..., Transform], column: pa.Array
) -> None:
    def change(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        batch["a"][0] = batch["a"][1]
        return batch

    with pytest.raises(ValueError, match="read-only"):
        own(change)(pa.table({"a": column}))


def test_what_is_done_to_the_dict_of_a_batch_harms_nothing(
    own: Callable[..., Transform],
) -> None:
    def change(batch: dict[str, Any]) -> dict[str, Any]:
        batch["text"] = [text.upper() for text in batch.pop("text")]
        return batch

    assert own(change)(TABLE).to_pydict() == {"n": [1, 2, 3], "text": ["A", "BB", "CCC"]}
    assert TABLE.column_names == ["n", "text"]


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (None, "must return a dict of column name to array, got NoneType"),
        ([1, 2, 3], "must return a dict of column name to array, got list"),
        (TABLE, "must return a dict of column name to array, got Table"),
        ({}, "must return a dict of column name to array, got an empty dict"),
        ({"a": [1, 2]}, "returned 2 rows in column 'a' for a batch of 3: it must return one for"),
        ({"a": [1, 2, 3, 4]}, "returned 4 rows in column 'a' for a batch of 3"),
        ({"a": [1, 2, 3], "b": []}, "returned 0 rows in column 'b' for a batch of 3"),
        ({"_bi_id": [1, 2, 3]}, "column '_bi_id': names that begin with _bi_ are reserved"),
        ({"_bi_": [1, 2, 3]}, "column '_bi_': names that begin with _bi_ are reserved"),
        ({"a": 5}, "returned a int in column 'a' that is no column: object of type 'int' has no"),
        ({"a": None}, "returned a NoneType in column 'a' that is no column"),
        ({"a": np.array(5)}, "returned a ndarray in column 'a' that is no column"),
        ({"a": {1, 2, 3}}, "returned a set in column 'a' that is no column"),
    ],
    ids=[
        *("None", "list", "table", "empty dict", "too few rows", "too many rows", "no rows"),
        *("id", "reserved prefix", "number", "None in a column", "array of none", "set"),
    ],
)
def test_what_cannot_be_rows_fails_the_job(
    own: Callable[..., Transform], returned: Any, words: str
) -> None:
    with pytest.raises(JobFailure) as failure:
        own(lambda batch: returned)(TABLE)
    assert failure.value.message.startswith("step 'own' ")
    assert words in failure.value.message


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, None, 3], [1, None, 3]),
        (("x", "y", "z"), ["x", "y", "z"]),
        (range(3), [0, 1, 2]),
        (np.arange(3, dtype=np.uint8), [0, 1, 2]),
        (pa.array([1, 2, 3]), [1, 2, 3]),
        ([{"a": 1}, {"a": 2}, {"b": 3}], [{"a": 1, "b": None}, {"a": 2, "b": None},
                                          {"a": None, "b": 3}]),
        ([[1], [], [2, 3]], [[1], [], [2, 3]]),
    ],
    ids=["list", "tuple", "range", "array", "Arrow", "dicts", "lists"],
)  # fmt: skip
def test_a_column_may_come_in_any_usual_form(
    own: Callable[..., Transform], values: Any, expected: list[Any]
) -> None:
    assert own(lambda batch: {"a": values})(TABLE).column("a").to_pylist() == expected


def test_what_the_code_raises_is_raised(own: Callable[..., Transform]) -> None:
    def fail(batch: object) -> None:
        raise KeyError("no such thing")

    with pytest.raises(KeyError, match="no such thing"):
        own(fail)(TABLE)


@pytest.mark.parametrize(
    ("callable_", "words"),
    [
        ("missing_module:f", "cannot load 'missing_module:f': ModuleNotFoundError: No module"),
        (
            "user_code:missing",
            "cannot load 'user_code:missing': AttributeError: module 'user_code'",
        ),
        ("user_code:Outer.missing", "cannot load 'user_code:Outer.missing': AttributeError"),
        (
            "user_code:Fragile",
            "cannot be constructed: RuntimeError: the file of weights is missing",
        ),
        ("user_code:Scaler", "cannot be constructed: TypeError"),
        ("user_code:NotCallable", "step 'own': a NotCallable cannot be called with a batch"),
        ("user_code:NOT_CALLABLE", "step 'own': a int cannot be called with a batch"),
    ],
)
def test_code_that_cannot_be_loaded_is_told_when_the_step_is_made(
    callable_: str, words: str
) -> None:
    with pytest.raises(ModelLoad) as failure:
        transform(callable_)
    assert words in failure.value.message


def test_a_function_has_no_constructor() -> None:
    with pytest.raises(ModelLoad, match="constructorArgs is for a class and 'user_code:add' is"):
        transform("user_code:add", constructorArgs={"amount": 1})


@pytest.mark.parametrize(
    "code", ["1 / 0", "def broken(:", "raise SystemError('no')", "import missing_module_of_it"]
)
def test_a_module_that_cannot_be_imported_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    (tmp_path / "broken_code.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "broken_code", raising=False)
    with pytest.raises(ModelLoad, match=r"cannot load 'broken_code:f': .*beside the job's file"):
        load_callable("broken_code:f")


def test_an_attribute_of_an_attribute_can_be_named() -> None:
    import user_code

    assert load_callable("user_code:Outer.double") is user_code.Outer.double
    assert load_callable("os.path:join").__name__ == "join"
