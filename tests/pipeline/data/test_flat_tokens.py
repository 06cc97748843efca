"""Tokens in flat arrays: they equal those of the library, and tasks prepare them for a pool."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import transformers as hf
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from batchinference.pipeline import ray_compat
from batchinference.pipeline.execution.block_codec import decode, encode
from batchinference.pipeline.execution.length_sorting import longest_first
from batchinference.pipeline.execution.segment import Segment
from batchinference.pipeline.execution.step_runner import ErrorHandling
from batchinference.pipeline.row_batch import RowBatch, consecutive_ids, merged
from batchinference.pipeline.runtimes import flat_tokens
from batchinference.pipeline.runtimes.flat_tokens import (
    IDS,
    FlatTokenizer,
    FlatTokens,
    TokenizerFile,
    pad,
    preparing_tokenizers,
)
from batchinference.pipeline.steps.tokenization import Preparation
from batchinference.pipeline.steps.transform import split_prepared
from batchinference.pipeline.storage.location import Location
from batchinference.plan.stages import Stage, stages_of, with_preparations
from batchinference.spec.reserved import PREPARED_PREFIX
from batchinference.spec.steps import Step
from support.documents.minimal import Document, model_step
from support.documents.parsed import steps_of
from support.models.replicas import loaded, model_of
from support.models.tiny_transformers import characters
from support.outputs.row_warnings import warnings_of

TEXTS = ["a b", "", "some Words, and more", "\N{GREEK SMALL LETTER ALPHA} x" * 9, "z " * 30]
LIMIT = 12


def with_types(**fields: Any) -> hf.PreTrainedTokenizerFast:
    """Return a tokenizer of words with special tokens, of two types, before and behind a text."""
    words = ["<pad>", "<unk>", "<s>", "</s>", *"abcdefghijklmnopqrstuvwxyz"]
    tokenizer = Tokenizer(models.WordLevel({w: n for n, w in enumerate(words)}, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s>:2 <s>:2 $A:0 </s>:1",
        pair="<s>:2 $A:0 </s>:0 $B:1 </s>:1",
        special_tokens=[("<s>", 2), ("</s>", 3)],
    )
    names = ["input_ids", "token_type_ids", "attention_mask"]
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", model_input_names=names, **fields
    )


def bert(**fields: Any) -> hf.BertTokenizer:
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{x}" for x in letters)]
    return hf.BertTokenizer(vocab={word: n for n, word in enumerate(words)}, **fields)


def unknown_is_special(**fields: Any) -> hf.PreTrainedTokenizerFast:
    """Return a tokenizer of words, whose token for unknown words also begins and ends a text."""
    tokenizer = Tokenizer(models.WordLevel({"<pad>": 0, "<s>": 1, "</s>": 2, "z": 3}, "</s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="</s> <s> $A </s>",
        pair="</s> $A </s> $B </s>",
        special_tokens=[("<s>", 1), ("</s>", 2)],
    )
    return hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", **fields)


TOKENIZERS: dict[str, Callable[..., Any]] = {
    "unknown is special": unknown_is_special,
    "bert": bert,
    "beginning": lambda **fields: characters(pad_token="<pad>", **fields),
    "ends with types": with_types,
    "padded with ones": lambda **fields: bert(pad_token_type_id=1, **fields),
    "without a mask": lambda **fields: bert(model_input_names=["input_ids"], **fields),
}


def arrays_of(tokenizer: Any, tokens: FlatTokens, flat: FlatTokenizer) -> dict[str, np.ndarray]:
    rows, width = np.arange(len(tokens.lengths)), int(tokens.lengths.max())
    return pad(tokenizer, tokens, rows, width, has_mask=flat.has_mask)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("options", [{}, {"add_special_tokens": False}])
@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokens_equal_those_of_the_library(name: str, options: dict[str, Any], side: str) -> None:
    tokenizer = TOKENIZERS[name](padding_side=side, truncation_side=side)
    flat = FlatTokenizer.of(tokenizer, options)
    assert flat is not None
    pairs = TEXTS[::-1]
    for texts in ((TEXTS,), (TEXTS, pairs)):
        tokens = flat.tokens({}, *texts)
        assert_alike(arrays_of(tokenizer, tokens, flat), tokenizer(*texts, padding=True, **options))
    cut = flat.cut(flat.tokens({}, TEXTS), LIMIT)
    assert cut is not None
    library = tokenizer(TEXTS, padding=True, truncation=True, max_length=LIMIT, **options)
    assert_alike(arrays_of(tokenizer, cut, flat), library)


def assert_alike(result: dict[str, np.ndarray], library: Any) -> None:
    expected = {name: np.array(rows) for name, rows in library.items()}
    assert result.keys() == expected.keys()
    for name, array in result.items():
        assert array.dtype == np.int64
        assert np.array_equal(array, expected[name]), name


def test_limit_without_room_for_a_text_is_left_to_the_library() -> None:
    flat = FlatTokenizer(with_types())
    assert flat.cut(flat(TEXTS), 3) is None
    assert flat.cut(flat(TEXTS), 4) is not None


def test_cut_is_left_to_the_library_without_letters_of_the_sample() -> None:
    tokenizer = Tokenizer(models.BPE({"<s>": 0, "\N{CYRILLIC SMALL LETTER BE}": 1}, []))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    flat = FlatTokenizer(hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer))
    assert flat.cut(flat(["\N{CYRILLIC SMALL LETTER BE}" * 9]), 4) is None


@pytest.mark.parametrize(
    ("change", "options"),
    [
        (lambda kind: kind, {"stride": 2}),
        (lambda kind: type("Own", (kind,), {"__call__": lambda *_, **__: {}}), {}),
    ],
)
def test_other_tokenizers_are_left_to_the_library(
    change: Callable[[type], type], options: dict[str, Any]
) -> None:
    tokenizer = bert()
    tokenizer.__class__ = change(type(tokenizer))
    assert FlatTokenizer.of(tokenizer, options) is None


def test_columns_may_be_slices_in_several_parts() -> None:
    tokens = FlatTokenizer(with_types())(TEXTS)
    lists = {n: pa.concat_arrays([column[:1], column]) for n, column in tokens.to_columns().items()}
    for ranges in ([slice(1, 3), slice(3, None)], [slice(1, None)]):
        parts = {n: pa.chunked_array([x[part] for part in ranges]) for n, x in lists.items()}
        columns = FlatTokens.from_columns(parts)
        assert columns.to_columns() == tokens.to_columns()
        given = parts["input_ids"].chunk(0).values
        assert np.shares_memory(columns.features["input_ids"], given) == (len(ranges) == 1)


@pytest.fixture
def no_tokenizing(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function after whose call no text can be converted to tokens."""

    def forbid() -> None:
        monkeypatch.setattr(FlatTokenizer, "__call__", None)

    return forbid


