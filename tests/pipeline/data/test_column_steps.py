"""Steps that select, drop, add and explode columns, or divide texts into chunks."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batchinference.pipeline.arrow import to_batch, to_column
from batchinference.pipeline.errors import JobFailure, ModelLoad
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.steps import check_step, load_step
from batchinference.pipeline.steps import explode as explode_step
from batchinference.pipeline.steps.chunk import ChunkText
from batchinference.pipeline.steps.transform import TransformResult
from batchinference.pipeline.text_chunks import Span, Splitter, Units, characters, tokens_of, words
from batchinference.spec.steps import Explode, Step
from plugins.messages import Messages
from support.models.tiny_transformers import characters as character_tokenizer
from support.tiers import examples

TABLE = pa.table({"a": [1, 2], "b": ["x", "y"], "path": ["s3://in/cats/1.png", "/data/dogs/2.png"]})


def run(table: pa.Table = TABLE, **step: object) -> pa.Table:
    loaded = load_step(Step.model_validate({"name": "step", **step}), Device())
    return loaded(table)  # type: ignore[operator]


def test_columns_are_selected_in_order_or_dropped() -> None:
    assert run(selectColumns=["b", "a"]).equals(TABLE.select(["b", "a"]))
    assert run(dropColumns=["a", "path"]).equals(TABLE.select(["b"]))


NUMBERS = {"n": [1, -2, None], "f": [1.9, -1.9, None], "s": [" 7 ", "x", None]}
COMPUTED = {
    "n * 2 + 1": [3, -3, None],
    "'n=' + str(n)": ["n=1", "n=-2", None],
    "strip(s) + s": ["7 7 ", "xx", None],
    "len(s)": [3, 1, None],
    "upper(s + 'ß') + lower('İ')": [" 7 SSi\u0307", "XSSi\u0307", None],
    "int(f)": [1, -1, None],
    "float(n) / 4": [0.25, -0.5, None],
    "int(strip(s)) if contains(s, '7') else -1": [7, -1, -1],
    "'low' if n < 0 else 'high' if n > 0 else 'none'": ["high", "low", "none"],
    "s if n is None else None": [None, None, None],
    "n if n > 0 else f": [1.0, -1.9, None],
    "n > 0": [True, False, None],
    "s": [" 7 ", "x", None],
    "'web'": ["web"] * 3,
    "1 < 2": [True] * 3,
    "None": [None] * 3,
}


@pytest.mark.parametrize("expression", COMPUTED)
def test_column_is_computed(expression: str) -> None:
    table = pa.table(NUMBERS)
    if "int(strip" in expression:
        table = table.slice(0, 1)
    computed = run(table, addColumns={"new": expression})
    assert computed.column("new").to_pylist() == COMPUTED[expression][: table.num_rows]
    assert computed.drop_columns(["new"]).equals(table)


def test_columns_are_computed_from_those_before_the_step() -> None:
    computed = run(addColumns={"a": "a + 1", "c": "a * 10", "d": "b + path"})
    assert computed.column_names == ["a", "b", "path", "c", "d"]
    assert computed.select(["a", "c"]).to_pydict() == {"a": [2, 3], "c": [10, 20]}


def test_type_that_an_expression_cannot_use_fails_the_rows() -> None:
    """Other rows may have other types, for example those of other JSON documents."""
    for expression, reason in {
        "b + 1": "step 'step': column 'c' cannot be computed: b + 1: ",
        "a if a > 1 else b": "int64 and string have no common type",
        "int(time)": "time32[s] is not a number",
    }.items():
        result = load_step(
            Step.model_validate({"name": "step", "addColumns": {"c": expression}}), Device()
        )(TABLE.append_column("time", pa.array([0, 1], pa.time32("s"))))
        assert isinstance(result, TransformResult)
        assert (result.table.num_rows, len(result.parents), set(result.failed)) == (0, 0, {0, 1})
        assert all(reason in str(error) for error in result.failed.values())


def test_value_that_cannot_be_converted_fails_its_row() -> None:
    for expression in ("int(b)", "float(b)"):
        with pytest.raises(pa.ArrowInvalid, match="Failed to parse string"):
            run(addColumns={"c": expression})
    for value, expression in (
        *((1e300, "int(a)"), ("0xFF", "int(a)"), (-(2**63), "abs(a)")),
        *((2**53 + 1, "a if a > 1 else 0.5"), (2**53 + 1, "0.5 if a < 1 else a")),
    ):
        with pytest.raises(pa.ArrowInvalid, match=r"not in range|truncated|out of|overflow|hexa"):
            run(pa.table({"a": [value]}), addColumns={"c": expression})
    with pytest.raises(pa.ArrowInvalid, match="string: 'six' as a scalar"):
        run(pa.table({"a": ["six"]}), addColumns={"c": "int(a)"})
    unused = run(pa.table({"a": [2**53 + 1]}), addColumns={"c": "a if a < 1 else 0.5"})
    assert unused.column("c").to_pylist() == [0.5]


def test_missing_column_fails_the_job(messages: Messages) -> None:
    steps: list[dict[str, object]] = [{"selectColumns": ["a", "c"]}, {"dropColumns": ["c"]}]
    for step in steps:
        with messages.raises(JobFailure):
            run(**step)
    label = {"column": "class", "index": 4}
    with messages.raises(JobFailure):
        run(TABLE.select(["a"]), labelFromPath=label)
    with pytest.raises(ValueError, match=r"path '/data/dogs/2.png' has no part 4"):
        run(labelFromPath=label)
    with pytest.raises(ValueError, match="path 'None' has no part 4"):
        run(pa.table({"path": [None]}), labelFromPath=label)


def test_label_from_path_takes_a_part_of_the_path() -> None:
    parts = {-1: ["1.png", "2.png"], -2: ["cats", "dogs"], 2: ["in", "dogs"]}
    for index, expected in parts.items():
        labelled = run(labelFromPath={"column": "class", "index": index})
        assert labelled.column("class").to_pylist() == expected, index
        assert labelled.drop_columns(["class"]).equals(TABLE), index
    replaced = run(labelFromPath={"column": "b", "index": -2})
    assert replaced.column_names == ["a", "b", "path"]
    assert replaced.column("b").to_pylist() == ["cats", "dogs"]


LISTS = [["a", "b"], [], None, ["c"]]


def explode(table: pa.Table, *max_bytes: int) -> TransformResult:
    return explode_step.ExplodeList("each", Explode(column="list"), *max_bytes)(table)


def exploded_parents(table: pa.Table, max_bytes: int) -> list[int]:
    """Return the row that each exploded row was made from, after as many calls as are needed."""
    done, parents = 0, list[int]()
    while done < table.num_rows:
        changed = explode(table.slice(done), max_bytes)
        parents += (changed.parents + done).tolist()
        done += changed.rows or table.num_rows - done
    return parents


def test_explode_repeats_the_other_columns() -> None:
    strings, offsets = pa.array(["a", "b", "c"]), pa.array([0, 2, 3], pa.int32())
    masked = pa.ListArray.from_arrays(offsets, strings, mask=pa.array([True, False]))
    for lists, numbers, elements in (
        (pa.array(LISTS, pa.list_(pa.string())), [0, 0, 3], ["a", "b", "c"]),
        (pa.array(LISTS, pa.large_list(pa.string())), [0, 0, 3], ["a", "b", "c"]),
        (pa.array(LISTS, pa.list_view(pa.string())), [0, 0, 3], ["a", "b", "c"]),
        (pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2)), [0, 0, 1, 1], [1, 2, 3, 4]),
        (pa.array(LISTS).slice(2), [1], ["c"]),
        (masked, [1], ["c"]),  # elements of a null list are ignored
        (pa.nulls(2), [], []),
    ):
        changed = explode(pa.table({"n": range(len(lists)), "list": lists}))
        assert (changed.table.num_rows, changed.parents.tolist()) == (len(numbers), numbers), lists
        if numbers:
            assert changed.table.to_pydict() == {"n": numbers, "list": elements}, lists
    table = pa.table({"n": [1, 2, 3, 4], "list": LISTS}).slice(2)
    assert explode(table).table.to_pydict() == {"n": [4], "list": ["c"]}


@pytest.mark.parametrize("lengths", [(2, 2), (1, 3)], ids=["one shape", "several shapes"])
def test_tensors_are_exploded_along_the_first_axis(lengths: tuple[int, int]) -> None:
    frames = np.empty(2, dtype=object)
    for row, length in enumerate(lengths):
        frames[row] = np.full((length, 4, 4, 3), row, dtype=np.uint8)
    changed = explode(pa.table({"list": to_column(frames)}))
    images = to_batch(changed.table)["list"]
    assert images.shape == (4, 4, 4, 3)
    assert images[:, 0, 0, 0].tolist() == [0] * lengths[0] + [1] * lengths[1]
    assert changed.parents.tolist() == [0] * lengths[0] + [1] * lengths[1]


def test_large_results_are_those_of_the_first_rows() -> None:
    table = pa.table({"list": [[1, 2], [3], [4, 5, 6]], "text": ["x" * 1000] * 3})
    assert exploded_parents(table, 5000) == [0, 0, 1, 2, 2, 2]
    assert explode(table, 5000).rows == 2


def test_large_rows_among_small_ones_are_exploded_one_by_one() -> None:
    lists, texts = [[1] * 20, []] * 2 + [[]] * 60, ["x" * 1000, "y"] * 2 + ["y"] * 60
    table = pa.table({"list": lists, "text": texts})
    assert explode(table, 5000).table.nbytes < 25_000
    assert exploded_parents(table, 5000) == [0] * 20 + [2] * 20


def test_one_large_row_before_many_small_ones_is_found_in_few_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = pa.table({"list": [[1] * 5] * 3000, "text": ["x" * 12_000] + ["y"] * 2999})
    measured = Mock(side_effect=explode_step.bytes_of_copy)
    monkeypatch.setattr(explode_step, "bytes_of_copy", measured)
    assert explode(table, 50_000).rows == 1
    assert measured.call_count < 20


def test_dictionaries_and_elements_are_not_counted_for_each_copy() -> None:
    words = pa.array(["x" * 1000, "y" * 1000] * 10).dictionary_encode()
    assert explode(pa.table({"list": [[1] * 100] * 20, "word": words}), 50_000).rows is None


def test_rows_without_lists_fail() -> None:
    failed = explode(pa.table({"list": [1, 2]})).failed
    expected = "step 'each': column 'list' holds int64, and explode needs lists. Name a column "
    expected += "of lists"
    assert {row: str(error) for row, error in failed.items()} == {0: expected, 1: expected}


def test_block_without_elements_has_their_type_if_it_is_known() -> None:
    for lists, kind in (
        (pa.array([[], None], pa.list_(pa.int8())), pa.int8()),
        (pa.array([[], None], pa.list_(pa.null())), pa.null()),
        (to_column(np.zeros((2, 0, 3))), pa.null()),
    ):
        changed = explode(pa.table({"list": lists}))
        assert (changed.table.num_rows, changed.table.schema.types) == (0, [kind])


TEXT = "One two. Three four. Five"


def step(**fields: Any) -> Step:
    return Step.model_validate({"name": "cut", "chunk": {"column": "text", "size": 13, **fields}})


def chunked(table: pa.Table, *max_bytes: int, **fields: Any) -> TransformResult:
    settings = step(**fields).chunk
    assert settings is not None
    changed = ChunkText("cut", settings, *max_bytes)(table)
    assert isinstance(changed, TransformResult)
    return changed


def test_other_columns_are_repeated() -> None:
    chunks = chunked(pa.table({"n": [1, 2], "text": [TEXT, "Six"], "m": ["a", "b"]}))
    assert chunks.parents.tolist() == [0, 0, 0, 1]
    assert chunks.table.to_pydict() == {
        "n": [1, 1, 1, 2],
        "text": ["One two. ", "Three four. ", "Five", "Six"],
        "m": ["a", "a", "a", "b"],
        "chunk_index": [0, 1, 2, 0],
        "chunk_start": [0, 9, 21, 0],
        "chunk_end": [9, 21, 25, 3],
    }


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())]
)
def test_null_and_empty_texts_stay_one_row(kind: pa.DataType) -> None:
    chunks = chunked(pa.table({"text": pa.array([None, "", TEXT], pa.string()).cast(kind)}))
    assert chunks.parents.tolist() == [0, 1, 2, 2, 2]
    first, second, *_ = chunks.table.to_pylist()
    assert set(first.values()) == {None}
    assert list(second.values()) == ["", 0, 0, 0]
    nulls = chunked(pa.table({"text": pa.nulls(2)}))
    assert nulls.table.num_rows == 2


def test_tokens_are_those_of_the_model(tiny: Callable[[str], str]) -> None:
    fields = {"unit": "tokens", "tokenizer": tiny("text_model"), "size": 12, "overlap": 6}
    chunks = chunked(pa.table({"text": ["One two three four"]}), **fields)
    assert chunks.table["text"].to_pylist() == ["One two ", "two three ", "three four"]


def test_words_are_counted() -> None:
    chunks = chunked(pa.table({"text": [TEXT]}), unit="words", size=2)
    assert chunks.table["text"].to_pylist() == ["One two. ", "Three four. ", "Five"]


def test_values_that_are_no_texts_fail_their_rows() -> None:
    chunks = chunked(pa.table({"text": [1, 2]}))
    assert sorted(chunks.failed) == [0, 1]


def test_result_covers_the_first_rows_if_it_is_large() -> None:
    chunks = chunked(pa.table({"text": ["x" * 60] * 4}), 100)
    assert chunks.rows == 2
    assert set(chunks.parents.tolist()) == {0, 1}


def test_large_row_among_small_ones_ends_a_result() -> None:
    table = pa.table({"text": [TEXT] * 20, "other": ["z" * 3000] + ["z"] * 19})
    assert chunked(table, 2000).rows == 1


def test_existing_column_is_not_replaced(messages: Messages) -> None:
    with messages.raises(JobFailure):
        chunked(pa.table({"text": ["a"], "chunk_start": [1]}))


def test_tokenizer_that_does_not_exist_is_refused() -> None:
    missing = step(unit="tokens", tokenizer="./nowhere/model")
    for check in (check_step, lambda one: load_step(one, Device())):
        with pytest.raises(ModelLoad, match=r"'\./nowhere/model' not found"):
            check(missing)


LETTERS = st.sampled_from([*"ab. \n!?\u3002\u00e9", "\U0001f389", "e\u0301", "\r\n", "\n\n"])
TEXTS = st.lists(LETTERS, max_size=120).map("".join)


@cache
def tokens() -> Units:
    """Return the tokens of a tokenizer of bytes: several for some characters."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    bytes_ = ByteLevelBPETokenizer()
    bytes_.train_from_iterator(["a b ab. ab! ba"], vocab_size=280, show_progress=False)
    return tokens_of(PreTrainedTokenizerFast(tokenizer_object=bytes_._tokenizer))


