"""NaN and infinity in the results of models are counted, or fail their rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import transformers

from batchinference.pipeline.arrow import to_column
from batchinference.pipeline.non_finite import non_finite_rows
from batchinference.pipeline.row_batch import RowBatch
from support.models.replicas import model_of
from support.outputs.batches import good, outcomes
from support.outputs.row_warnings import warnings_of
from support.outputs.stages import in_one_stage

NAN, INF = float("nan"), float("inf")
COLUMNS: list[tuple[Any, dict[int, int]]] = [
    ([1.0, NAN, None, -INF], {1: 1, 3: 1}),
    ([[1.0, 2.0], None, [], [NAN, INF]], {3: 2}),
    (pa.array([[1.0, 2.0], None, [NAN, 1.0]], pa.list_(pa.float32(), 2)), {2: 1}),
    ([[{"label": "a", "score": 0.5}], [{"label": "b", "score": NAN}] * 2], {1: 2}),
    ([{"x": 1.0, "y": [[NAN]]}, {"x": INF, "y": [[]]}, None], {0: 1, 1: 1}),
    (np.array([[1, NAN], [1, 2]], np.float16), {0: 1}),
    ([np.ones((2, 2)), np.full((3, 2), NAN)], {1: 6}),
    (["a", None], {}),
    ([1, 2], {}),
    (pa.nulls(2), {}),
]


@pytest.mark.parametrize(("values", "expected"), COLUMNS)
def test_values_are_counted_by_row(values: Any, expected: dict[int, int]) -> None:
    plain = isinstance(values, list) and not isinstance(values[0], np.ndarray)
    column = pa.table({"a": pa.array(values) if plain else to_column(values)})["a"]
    assert non_finite_rows(column) == expected
    moved = {row - 1: count for row, count in expected.items() if row}
    assert non_finite_rows(column.slice(1)) == moved


@pytest.fixture
def broken(bert: str, tmp_path: Path) -> str:
    """Return the folder of a text model in which the embedding of the letter b is NaN."""
    transformers.AutoTokenizer.from_pretrained(bert).save_pretrained(tmp_path)
    model = transformers.AutoModel.from_pretrained(bert)
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[6] = NAN
    model.save_pretrained(tmp_path)
    return str(tmp_path)


def embedded(source: str, **fields: Any) -> RowBatch:
    text = {"runtime": "transformers", "task": "feature-extraction", "inputs": {"text": "text"}}
    model = {**text, "source": source, "output": "embedding", **fields}
    run = in_one_stage({"name": "embed", "model": model})
    return run(good(0, 0, pa.table({"text": ["a", "b", None, "c"]})))


def test_non_finite_embeddings_are_counted(broken: str) -> None:
    found = embedded(broken)
    assert outcomes(found) == dict.fromkeys(range(4), "good")
    assert warnings_of(found) == [(1, "NonFinite", 32), (2, "NullInput", 0)]


@pytest.mark.parametrize("fields", [{"normalize": True}, {"nonFinite": "fail"}])
def test_non_finite_embeddings_fail_their_rows(broken: str, fields: dict[str, Any]) -> None:
    found = embedded(broken, **fields)
    assert outcomes(found) == {0: "good", 1: "failed", 2: "good", 3: "good"}
    assert warnings_of(found) == [(2, "NullInput", 0)]


def test_non_finite_normalized_embeddings_are_kept_if_wanted(broken: str) -> None:
    found = embedded(broken, normalize=True, nonFinite="keep")
    assert warnings_of(found)[0] == (1, "NonFinite", 32)


def test_embeddings_of_an_engine_and_an_endpoint_must_be_finite() -> None:
    endpoint = {"url": "http://a", "name": "m"}
    for runtime, fields, expected in (
        ("vllm", {"source": "org/model", "task": "embed"}, True),
        ("vllm", {"source": "org/model"}, False),
        ("http", {"api": "embeddings", **endpoint}, True),
        ("http", {"api": "chat", **endpoint}, False),
        ("torch", {"factory": "user_code:Affine"}, False),
    ):
        assert model_of(runtime, ("text",), **fields).needs_finite is expected, (runtime, fields)