CASES: dict[str, tuple[str, str, tuple[str, ...], Document]] = {
    "embeddings": ("transformers", "bert", ("text",), {"task": "feature-extraction"}),
    "a budget": (
        *("transformers", "bert", ("text",)),
        {"task": "feature-extraction", "maxTokensPerBatch": 64, "tooLong": "truncateLeft"},
    ),
    "pairs": ("transformers", "bert", ("text", "text_pair"), {"task": "text-classification"}),
    "options": (
        *("transformers", "bert", ("text",)),
        {
            "task": "text-classification",
            "options": {"max_length": 20, "add_special_tokens": False, "padding": "max_length"},
        },
    ),
    "siglip": ("transformers", "siglip", ("text",), {"task": "feature-extraction"}),
    "sentences": ("sentenceTransformers", "minilm", ("text",), {}),
    "a prompt": ("sentenceTransformers", "minilm", ("text",), {"prompt": "find: "}),
    "a named prompt": ("sentenceTransformers", "prompted", ("text",), {"promptName": "query"}),
    "a default prompt": ("sentenceTransformers", "prompted", ("text",), {"normalize": True}),
}
LONG = ["a b", " ".join("abcdefgh" * 40), "c"]


@pytest.fixture(scope="session")
def prompted(minilm: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the folder of MiniLM with prompts, the second of which is the default."""
    from sentence_transformers import SentenceTransformer

    folder = tmp_path_factory.mktemp("prompted")
    prompts = {"query": "search ", "passage": "text: "}
    model = SentenceTransformer(
        minilm, device="cpu", prompts=prompts, default_prompt_name="passage"
    )
    model.save(str(folder))
    return str(folder)


@pytest.fixture
def source(request: pytest.FixtureRequest) -> Callable[[str], str]:
    def folder(name: str) -> str:
        if name in ("bert", "minilm", "prompted"):
            return str(request.getfixturevalue(name))
        return str(request.getfixturevalue("tiny")(name))

    return folder


@pytest.mark.parametrize("case", CASES)
def test_replica_uses_the_tokens_of_tasks(
    case: str, source: Callable[[str], str], no_tokenizing: Callable[[], None]
) -> None:
    runtime, name, inputs, fields = CASES[case]
    settings = {"source": source(name), **fields}
    model, run = model_of(runtime, inputs, **settings), loaded(runtime, inputs, **settings)
    texts = LONG if len(inputs) == 1 else LONG[::2]  # only the library cuts pairs
    columns = {name: np.array(texts, object) for name in inputs}
    expected = run(columns)
    repeated = [texts] * len(inputs)
    of_file, of_library = (flat.prepare(*repeated) for flat in preparing_tokenizers(model))
    assert of_file == of_library
    no_tokenizing()
    value = run(columns, {name: pa.chunked_array([values]) for name, values in of_file.items()})
    assert (
        value.equals(expected) if isinstance(value, pa.Array) else np.array_equal(value, expected)
    )


def test_other_tokens_are_not_used(bert: str) -> None:
    flat = FlatTokenizer(hf.AutoTokenizer.from_pretrained(bert))
    expected = flat(["a b"])
    others = FlatTokenizer(hf.AutoTokenizer.from_pretrained(bert), prefix="x ")
    absent = {name: pa.nulls(1, column.type) for name, column in flat.prepare(["a b"]).items()}
    for prepared in (others.prepare(["a b"]), absent):
        columns = {name: pa.chunked_array([column]) for name, column in prepared.items()}
        tokens = flat.tokens(columns, ["a b"])
        assert tokens.features[IDS].tolist() == expected.features[IDS].tolist()


@pytest.mark.parametrize("bucket", ["text", "common"])
def test_options_of_the_library_for_its_tokenizer_are_respected(
    bucket: str, minilm: str, tmp_path: Path
) -> None:
    from sentence_transformers import SentenceTransformer

    folder = shutil.copytree(minilm, tmp_path / "model")
    settings = folder / "sentence_bert_config.json"
    known = json.loads(settings.read_text())
    settings.write_text(json.dumps({**known, "processing_kwargs": {bucket: {"max_length": 6}}}))
    texts = ["a", "a b c d e f g h i"]
    expected = SentenceTransformer(str(folder), device="cpu").encode(texts)
    result = loaded("sentenceTransformers", ("text",), source=str(folder))(
        {"text": np.array(texts, object)}
    )
    assert np.abs(result - expected).max() < 1e-5


@pytest.mark.parametrize("fields", [{"source": "/nowhere"}, {"options": {"stride": 1}}])
def test_replica_tokenizes_if_tasks_cannot(bert: str, fields: Document) -> None:
    settings = {"task": "feature-extraction", "source": bert, **fields}
    assert not list(preparing_tokenizers(model_of("transformers", ("text",), **settings)))


@pytest.fixture
def flags(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return the flags of the Ray cluster, of which there are none."""
    texts: set[str] = set()
    monkeypatch.setattr(ray_compat, "set_flag", texts.add)
    monkeypatch.setattr(ray_compat, "has_flag", texts.__contains__)
    return texts


@pytest.mark.parametrize(
    ("change", "expected"),
    [({"split_special_tokens": True}, TokenizerFile), ({"do_lower_case": False}, hf.BertTokenizer)],
)
def test_tasks_use_the_library_if_it_changes_the_tokenizer_of_the_file(
    change: Document, expected: type, bert: str, tmp_path: Path, flags: set[str]
) -> None:
    folder = shutil.copytree(bert, tmp_path / "model")
    settings = folder / "tokenizer_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), **change}))
    preparation, batch = preparation_of(str(folder)), pa.table({"text": ["A b", "C"]})
    replica = FlatTokenizer(hf.AutoTokenizer.from_pretrained(folder))
    for kind in (TokenizerFile, expected):
        _, prepared = split_prepared(preparation(batch))
        assert type(preparation._tokenizer.tokenizer) is kind  # type: ignore[union-attr]
        replica.tokens(prepared, ["A b", "C"])
    assert len(flags) == (expected is not TokenizerFile)


def test_tasks_prepare_nothing_that_replicas_cannot_use(bert: str, flags: set[str]) -> None:
    preparation, batch = preparation_of(bert), pa.table({"text": ["A b"]})
    for _ in preparing_tokenizers(step_of(bert).model):  # type: ignore[arg-type]
        flat_tokens.refuse(split_prepared(preparation(batch))[1])
    assert preparation(batch) is batch


def test_rows_do_not_fail_if_the_head_of_ray_does_not_answer(
    bert: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unanswered(*_: str) -> None:
        raise RuntimeError

    monkeypatch.setattr(ray_compat, "set_flag", unanswered)
    monkeypatch.setattr(ray_compat, "has_flag", unanswered)
    _, prepared = split_prepared(preparation_of(bert)(pa.table({"text": ["A b"]})))
    assert prepared
    flat_tokens.refuse(prepared)


def step_of(source: str, **fields: Any) -> Step:
    model = {**model_step()["model"], "source": source, **fields}
    (step,) = steps_of({**model_step(), "model": model, "batchSize": 4, "replicas": {}})
    return step


def preparation_of(source: str) -> Preparation:
    model = step_of(source).model
    assert model is not None
    return Preparation("embed", model)


def test_only_texts_of_computed_rows_have_tokens(bert: str) -> None:
    preparation = preparation_of(bert)
    batch = pa.table({"text": ["a", None, "b c", "  "], "n": [1, 2, 3, 4]})
    table, prepared = split_prepared(preparation(batch))
    assert table.equals(batch)
    assert [column.is_valid().to_pylist() for column in prepared.values()] == [[True, False] * 2]
    for values in ([1, 2], [None, " "], []):
        numbers = pa.table({"text": values})
        assert preparation(numbers) is numbers


def test_tokens_are_lengths_of_texts() -> None:
    lists = pa.array([[1], [1, 2, 3], None, [1, 2]], pa.list_(pa.int32()))
    table = pa.table({"text": ["aaaaaa", "b", "c", "d"], PREPARED_PREFIX + "x": lists})
    batch = RowBatch.read(table, consecutive_ids(0, 0, 4))
    assert longest_first(batch, ("text",)).table["text"].to_pylist() == ["b", "d", "aaaaaa", "c"]


def run_stages(stages: list[Stage], batch: RowBatch, *, failing: tuple[str, ...] = ()) -> RowBatch:
    """Return the rows after stages that run in separate processes."""
    errors = ErrorHandling(tolerant=True, input=Location("/in"), values=True, failing=failing)
    for stage in stages:
        segment = Segment.of([stage], errors)
        results: Iterator[RowBatch] = segment.of_block(decode(encode(batch)), Event())
        batch = merged(results)
    return batch


POLICIES: dict[str, tuple[Document, tuple[str, ...]]] = {
    "cut": ({}, ()),
    "failing": ({"tooLong": "fail", "nullInput": "fail"}, ()),
    "failing warnings": ({}, ("TextCut",)),
    "windows": ({"tooLong": "windows"}, ()),
}


@pytest.mark.parametrize("policy", POLICIES)
def test_rows_of_a_pool_are_those_of_one_process(policy: str, bert: str) -> None:
    fields, failing = POLICIES[policy]
    table = pa.table({"text": [*LONG, None, "", "a b c"] * 3, "n": range(18)})
    batch = RowBatch.read(table, consecutive_ids(0, 0, 18))
    pool = stages_of([step_of(bert, **fields)])
    prepared = list(with_preparations(pool))
    assert [stage.prepares for stage in prepared] == [True, False][policy == "windows" :]
    expected = run_stages(pool, batch, failing=failing)
    value = run_stages(prepared, batch, failing=failing)
    assert value.table.column_names == expected.table.column_names == ["text", "n", "embedding"]
    assert value.ids.tolist() == expected.ids.tolist()
    vectors = [np.stack(one.table["embedding"].to_numpy().tolist()[0]) for one in (value, expected)]
    assert np.abs(vectors[0] - vectors[1]).max() < 1e-5
    assert warnings_of(value) == warnings_of(expected)
    assert sorted_errors(value) == sorted_errors(expected)


def test_time_of_a_preparation_is_reported_separately(bert: str) -> None:
    # stages that no other test has loaded
    stages = list(with_preparations(stages_of([step_of(bert, pooling="cls")])))
    batch = RowBatch.read(pa.table({"text": ["a"]}), consecutive_ids(0, 0, 1))
    notes = run_stages(stages, batch).notes
    measured = [step for step, note in notes if "rows" in note]
    assert measured == ["embed (preparation)", "embed"]


def sorted_errors(batch: RowBatch) -> list[dict[str, Any]]:
    names = ["id", "step", "error", "values"]
    return sorted(batch.errors.select(names).to_pylist(), key=lambda error: error["id"])