UNITS = {"characters": lambda: characters, "words": lambda: words, "tokens": tokens}


def texts_of(text: str, spans: list[Span]) -> list[str]:
    return [text[span.start : span.end] for span in spans]


@pytest.mark.parametrize("unit", UNITS)
@settings(max_examples=examples(150), deadline=None)
@example(text="", size=2, overlap=1)
@example(text="\U0001f389" * 9, size=2, overlap=1)
@example(text=" " * 50, size=4, overlap=2)
@given(text=TEXTS, size=st.integers(2, 30), overlap=st.integers(0, 15))
def test_spans_cover_the_text(unit: str, text: str, size: int, overlap: int) -> None:
    units = UNITS[unit]()
    spans = list(Splitter(units, size, min(overlap, size // 2))(text))
    assert (spans[0].start, spans[-1].end) == (0, len(text))
    for span, following in pairwise(spans):
        assert span.start < following.start <= span.end < following.end
        assert overlap or following.start == span.end
    for span, part in zip(spans, texts_of(text, spans), strict=True):
        result = units(part)
        assert span.units == len(result)
        # a single character may have more tokens
        assert len(result) <= size or len(np.unique(result)) == 1


def test_spans_end_with_paragraphs_sentences_lines_and_words() -> None:
    for text, expected in (
        ("One two. Three four. Five", ["One two. ", "Three four. ", "Five"]),
        ("One two.\n\nThree. Four five", ["One two.\n\n", "Three. Four ", "five"]),
        ("one two\nthree four five", ["one two\n", "three four ", "five"]),
        ("one two three four five", ["one two ", "three four ", "five"]),
        ("onetwothreefourfive", ["onetwothreefo", "urfive"]),
        ("\u4e00" * 8 + "\u3002" + "\u4e00" * 5, ["\u4e00" * 8 + "\u3002", "\u4e00" * 5]),
    ):  # fmt: skip
        assert texts_of(text, list(Splitter(characters, 13)(text))) == expected


def test_overlap_begins_with_a_word() -> None:
    text = "one two three four five six"
    spans = list(Splitter(characters, 14, 6)(text))
    assert texts_of(text, spans) == ["one two three ", "three four ", "four five six"]


def test_units_are_counted() -> None:
    text = "one two three four five"
    assert [span.units for span in Splitter(words, 2)(text)] == [2, 2, 1]
    tokenizer = tokens_of(character_tokenizer())
    assert [span.units for span in Splitter(tokenizer, 12)(text)] == [8, 11, 4]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("text", ["x", " ", "a b. ", "\u4e00", "\n\n"])
@pytest.mark.parametrize("unit", UNITS)
def test_long_texts_take_linear_time(text: str, unit: str) -> None:
    long = text * (60_000 // len(text))
    spans = Splitter(UNITS[unit](), 500, 100)(long)
    assert sum(1 for _ in spans) <= 3 * len(long.encode()) / 400 + 1
