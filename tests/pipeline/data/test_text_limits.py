"""Texts that are longer than the model, and batches of texts of similar length."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.runtimes.text_limits import PromptLimit, TextTooLong, max_tokens
from batchinference.pipeline.runtimes.transformers.text_inputs import buckets
from plugins.messages import Messages
from support.models import tiny_transformers as tiny_models
from support.models.run_transformers import alike, loaded, run
from support.outputs.row_warnings import run_with_warnings
from support.tiers import examples

Tiny = Callable[[str], str]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
LONG = " ".join(LETTERS * 6)
"""A text with 156 tokens, and two special ones."""
TEXTS = ["a b", LONG, " ".join(LETTERS)]
CUT = [(1, "TextCut", 158 - 64)]


def vectors(source: str, *texts: str) -> np.ndarray:
    """Return the mean of the hidden states of each text, as the library computes them."""
    tokenizer = hf.AutoTokenizer.from_pretrained(source)
    model = hf.AutoModel.from_pretrained(source).eval()
    with torch.inference_mode():
        states = [model(**tokenizer(text, return_tensors="pt")) for text in texts]
    return np.stack([state.last_hidden_state[0].mean(dim=0).numpy() for state in states])


def embedded(source: str, texts: list[str], **fields: Any) -> tuple[np.ndarray, Any]:
    runtime = loaded("feature-extraction", source, ["text"], **fields)
    results, warnings = run_with_warnings(runtime, {"text": texts})
    return np.array(results), warnings


def test_cut_tokens_are_counted(bert: str) -> None:
    for fields, cut in (
        ({}, CUT),
        ({"tooLong": "truncate"}, CUT),
        ({"tooLong": "truncateLeft"}, CUT),
        ({"options": {"max_length": 20}}, [(1, "TextCut", 138), (2, "TextCut", 8)]),
        ({"maxTokensPerBatch": 64}, CUT),
    ):
        assert embedded(bert, TEXTS, **fields)[1] == cut, fields


def test_truncation_keeps_the_beginning_or_the_end(bert: str) -> None:
    letters = LONG.split()
    first, last = (" ".join(part) for part in (letters[:62], letters[-62:]))
    expected = vectors(bert, first, last)
    for policy, vector in (("truncate", expected[0]), ("truncateLeft", expected[1])):
        result, _ = embedded(bert, TEXTS, tooLong=policy)
        assert np.abs(result[1] - vector).max() < 1e-5, policy


def test_long_text_fails_if_wanted(bert: str, messages: Messages) -> None:
    with messages.raises(TextTooLong):
        embedded(bert, TEXTS, tooLong="fail")
    assert embedded(bert, TEXTS[::2], tooLong="fail")[1] == []
    with pytest.raises(ModelLoad, match=r"options\.truncation: .* tooLong"):
        embedded(bert, TEXTS, options={"truncation": False})


def test_windows_are_averaged_by_their_tokens(bert: str) -> None:
    letters = LONG.split()
    parts = [letters[:62], letters[62:124], letters[124:]]
    weights = [len(part) for part in parts]
    expected = np.average(vectors(bert, *map(" ".join, parts)), axis=0, weights=weights)
    result, warnings = embedded(bert, TEXTS, tooLong="windows", windowOverlap=0)
    assert warnings == []
    assert np.abs(result[1] - expected).max() < 1e-5
    assert np.abs(result[::2] - vectors(bert, *TEXTS[::2])).max() < 1e-5
    unit, _ = embedded(bert, TEXTS, tooLong="windows", windowOverlap=0, normalize=True)
    assert np.abs(unit[1] - expected / np.linalg.norm(expected)).max() < 1e-5


def test_windows_overlap(bert: str, messages: Messages) -> None:
    letters = LONG.split()
    parts = [letters[:62], letters[52:114], letters[104:]]
    weights = [len(part) for part in parts]
    expected = np.average(vectors(bert, *map(" ".join, parts)), axis=0, weights=weights)
    result, _ = embedded(bert, [LONG], tooLong="windows", windowOverlap=10, maxTokensPerBatch=100)
    assert np.abs(result[0] - expected).max() < 1e-5
    with messages.raises(ModelLoad):
        embedded(bert, [LONG], tooLong="windows", windowOverlap=40)


def test_probabilities_of_windows_are_averaged(bert: str) -> None:
    letters = LONG.split()
    parts = [" ".join(part) for part in (letters[:62], letters[62:124], letters[124:])]
    runtime = loaded("text-classification", bert, ["text"], topK=3)
    results = run(runtime, {"text": parts})
    scores = [{one["label"]: one["score"] for one in result} for result in results]
    mean = {
        label: np.average([score[label] for score in scores], weights=[62, 62, 32])
        for label in scores[0]
    }
    fields = {"topK": 3, "tooLong": "windows", "windowOverlap": 0}
    (result,) = run(loaded("text-classification", bert, ["text"], **fields), {"text": [LONG]})
    assert [one["label"] for one in result] == sorted(mean, key=lambda name: -mean[name])
    assert {one["label"]: one["score"] for one in result} == pytest.approx(mean, abs=1e-5)


def test_pairs_are_cut_and_divided_together(tiny: Tiny, messages: Messages) -> None:
    pairs = {"text": ["a b c"] * 2, "text_pair": [LONG, "d"]}
    runtime = loaded("text-classification", tiny("regressor"), list(pairs))
    _, warnings = run_with_warnings(runtime, pairs)
    assert warnings == [(0, "TextCut", 3 + 156 + 3 - 64)]
    fields = {"tooLong": "windows", "windowOverlap": 0}
    divided = loaded("text-classification", tiny("regressor"), list(pairs), **fields)
    result, warnings = run_with_warnings(divided, pairs)
    letters = LONG.split()
    parts = [letters[at : at + 58] for at in range(0, 156, 58)]
    columns = {"text": ["a b c"] * 3, "text_pair": [" ".join(part) for part in parts]}
    scores = [one["score"] for one in run(runtime, columns)]
    expected = np.average(scores, weights=[len(part) for part in parts])
    assert warnings == []
    assert result[0]["score"] == pytest.approx(expected, abs=1e-5)
    with messages.raises(TextTooLong):
        run(divided, {"text": [LONG], "text_pair": [LONG]})


def test_as_many_texts_of_a_conversation_are_cut_as_needed() -> None:
    def render(row: dict[str, Any]) -> str:
        contents = [turn["content"] for turn in row["turns"]]
        return "".join(text if isinstance(text, str) else text[0]["text"] for text in contents)

    texts = [{"role": "user", "content": letter * 10} for letter in LETTERS]
    part = {"role": "user", "content": [{"type": "text", "text": "1" * 5}, {"type": "image"}]}
    limit = PromptLimit(tiny_models.characters(), 3, from_left=False)
    turns = np.array([*texts, part], object)
    row, prompt, cut = limit.fitted({"turns": turns}, render, special=False)
    assert (prompt, cut) == ("111", 260 + 2)
    assert row["turns"][-1]["content"] == [{"type": "text", "text": "111"}, {"type": "image"}]


def test_prompt_that_fits_after_the_last_cut_is_used() -> None:
    lengths = iter([100, *range(17, 9, -1)])
    limit = PromptLimit(tiny_models.characters(), 10, from_left=False)
    prompt = limit.fitted({"text": "a" * 99}, lambda _: "x" * next(lengths), special=False)[1]
    assert len(prompt) == 10


def test_prompt_that_is_too_long_without_its_values_is_named(messages: Messages) -> None:
    limit = PromptLimit(tiny_models.characters(), 7, from_left=False)
    with messages.raises(TextTooLong):
        limit.fitted({"text": "a"}, lambda row: "x" * 8 + row["text"], special=False)


def test_entities_of_windows_have_places_in_the_whole_text(tiny: Tiny) -> None:
    fields = {"tooLong": "windows", "windowOverlap": 16}
    runtime = loaded("token-classification", tiny("token_classifier"), ["text"], **fields)
    (short, result), warnings = run_with_warnings(runtime, {"text": ["a b", LONG]})
    assert warnings == []
    assert all(LONG[one["start"] : one["end"]] == one["word"] for one in result)
    locations = [one["start"] for one in result]
    assert locations == sorted(set(locations))
    assert max(locations) > 250
    plain = loaded("token-classification", tiny("token_classifier"), ["text"])
    (alone, cut), warnings = run_with_warnings(plain, {"text": ["a b", LONG]})
    assert warnings == CUT
    assert alike(short, alone)
    first_half = 2 * (62 - 8)
    assert alike(*([one for one in part if one["start"] < first_half] for part in (result, cut)))


def test_scores_of_windows_are_averaged_by_label(tiny: Tiny) -> None:
    labels = {"candidateLabels": ["cat", "dog"], "topK": 2}
    source = tiny("entailment_model")
    runtime = loaded("zero-shot-classification", source, ["text"], **labels)
    _, warnings = run_with_warnings(runtime, {"text": TEXTS})
    tokenizer = hf.AutoTokenizer.from_pretrained(source)
    pair = len(tokenizer(LONG, "This example is cat.")["input_ids"])
    assert warnings == [(1, "TextCut", pair - 64)]
    fields = {**labels, "tooLong": "windows", "windowOverlap": 0}
    divided = loaded("zero-shot-classification", source, ["text"], **fields)
    result, warnings = run_with_warnings(divided, {"text": TEXTS})
    assert warnings == []
    assert sum(one["score"] for one in result[1]) == pytest.approx(1, abs=1e-5)
    assert alike(result[::2], run(runtime, {"text": TEXTS[::2]}))
    with pytest.raises(TextTooLong):
        run(loaded("zero-shot-classification", source, ["text"], **labels, tooLong="fail"),
            {"text": TEXTS})  # fmt: skip


def test_cut_texts_of_other_pipelines_are_counted(tiny: Tiny) -> None:
    masked = loaded("fill-mask", tiny("masked_model"), ["text"])
    _, warnings = run_with_warnings(masked, {"text": ["a [MASK]", f"a [MASK] {LONG}"]})
    assert warnings == [(1, "TextCut", 2 + 158 - 64)]
    with pytest.raises(TextTooLong):
        run(loaded("fill-mask", tiny("masked_model"), ["text"], tooLong="fail"),
            {"text": [f"a [MASK] {LONG}"]})  # fmt: skip


def test_own_windows_of_the_library_cut_nothing(tiny: Tiny) -> None:
    options = {"stride": 8, "aggregation_strategy": "simple"}
    runtime = loaded("token-classification", tiny("token_classifier"), ["text"], options=options)
    (result,), warnings = run_with_warnings(runtime, {"text": [LONG]})
    assert warnings == []
    assert result[-1]["end"] > 250


def test_texts_of_dual_encoders_are_cut(tiny: Tiny) -> None:
    for name, length in (("clip", 77), ("siglip", 64)):
        special = 2 if name == "clip" else 1
        _, warnings = embedded(tiny(name), ["a", "b" * 100])
        assert warnings == [(1, "TextCut", 100 + special - length)], name


def roberta(folder: Path, **fields: Any) -> str:
    """Write a model whose positions begin behind the padding token, and a tokenizer."""
    tiny_models.characters(pad_token="<unk>", **fields).save_pretrained(folder)
    config = hf.RobertaConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        vocab_size=len(tiny_models.CHARACTERS), max_position_embeddings=34, pad_token_id=1,
    )  # fmt: skip
    hf.RobertaModel(config).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("fields", [{}, {"model_max_length": 500}])
def test_length_is_that_of_the_positions_of_the_model(tmp_path: Path, fields: Any) -> None:
    source = roberta(tmp_path, **fields)
    texts = ["x" * 31, "x" * 32, "x" * 99]
    assert embedded(source, texts)[1] == [(1, "TextCut", 1), (2, "TextCut", 68)]
    with pytest.raises(ModelLoad, match=r"options\.max_length: .* has 32 positions"):
        embedded(source, texts, options={"max_length": 33})


def test_shorter_length_of_the_tokenizer_counts(tmp_path: Path) -> None:
    source = roberta(tmp_path, model_max_length=10)
    assert embedded(source, ["x" * 31])[1] == [(0, "TextCut", 22)]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (hf.BertConfig(max_position_embeddings=8), 8),
        (hf.GPT2Config(n_positions=9), 9),
        (hf.T5Config(n_positions=512), None),
        (hf.XLNetConfig(), None),
        (hf.BloomConfig(), None),
        (hf.LlamaConfig(max_position_embeddings=7), 7),
        (hf.CLIPConfig(), 77),
    ],
)
def test_length_of_a_model_without_one_in_its_tokenizer(config: Any, expected: int | None) -> None:
    from types import SimpleNamespace

    network = SimpleNamespace(config=config, named_modules=lambda: ())
    assert max_tokens(SimpleNamespace(model_max_length=int(1e30)), network) == expected


def test_text_without_a_limit_is_not_cut(tiny: Tiny, tmp_path: Path) -> None:
    tiny_models.characters(pad_token="<pad>").save_pretrained(tmp_path)
    size = {"d_model": 16, "n_layer": 1, "n_head": 2, "d_inner": 16}
    config = hf.XLNetConfig(vocab_size=len(tiny_models.CHARACTERS), **size)
    hf.XLNetModel(config).save_pretrained(tmp_path)
    for policy in ("truncate", "windows", "fail"):
        assert embedded(str(tmp_path), ["x" * 3000], tooLong=policy)[1] == []


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
