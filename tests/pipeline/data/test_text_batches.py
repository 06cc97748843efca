"""Batches of texts: rows of similar length are computed together, within a token budget."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batchinference.pipeline.runtimes.transformers.text_inputs import buckets, padded
from support.documents.minimal import Document
from support.models.run_transformers import alike, loaded, run
from support.tiers import examples

TEXTS = [
    *("a", "hello", "the quick brown fox jumps over the lazy dog", "", "b" * 300, "abc"),
    *("batch inference", "hello", "the lazy dog", "x"),
]
LENGTHS = st.lists(st.integers(1, 500), min_size=1, max_size=60)


def weight(group: list[int], multiple: int | None, limit: int) -> int:
    return len(group) * padded(max(group), multiple, limit)


@settings(max_examples=examples(100))
@example(lengths=[1, 1, 9], budget=16, multiple=8, limit=64)
@given(LENGTHS, st.integers(1, 2000), st.none() | st.integers(1, 64), st.integers(1, 600))
def test_every_row_is_in_one_group_within_the_budget(
    lengths: list[int], budget: int, multiple: int | None, limit: int
) -> None:
    groups = [group.tolist() for group in buckets(lengths, budget, multiple, limit)]
    assert sorted(row for group in groups for row in group) == list(range(len(lengths)))
    sizes = [[lengths[row] for row in group] for group in groups]
    for group in sizes:
        assert len(group) == 1 or weight(group, multiple, limit) <= budget
    for group, following in pairwise(sizes):
        assert max(group) <= min(following)
        assert weight([*group, following[0]], multiple, limit) > budget


@settings(max_examples=examples(40))
@given(LENGTHS)
def test_without_a_budget_all_rows_are_one_group(lengths: list[int]) -> None:
    (group,) = buckets(lengths, None, 8, 512)
    assert group.tolist() == list(range(len(lengths)))


def test_length_is_rounded_up_within_the_limit() -> None:
    for length, multiple, limit, expected in (
        (5, None, 64, 5),
        (5, 8, 64, 8),
        (8, 8, 64, 8),
        (60, 48, 64, 64),  # not beyond the limit
        (70, 48, 64, 70),  # already beyond the limit
    ):
        assert padded(length, multiple, limit) == expected, (length, multiple)


SAMPLED = {"max_new_tokens": 4, "do_sample": True, "seed": 5}
WITH_BUDGET: dict[str, tuple[str, str, Document]] = {
    "embeddings": ("feature-extraction", "bert", {"normalize": True}),
    "labels": ("text-classification", "bert", {"topK": 3}),
    "tokens": ("token-classification", "token_classifier", {}),
    "texts": ("text-generation", "text_model", {"sampling": SAMPLED}),
    "padded to the full": (
        "feature-extraction",
        "bert",
        {"options": {"padding": "max_length", "max_length": 20}},
    ),
}


@pytest.mark.parametrize("case", WITH_BUDGET)
def test_groups_do_not_change_results(case: str, bert: str, tiny: Callable[[str], str]) -> None:
    task, name, fields = WITH_BUDGET[case]
    source = bert if name == "bert" else tiny(name)
    columns: dict[str, list[Any]] = {"text": TEXTS}
    alone = loaded(task, source, columns, **fields)
    expected = [run(alone, {"text": [text]})[0] for text in TEXTS]
    for budget in (1, 40, 100, 100000):
        found = run(loaded(task, source, columns, **fields, maxTokensPerBatch=budget), columns)
        assert len(found) == len(expected)
        for result, wanted in zip(found, expected, strict=True):
            assert alike(result, wanted), (budget, result, wanted)


def widths(runtime: Any, texts: list[str]) -> list[tuple[int, ...]]:
    """Return the shapes of the batches that reach the model."""
    shapes: list[tuple[int, ...]] = []

    def note(_module: Any, _args: Any, given: dict[str, Any]) -> None:
        shapes.append(tuple(given["input_ids"].shape))

    hook = runtime._model.register_forward_pre_hook(note, with_kwargs=True)
    run(runtime, {"text": texts})
    hook.remove()
    return shapes


def test_short_texts_are_batched_together(bert: str) -> None:
    texts = ["a", "b" * 60, "c", "d", "e" * 61]
    columns = ["text"]
    assert widths(loaded("feature-extraction", bert, columns), texts) == [(5, 63)]
    within = loaded("feature-extraction", bert, columns, maxTokensPerBatch=126)
    assert widths(within, texts) == [(3, 3), (2, 63)]


def test_padding_to_a_multiple_limits_the_shapes(bert: str) -> None:
    padded_, plain = (
        loaded("feature-extraction", bert, ["text"], padToMultipleOf=multiple)
        for multiple in (16, None)
    )
    lengths = [*range(1, 80, 7), *(15, 16, 17, 31, 32, 33, 47, 48, 49, 79)]
    found = {widths(padded_, ["a" * length])[0][1] for length in lengths}
    assert found == {16, 32, 48, 64}
    batch = {"text": np.array(TEXTS, object)}
    assert np.abs(padded_(batch) - plain(batch)).max() < 1e-5
