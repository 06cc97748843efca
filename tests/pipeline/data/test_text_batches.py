"""Batches of texts: rows of similar length are computed together, within a token budget."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from batchinference.pipeline.runtimes.transformers.text_inputs import buckets
from support.models.run_transformers import loaded, run
from support.tiers import examples

LENGTHS = st.lists(st.integers(1, 500), min_size=1, max_size=60)


def weight(group: list[int]) -> int:
    return len(group) * max(group)


@settings(max_examples=examples(100))
@example(lengths=[1, 1, 9], budget=16)
@given(LENGTHS, st.integers(1, 2000))
def test_every_row_is_in_one_group_within_the_budget(lengths: list[int], budget: int) -> None:
    groups = [group.tolist() for group in buckets(lengths, budget)]
    assert sorted(row for group in groups for row in group) == list(range(len(lengths)))
    sizes = [[lengths[row] for row in group] for group in groups]
    for group in sizes:
        assert len(group) == 1 or weight(group) <= budget
    for group, following in pairwise(sizes):
        assert max(group) <= min(following)
        assert weight([*group, following[0]]) > budget


@settings(max_examples=examples(40))
@given(LENGTHS)
def test_without_a_budget_all_rows_are_one_group(lengths: list[int]) -> None:
    (group,) = buckets(lengths, None)
    assert group.tolist() == list(range(len(lengths)))


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
