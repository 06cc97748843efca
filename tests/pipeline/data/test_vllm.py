"""Models in vLLM, with a fake engine: prompts, failed rows, images, adapters and failures."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from aiohttp import web
from huggingface_hub import constants
from huggingface_hub.errors import LocalEntryNotFoundError
from PIL import Image

from batchinference.pipeline.arrow import to_batch, to_table
from batchinference.pipeline.declared_types import arrow_type
from batchinference.pipeline.errors import DeviceFailed, EngineDied, JobFailure, ModelLoad, describe
from batchinference.pipeline.execution import step_runner
from batchinference.pipeline.execution.block_codec import decode, encode
from batchinference.pipeline.execution.concurrent_batches import ConcurrentBatches
from batchinference.pipeline.execution.dataset import BlockCalls
from batchinference.pipeline.execution.segment import Segment, unload_stages
from batchinference.pipeline.execution.step_runner import SegmentRunner
from batchinference.pipeline.row_batch import RowBatch, merged
from batchinference.pipeline.row_warnings import collect_warnings
from batchinference.pipeline.rows_in_flight import IN_FLIGHT
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.runtimes.model_files import engine_source, files_without_weights
from batchinference.pipeline.runtimes.vllm import check_model, engine, engine_arguments
from batchinference.pipeline.runtimes.vllm.adapters import ADAPTER_FILE
from batchinference.pipeline.runtimes.vllm.chat_template import apply_template
from batchinference.pipeline.runtimes.vllm.engine import engine_of
from batchinference.pipeline.runtimes.vllm.engine_arguments import arguments_of
from batchinference.pipeline.runtimes.vllm.engine_log import EngineLog
from batchinference.pipeline.runtimes.vllm.images import ImageInliner
from batchinference.pipeline.steps import load_step
from batchinference.pipeline.steps.transform import as_result
from batchinference.pipeline.storage.retry import RetryPolicy
from batchinference.plan import Stage
from batchinference.plan.stages import stages_of
from batchinference.spec.models import VllmModel
from batchinference.spec.steps import Step
from plugins.messages import Messages
from support.documents.parsed import steps_of
from support.documents.refusals import short
from support.documents.vllm_models import vllm, vllm_step
from support.inputs.media_files import data_uri, saved
from support.jobs.command import wait_until
from support.models import tiny_transformers
from support.models.hub_cache import add_to_hub_cache
from support.outputs.batches import good, outcomes
from support.outputs.row_warnings import plain, tokens_in
from support.outputs.stages import TOLERANT
from support.servers.openai import save_language_model
from support.servers.scripted_http import serving

FAKES = Path(__file__).parents[2] / "support" / "models" / "fake_vllm"
TEMPLATE = (
    "{% if 'odd' in messages[0].content %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{{ messages[0].content }}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = tmp_path_factory.mktemp("model")
    save_language_model(made)
    return str(made)


@pytest.fixture(autouse=True)
def fake_vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(FAKES))
    yield
    engine._ENGINES.clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]


def model(**fields: Any) -> VllmModel:
    return VllmModel.model_validate(vllm(**fields))


def write_adapters(directory: Path, *names: str) -> None:
    for name in names:
        (directory / name).mkdir(parents=True, exist_ok=True)
        (directory / name / ADAPTER_FILE).write_text("{}")


def test_engine_is_shared_and_ends_with_its_last_runtime(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import vllm as fake

    ended: list[str] = []
    monkeypatch.setattr(fake.AsyncLLMEngine, "shutdown", lambda _: ended.append("ended"))
    runtimes = [engine_of(model(source=folder), Device()) for _ in range(2)]
    assert runtimes[0] is runtimes[1]
    runtimes.pop()
    assert ended == []
    runtimes.pop()
    assert ended == ["ended"]


class Asked:
    """The result of a model for the rows of one batch."""

    def __init__(self, spec: VllmModel, **columns: Any) -> None:
        step = Step.model_validate({"name": "ask", "model": spec, "resources": {"gpu": 1}})
        transform = load_step(step, Device())
        with collect_warnings() as warnings:
            result = as_result(transform(to_table(columns)))
        self.table, self.failed = result.table, result.failed
        self.warnings, self.tokens = plain(warnings), tokens_in(warnings)
        answers = self.table["answer"].to_pylist() if "answer" in self.table.column_names else []
        self._by_row = dict(zip(result.parents.tolist(), answers, strict=False))

    @property
    def answers(self) -> list[Any]:
        """The answer of each row, or its error."""
        rows = sorted({*self._by_row, *self.failed})
        return [self._by_row.get(row) or self._error(row) for row in rows]

    def _error(self, row: int) -> str | None:
        return describe(self.failed[row]) if row in self.failed else None


def asked(spec: VllmModel, **columns: Any) -> list[Any]:
    return Asked(spec, **columns).answers


def test_prompt_is_a_chat_or_a_text(folder: str, messages: Messages) -> None:
    chat = model(source=folder, system="Hm.", prompt="Say {question}!")
    rendered = "system: Hm.\nuser: Say b!\nassistant: "
    assert asked(chat, text=["a", "b"])[1] == rendered[::-1]
    text = model(source=folder, prompt="Q: {question}", chat=False)
    assert asked(text, text=["a"]) == ["a :Q"]
    (empty,) = asked(model(source=folder, emptyInput="compute", chat=False), text=[""])
    messages.check(empty)


def test_only_a_prompt_without_template_gets_special_tokens(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    def render(self: Any, prompts: list[Any], options: Any) -> list[Any]:
        given.append(options)
        return [{"prompt_token_ids": []} for _ in prompts]

    monkeypatch.setattr("vllm.Renderer.render_cmpl", render)
    for chat in (True, False):
        asked(model(source=folder, chat=chat), text=["a"])
    assert given == [{"add_special_tokens": False}, {"add_special_tokens": True}]


def test_row_that_takes_too_long_is_ended(
    folder: str, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    monkeypatch.setattr(engine, "seconds_of", lambda _: 0.2)
    spec = model(source=folder, chat=False, rowTimeout="1m")
    done = Asked(spec, text=["ab", "hold", "cd"])
    assert done.answers[::2] == ["ba", "dc"]
    messages.check(done.answers[1])
    assert done.tokens["outputTokens"] == {0: 2, 1: 2, 2: 2}


def test_several_texts_are_a_list_in_order(folder: str) -> None:
    spec = model(source=folder, chat=False, sampling={"n": 3})
    assert asked(spec, text=["ab"]) == [["ba", "ba 1", "ba 2"]]


def test_details_have_the_type_that_the_plan_knows(folder: str) -> None:
    for sampling in ({}, {"n": 2}, {"logprobs": 1}, {"n": 2, "logprobs": 1}):
        fields = {"sampling": sampling, "details": "about"}
        spec = model(source=folder, chat=False, **fields)
        done = Asked(spec, text=["ab", None]).table
        for name, kind in {"answer": spec.output_type, **spec.extra_outputs}.items():
            assert done.schema.field(name).type == arrow_type(kind)


def test_tokens_and_cut_texts_are_reported(folder: str) -> None:
    asking = {"source": folder, "chat": False, "sampling": {"max_tokens": 3, "n": 2}}
    result = Asked(model(**asking), text=["abcd", "ab", None])
    assert result.tokens == {
        "inputTokens": {0: 4, 1: 2},
        "cachedTokens": {0: 2, 1: 1},
        "outputTokens": {0: 8, 1: 6},
    }
    assert result.warnings == [(0, "AnswerCut", 0), (2, "NullInput", 0)]
    embedded = Asked(model(source=folder, task="embed"), text=["abcd", None, "ab"])
    assert embedded.tokens["inputTokens"] == {0: 4, 2: 2}


def test_details_of_a_text(folder: str) -> None:
    spec = model(source=folder, chat=False, sampling={"logprobs": 1}, details="about")
    about = Asked(spec, text=["ab", None]).table["about"].to_pylist()
    assert about[1] is None
    top = {"token": "!", "logprob": -0.25}
    tokens = [{"token": token, "logprob": -1.5, "top_logprobs": [top]} for token in "ba"]
    assert about[0] == {
        "prompt_tokens": 2,
        "cached_tokens": 1,
        "completion_tokens": 2,
        "finish_reason": "stop",
        "logprobs": tokens,
    }


def test_schema_constrains_the_engine_and_types_its_answers(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[str, Any]] = []
    generate = importlib.import_module("vllm").AsyncLLMEngine._generated

    async def generated(self: Any, text: str, prompt: Any, params: Any, adapter: Any) -> Any:
        if params.max_tokens != 1:  # of the check of the schema
            given.append((text, params.structured_outputs.json))
        return await generate(self, text, prompt, params, adapter)

    monkeypatch.setattr("vllm.AsyncLLMEngine._generated", generated)
    number = {"type": "integer", "maximum": 50}
    fields = {"chat": False, "schema": {"jsonSchema": number}, "repair": 1, "details": "about"}
    done = Asked(model(source=folder, **fields), text=["12", "19", None])
    assert done.table["answer"].to_pylist() == [21, None]
    assert done.table.schema.field("answer").type == pa.int64()
    assert [about and about["finish_reason"] for about in done.table["about"].to_pylist()] == [
        "stop",
        None,
    ]
    assert describe(done.failed[1]).startswith("answer: ")
    assert {json.loads(schema)["maximum"] for _, schema in given} == {50}
    assert [text for text, _ in given][:2] == ["12", "19"]
    assert given[2][0].startswith("19\n\n91\n\n")


def test_number_of_the_row_is_a_parameter(folder: str, messages: Messages) -> None:
    inputs = {"question": "text", "limit": "maximum"}
    spec = model(source=folder, chat=False, inputs=inputs, sampling={"max_tokens": "{limit}"})
    array = pa.array([1, None, 2], pa.int64())
    assert asked(spec, text=["abc", "a" * 20, "abc"], maximum=array) == ["c", "a" * 20, "cb"]
    wrong = asked(spec, text=["abc", "abc"], maximum=["2", None])
    messages.check(wrong[0])
    assert wrong[1] == "cba"
    both = model(source=folder, chat=False, inputs=inputs, sampling={"max_tokens": "{limit}"},
                 prompt="{question}{limit}")  # fmt: skip
    assert asked(both, text=["ab", "ab"], maximum=pa.array([2, None])) == ["2b", None]
    cut = spec.model_copy(update={"too_long": "truncate"})
    messages.check(*asked(cut, text=["abc"], maximum=pa.array([1 << 20])))
    warm = spec.model_copy(update={"sampling": {"temperature": "{limit}"}})
    messages.check(*asked(warm, text=["abc"], maximum=pa.array([float("nan")])))


def test_embeddings_are_float32_vectors(folder: str) -> None:
    spec = model(source=folder, task="embed", sampling={})
    vectors = to_table({"answer": np.zeros((2, 2), dtype=np.float32)})
    for texts in (["a", "bcd"], ["a", None, "bcd"]):
        done = Asked(spec, text=pa.array(texts)).table
        result = [vector for vector in to_batch(done)["answer"] if vector is not None]
        assert np.stack(result).tolist() == [[1, 0.5], [3, 0.5]]
        assert done.schema.field("answer").type == vectors.schema.field("answer").type


def test_rows_without_input_are_not_asked(folder: str) -> None:
    done = Asked(model(source=folder, chat=False), text=pa.array(["ab", None, " "]))
    assert done.answers == ["ba", None, None]
    assert done.warnings == [(1, "NullInput", 0), (2, "EmptyInput", 0)]
    failing = model(source=folder, chat=False, nullInput="fail")
    assert "null in question" in asked(failing, text=pa.array(["a", None]))[1]


def test_null_of_another_row_does_not_change_a_prompt(folder: str) -> None:
    inputs = {"question": "text", "age": "age"}
    spec = model(source=folder, inputs=inputs, prompt="{question} is {age}", chat=False)
    ages = pa.array([42, (1 << 53) + 1, None], pa.int64())
    prompts = asked(spec, text=["Ann", "Bob", "Cy"], age=ages)
    assert prompts[:2] == ["Ann is 42"[::-1], "Bob is 9007199254740993"[::-1]]


@pytest.mark.parametrize("text", ["refuse me", "odd one", "x" * 6052], ids=short)
def test_refused_prompt_fails_its_row_only(folder: str, text: str, messages: Messages) -> None:
    prompts = asked(model(source=folder, chatTemplate=TEMPLATE), text=["a", text, "b"])
    assert (prompts[0], prompts[2]) == ("a", "b")
    messages.check(prompts[1])


def test_fix_for_a_long_prompt_fits_the_model(folder: str) -> None:
    (text,) = asked(model(source=folder), text=["x" * 6052])
    inputs = {"photo": "image", "question": "text"}
    seeing = model(source=folder, inputs=inputs, images=["photo"])
    (image,) = asked(seeing, image=[saved(SQUARE, "PNG")], text=["x" * 6052])
    assert ("tooLong" in text, "tooLong" in image) == (True, False)
    assert "Shorten the prompt" in image


@pytest.mark.parametrize(("text", "error"), [("is lost", EngineDied), ("no memory", MemoryError)])
def test_error_of_the_engine_is_not_of_a_row(folder: str, text: str, error: Any) -> None:
    with pytest.raises(error):
        asked(model(source=folder), text=["a", text])


@contextmanager
def standard_error_in(path: Path) -> Iterator[None]:
    """Redirect the standard error to a file, as in processes of Ray."""
    before = os.dup(2)
    with path.open("ab", buffering=0) as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


ECC = "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"


@pytest.mark.parametrize("at_start", [False, True], ids=["running", "starting"])
@pytest.mark.parametrize(
    ("log", "kind"),
    [
        ("", EngineDied),
        ("\xff no error of a device\n", EngineDied),
        (f"(EngineCore pid=7) ERROR 11-29 [core.py:1376] {ECC}\n", DeviceFailed),
        (f"{ECC}\n".replace("torch.", "raise torch."), EngineDied),
        (f"what(): [Rank 1] {ECC}\nCUDA error: out of memory\n", DeviceFailed),
        ("NCCL error: unhandled system error", DeviceFailed),
        ("NVRM: Xid (PCI:0000:07:00): 79, GPU has fallen off the bus", DeviceFailed),
        (f"CUDA error: an illegal memory access was encountered\n{ECC}\n", EngineDied),
        ("CUDA error: out of memory\nNCCL error: unhandled cuda error\n", EngineDied),
    ],
    ids=short,
)
def test_cause_of_a_dead_engine_is_in_its_output(
    folder: str, tmp_path: Path, *, log: str, kind: type[JobFailure], at_start: bool
) -> None:
    import vllm as fake

    fake.LAST_WORDS.append(log.encode("latin-1"))
    spec = model(source=folder, **({"engine": {"gpu_memory_utilization": 2}} if at_start else {}))
    step = Step.model_validate({"name": "ask", "model": spec, "resources": {"gpu": 1}})
    gpu = Device("cuda") if at_start else Device()

    def run() -> None:
        stage = SegmentRunner([Stage("ask", (step,))], TOLERANT)
        list(stage(good(0, 0, pa.table({"text": ["is lost"]}))))

    with (
        patch.object(step_runner, "device_of", lambda **_: gpu),
        standard_error_in(tmp_path / "log"),
        pytest.raises(JobFailure) as raised,
    ):
        run()
    expected = ModelLoad if at_start and kind is EngineDied else kind
    assert type(raised.value) is expected
    if kind is DeviceFailed:
        assert log.splitlines()[0] in raised.value.message


def test_older_output_says_nothing_about_an_engine(folder: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(f"{ECC}\n")
    with standard_error_in(log), pytest.raises(EngineDied):
        asked(model(source=folder), text=["is lost"])


def test_standard_error_may_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fstat", lambda _: os.close(-1))
    assert EngineLog().device_fault() is None


def test_output_of_a_dead_engine_may_be_no_file(folder: str) -> None:
    reader, writer = os.pipe()
    with standard_error_in(Path(f"/dev/fd/{writer}")), pytest.raises(EngineDied):
        asked(model(source=folder), text=["is lost"])
    os.close(reader)
    os.close(writer)


def test_text_of_an_aborted_request_is_no_answer(
    folder: str, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    import vllm as fake

    aborted = {"text": "half an ans", "index": 0, "finish_reason": "abort"}
    monkeypatch.setattr(fake, "Completion", lambda *_: type("Aborted", (), aborted))
    (error,) = asked(model(source=folder), text=["a"])
    messages.check(error)


@pytest.mark.parametrize("chat", [True, False])
def test_long_row_is_cut_before_the_engine(tmp_path: Path, chat: bool) -> None:
    tiny_transformers.write("chat_model", tmp_path)
    numbers = "".join(str(number % 10) for number in range(90))
    fields: dict[str, Any] = {"prompt": "Say {question}!", "chat": chat, "sampling": {}}
    fields |= {"source": str(tmp_path), "engine": {"max_model_len": 60}}
    spec = model(**{**fields, "sampling": {"max_tokens": 10}}, tooLong="truncateLeft")
    room = 50 - len("Say !") - 1 - (len("[user][assistant]") if chat else 0)  # and <bos>
    done = Asked(spec, text=["a", numbers])
    cut = [one for one in done.warnings if one[1] == "TextCut"]
    assert cut == [(1, "TextCut", 90 - room)]
    inputs = {"question": "text", "style": "style"}
    write_adapters(tmp_path, "adapters/poem")
    adapted = model(**fields, inputs=inputs, adapter="style", tooLong="truncate",
                    loraPath=str(tmp_path / "adapters"))  # fmt: skip
    assert asked(adapted, text=[numbers], style=["poem"])[0].endswith("/adapters/poem")
    full = Asked(model(**fields, tooLong="fail"), text=[numbers])
    assert "TextCut" not in [name for _, name, _ in full.warnings]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"system": "Be brief."}, r"no system role"),
        ({"engine": {"gpu_memory_utilization": 2}}, "vLLM needs GPUs.*must be less than 1.0"),
        ({"source": "/nowhere"}, "model '/nowhere' not found"),
    ],
)
def test_model_that_cannot_work_ends_job(folder: str, fields: dict[str, Any], reason: str) -> None:
    template = "{{ raise_exception('no system role') if messages[0].role == 'system' }}x"
    with pytest.raises(ModelLoad, match=reason):
        asked(model(**{"source": folder, "chatTemplate": template, **fields}), text=["a"])


def test_answered_row_makes_room_for_a_row_of_another_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = threading.Condition()  # no thread of another test waits
    monkeypatch.setattr(IN_FLIGHT, "_changed", changed)
    monkeypatch.setattr(IN_FLIGHT, "rows", 0)
    save_language_model(tmp_path / "model")
    step = {"name": "ask", "model": vllm(source=str(tmp_path / "model"), chat=False)}
    transform = load_step(Step.model_validate({**step, "resources": {"gpu": 1}}), Device())
    assert IN_FLIGHT.wanted == 2 * 4, "the engine always has rows that wait"

    def compute() -> Any:
        IN_FLIGHT.begin(4)
        with IN_FLIGHT.batch(4):
            return transform(pa.table({"text": ["hold", "a", "b", None]}))

    with ThreadPoolExecutor(1) as threads:
        with IN_FLIGHT._changed:
            batch = threads.submit(compute)
            assert IN_FLIGHT._changed.wait_for(lambda: IN_FLIGHT.rows == 1, 30)
        (tmp_path / "release").touch()
        assert as_result(batch.result(60)).table["answer"].to_pylist() == ["dloh", "a", "b", None]


@pytest.mark.parametrize("requests", [False, True])
def test_stop_keeps_the_answered_rows_of_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, requests: bool
) -> None:
    save_language_model(tmp_path / "model")
    (tmp_path / "record").touch()
    stopping = threading.Event()

    async def respond(_: str, body: bytes) -> tuple[int, bytes]:
        if b"hold" in body:
            stopping.set()
            await asyncio.sleep(10)
        return 200, body

    monkeypatch.setattr(FakeServer(monkeypatch), "respond", respond)
    request = {"inputs": {"body": "text"}, "request": "body", "sampling": {}}
    fields = request if requests else {"chat": False}
    (stage,) = stages_of(steps_of(vllm_step(source=str(tmp_path / "model"), **fields)))
    calls = BlockCalls(stage.name, Segment.of([stage], TOLERANT), stopping)
    texts = ["a", "hold", "b"]
    if requests:
        texts = [json.dumps({"messages": [{"role": "user", "content": text}]}) for text in texts]
    block = encode(good(0, 0, pa.table({"text": texts})))
    run = ConcurrentBatches(stage, calls, stopping, part_seconds=0.5)
    with ThreadPoolExecutor(1) as threads:
        batches = threads.submit(lambda: [*map(decode, run(block))])
        if not requests:
            wait_until(lambda: len([*tmp_path.glob("computed-*")]) == 2, "two answers")
            stopping.set()
    (tmp_path / "release").touch()
    unload_stages()
    assert outcomes(merged(batches.result())) == {0: "good", 2: "good"}


@pytest.mark.parametrize("requests", [False, True])
@pytest.mark.parametrize(("log", "kind"), [(ECC, DeviceFailed), ("", EngineDied)], ids=short)
def test_rows_that_are_answered_before_a_device_fails_are_kept(
    folder: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    log: str,
    kind: type[JobFailure],
    requests: bool,
) -> None:
    import vllm as fake

    fake.LAST_WORDS.append(log.encode())

    async def respond(_: str, body: bytes) -> tuple[int, bytes]:
        if b"is lost" not in body:
            return 200, body
        monkeypatch.setattr("vllm.AsyncLLMEngine.errored", True)
        return 500, b"{}"

    monkeypatch.setattr(FakeServer(monkeypatch), "respond", respond)
    request = {"inputs": {"body": "text"}, "request": "body", "sampling": {}}
    fields = request if requests else {"chat": False}
    step = Step.model_validate(
        {"name": "ask", "model": model(source=folder, **fields), "resources": {"gpu": 1}}
    )
    texts = ["a", "is lost", "b"]
    if requests:
        texts = [json.dumps({"messages": [{"role": "user", "content": text}]}) for text in texts]
    rows, parts = good(0, 0, pa.table({"text": texts})), list[RowBatch]()
    with (
        patch.object(step_runner, "device_of", lambda **_: Device()),
        standard_error_in(tmp_path / "log"),
        pytest.raises(kind),
    ):
        parts.extend(SegmentRunner([Stage("ask", (step,))], TOLERANT)(rows))
    kept = {0: "good", 2: "good"} if kind is DeviceFailed else {}
    assert outcomes(merged(parts)) == kept, "after EngineDied, Ray repeats the call"


def test_invalid_parameters_end_the_job_before_the_engine_loads(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**values: Any) -> None:
        raise ValueError(f"temperature must be non-negative, got {values['temperature']}")

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("the engine was loaded")

    monkeypatch.setattr("vllm.SamplingParams", refuse)
    monkeypatch.setattr("vllm.AsyncLLMEngine.from_engine_args", never)
    with pytest.raises(ModelLoad, match=r"sampling: .*temperature must be non-negative"):
        asked(model(source=folder, sampling={"temperature": -1}), text=["a"])


def test_unknown_engine_argument_ends_the_job_before_it_starts(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {"max_model_len": "int | None", "dtype": "str"}
    monkeypatch.setattr(engine_arguments, "fields_of", lambda *_: fields)
    check_model(model(source=folder, engine={"max_model_len": 8}))
    with pytest.raises(ModelLoad, match="no argument 'max_len'; did you mean 'max_model_len'"):
        check_model(model(source=folder, engine={"max_len": 8}))


def test_only_an_answer_is_continued(tmp_path: Path, messages: Messages) -> None:
    spec = model(source=tiny_transformers.write("chat_model", tmp_path))
    processor = engine_of(spec, Device()).processor
    for role, end in (("assistant", ""), ("user", "[assistant]"), ("tool", "[assistant]")):
        text = apply_template(spec, processor, [{"role": role, "content": "a"}])
        assert text == f"<bos>[{role}]a{end}"
    trimmed = "{% for m in messages %}[{{ m.role }}] {{ m.content | trim }}{% endfor %}"
    own = f"{trimmed}{{% if add_generation_prompt %}}[assistant] {{% endif %}}"
    asked, empty = {"role": "user", "content": "a"}, {"role": "assistant", "content": ""}
    text = apply_template(model(source=spec.source, chatTemplate=own), processor, [asked, empty])
    assert text == "[user] a[assistant] "
    with messages.raises(ValueError):
        apply_template(spec, processor, [{"role": "assistant", "tool_calls": ["a call"]}])


def test_chat_template_is_checked_without_parameters_of_rows(folder: str) -> None:
    inputs = {"question": "text", "limit": "maximum"}
    check_model(model(source=folder, inputs=inputs, sampling={"max_tokens": "{limit}"}))


def test_runtimes_of_process_share_one_engine(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, begun, goes_on = threading.Lock(), threading.Event(), threading.Event()

    class Loaded:
        """Is loaded until the second thread waits for the lock, or loads an engine, too."""

        def __init__(self, *_: object) -> None:
            (goes_on if begun.is_set() else begun).set()
            assert goes_on.wait(60)

    class Loading(AbstractContextManager[None]):
        def __enter__(self) -> None:
            if not lock.acquire(blocking=False):
                goes_on.set()
                assert lock.acquire(timeout=60)

        def __exit__(self, *_: object) -> None:
            lock.release()

    monkeypatch.setattr(engine, "_LOADING", Loading())
    monkeypatch.setattr(engine, "Engine", Loaded)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(engine_of, model(source=folder), Device("cuda"))
        assert begun.wait(60)
        second = threads.submit(engine_of, model(source=folder), Device("cuda"))
        assert first.result() is second.result()


def test_prompts_of_one_batch_at_a_time_are_prepared(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = model(source=folder, chat=False)
    loaded = engine_of(spec, Device())
    tokenize = loaded.tokenize

    def prepared(prompt: str) -> Any:
        assert loaded.tokenizer_lock.locked()
        return tokenize(prompt)

    monkeypatch.setattr(loaded, "tokenize", prepared)
    assert asked(spec, text=["ab"]) == ["ba"]
    assert not loaded.tokenizer_lock.locked()


def test_engine_gets_the_rows_of_a_batch_in_one_call(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = model(source=folder, chat=False)
    loaded = engine_of(spec, Device())
    calls: list[int] = []
    submit = loaded.submit
    monkeypatch.setattr(loaded, "submit", lambda rows: calls.append(len(rows)) or submit(rows))
    (first, failed, last) = asked(spec, text=["ab", "fail", "cd"])
    assert (first, last, calls) == ("ba", "dc", [3])
    assert "too odd" in failed


def test_engine_gets_the_arguments_of_the_model(folder: str) -> None:
    parallelism = {"tensor": 2, "pipeline": 3}
    spec = model(source=folder, engine={"max_model_len": 512}, parallelism=parallelism)
    assert arguments_of(spec) == {
        "model": folder,
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 3,
        "disable_log_stats": True,
        "runner": "generate",
        "max_model_len": 512,
    }
    embedding = arguments_of(model(source=folder, task="embed", sampling={}))
    assert (embedding["runner"], embedding["convert"]) == ("pooling", "embed")
    inputs = {"question": "text", "style": "style"}
    adapted = model(source=folder, inputs=inputs, adapter="style", loraPath="s3://adapters")
    assert arguments_of(adapted)["enable_lora"] is True


def test_engine_on_a_part_of_a_gpu_uses_this_part_of_its_memory(folder: str) -> None:
    assert arguments_of(model(source=folder), 0.25)["gpu_memory_utilization"] == 0.225
    given = model(source=folder, engine={"gpu_memory_utilization": 0.3})
    assert arguments_of(given, 0.25)["gpu_memory_utilization"] == 0.3


def test_constraint_of_the_text_is_an_object(folder: str) -> None:
    from batchinference.pipeline.runtimes.vllm.sampling import parameters_of

    schema = {"properties": {"a": {"enum": [1, "b", None]}}, "required": []}
    sampling = {"max_tokens": 3, "structured_outputs": {"json": schema}}
    made = parameters_of(model(source=folder, sampling=sampling))
    assert (made.max_tokens, made.structured_outputs.json) == (3, schema)


SQUARE = Image.new("RGB", (2, 2))
PNG = data_uri(SQUARE)


async def pictures(request: web.Request) -> web.Response:
    """Answer with a picture at `/a.png`, and with content that is no picture at other paths."""
    return web.Response(body=saved(SQUARE, "PNG") if request.path == "/a.png" else b"no picture")


class TestImages:
    def asked(self, folder: str, urls: list[Any], allow: list[str] | None = None) -> list[Any]:
        fields: dict[str, Any] = {"inputs": {"photo": "image"}, "images": ["photo"]}
        fields |= {"prompt": "What?", "chatTemplate": "x", "allow": allow or []}
        return asked(model(source=folder, **fields), image=urls)

    def test_invalid_image_fails_its_row_only(self, folder: str) -> None:
        urls = ["data:image/png;base64,AAAA", PNG]
        broken, good = self.asked(folder, urls)
        assert "UnidentifiedImageError" in broken
        assert good == "x of [(2, 2)]"

    def test_addresses_are_fetched_by_the_rules_of_manifests(self, folder: str) -> None:
        with serving(pictures) as public, serving(pictures) as private:
            urls = [f"{one.url}/{path}" for one in (public, private) for path in ("a.png", "b")]
            prompts = self.asked(folder, urls, allow=[public.url])
        expected = ["of [(2, 2)]", "cannot identify image file"]
        for answer, part in zip(
            prompts, [*expected, *["Add its prefix to model.allow"] * 2], strict=True
        ):
            assert part in answer

    @pytest.mark.parametrize(
        ("part", "reason"),
        [
            ({"image_url": {"url": "file:///etc/passwd"}}, "http://, https:// or data:"),
            # Pillow would start Ghostscript
            ({"image_url": {"url": data_uri(SQUARE, "EPS")}}, "cannot identify image"),
            ({"image_url": {"url": "data:image/png,AAAA"}}, "is in base64"),
            ({"type": "image_embeds", "image_embeds": "AAAA"}, "image_url, not 'image_emb"),
        ],
    )
    def test_engine_gets_texts_and_common_image_formats_only(
        self, part: dict[str, Any], reason: str
    ) -> None:
        messages = [{"role": "user", "content": [{"type": "image_url", **part}]}]
        with pytest.raises((ValueError, OSError), match=reason):
            ImageInliner(model())(messages)

    def test_engine_gets_only_the_fields_of_a_part(self) -> None:
        part = {"type": "image_url", "image_url": {"url": PNG}, "uuid": "1", "image_embeds": "A"}
        ((message,),) = [ImageInliner(model())([{"role": "user", "content": [part]}])]
        assert message["content"] == [{"type": "image_url", "image_url": {"url": PNG}}]


class TestAdapters:
    @pytest.fixture
    def spec(self, folder: str, tmp_path: Path) -> VllmModel:
        """Return a model with one adapter, named `poem`."""
        write_adapters(tmp_path, "poem")
        return self.with_adapters(folder, loraPath=str(tmp_path))

    def with_adapters(self, folder: str, **fields: Any) -> VllmModel:
        inputs = {"question": "text", "style": "style"}
        fields = {"chat": False, "prompt": "{question}", **fields}
        return model(source=folder, inputs=inputs, adapter="style", **fields)

    def asked(self, spec: VllmModel, *styles: Any) -> list[Any]:
        return asked(spec, text=["ab"] * len(styles), style=pa.array(styles))

    def test_row_uses_its_adapter(self, spec: VllmModel) -> None:
        of_poem = f"ba by {spec.lora_path}/poem"
        assert self.asked(spec, "poem", None, "poem") == [of_poem, "ba", of_poem]
        column = pa.array(["poem", None]).dictionary_encode()
        assert asked(spec, text=["ab", "ab"], style=column) == [of_poem, "ba"]

    def test_build_for_cpus_gets_no_rows_without_adapter(
        self, spec: VllmModel, monkeypatch: pytest.MonkeyPatch, messages: Messages
    ) -> None:
        monkeypatch.setattr(engine, "_is_built_for_cpus", lambda: True)
        first, second = self.asked(spec, "poem", None)
        assert first == f"ba by {spec.lora_path}/poem"
        messages.check(second)

    def test_adapters_have_different_numbers(self, spec: VllmModel, tmp_path: Path) -> None:
        write_adapters(tmp_path, "ode")
        engine = engine_of(spec, Device("cuda"))
        numbers = [engine.adapter(name).lora_int_id for name in ("poem", "ode", "poem")]
        assert numbers == [1, 2, 1]

    def test_missing_adapter_fails_its_rows_only(self, spec: VllmModel) -> None:
        prompts = self.asked(spec, "poem", "ode", None)
        assert prompts[1] == f"there is no {spec.lora_path}/ode/{ADAPTER_FILE}"
        assert prompts[2] == "ba"

    def test_adapter_that_is_not_listed_fails_its_row(
        self, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
    ) -> None:
        write_adapters(tmp_path, "poem", "ode", "")
        below = self.with_adapters(folder, loraPath=str(tmp_path), loraAdapters=["poem"])
        messages.check(self.asked(below, "poem", "ode")[1:])
        (other,) = self.asked(below, ["poem"])
        messages.check(other)
        downloads: list[str] = []

        def download(name: str) -> Path:
            downloads.append(name)
            return tmp_path

        monkeypatch.setattr("huggingface_hub.snapshot_download", download)
        of_hub = self.with_adapters(folder, loraAdapters=["org/poem"])
        prompts = self.asked(of_hub, "org/poem", "evil/repo", "s3://adapters/poem", "/etc")
        assert ["is not in" in answer for answer in prompts] == [False, True, True, True]
        assert downloads == ["org/poem"]

    def test_adapter_outside_of_its_folder_fails_its_row(self, folder: str, tmp_path: Path) -> None:
        write_adapters(tmp_path, "private", "adapters/poem")
        spec = self.with_adapters(folder, loraPath=str(tmp_path / "adapters"))
        outside = ["../private", "poem/../../private", str(tmp_path / "private"), "."]
        assert self.asked(spec, *outside) == [
            f"'{name}' is not the name of an adapter below 'loraPath'" for name in outside
        ]

    def test_unreachable_storage_ends_the_job(
        self, folder: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(RetryPolicy, "call", lambda _, call: call())  # no retry
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
        storage = {"endpoint": "http://127.0.0.1:1"}
        spec = self.with_adapters(folder, loraPath="s3://adapters", storage=storage)
        with pytest.raises(JobFailure, match="the adapter 'poem' cannot be fetched: OSError: "):
            self.asked(spec, None, "poem")

    def test_unreachable_hub_ends_the_job(
        self, folder: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
        reason = "the adapter 'org/poem' cannot be fetched: LocalEntryNotFoundError"
        spec = self.with_adapters(folder, loraAdapters=["org/poem"])
        with pytest.raises(JobFailure, match=reason) as caught:
            self.asked(spec, "org/poem")
        assert isinstance(caught.value.__cause__, LocalEntryNotFoundError)


def test_revision_of_the_hub_is_used(
    folder: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    add_to_hub_cache(tmp_path, "org/model", "v2", Path(folder))
    spec = model(revision="v2")
    engine = arguments_of(spec)
    assert (engine["revision"], engine["tokenizer_revision"]) == ("v2", "v2")
    assert Path(files_without_weights(spec)).parent.name == "snapshots"
    assert engine_source(spec) == "org/model"
    assert asked(model(revision="v2", chat=False), text=["ab"]) == ["ba"]
    with pytest.raises(ModelLoad, match="the model 'org/model' cannot be loaded"):
        asked(model(revision="v3"), text=["a"])


def test_model_id_and_streamed_weights_are_not_fetched() -> None:
    assert files_without_weights(model()) == engine_source(model()) == "org/model"
    spec = model(source="s3://models/llama", engine={"load_format": "runai_streamer"})
    assert engine_source(spec) == "s3://models/llama"


REQUESTS: dict[str, Any] = {
    "inputs": {"body": "body", "url": "url"},
    "request": "body",
    "requestUrl": "url",
    "sampling": {},
}


class FakeServer:
    """A server that gives its own answers, or repeats the body of the request."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.answer: tuple[int, bytes] | None = None

        async def server_of(*_: Any) -> Any:
            return self.respond

        monkeypatch.setattr(engine, "server_of", server_of)

    async def respond(self, path: str, body: bytes) -> tuple[int, bytes]:
        self.asked.append((path, json.loads(body)))
        return self.answer or (200, body)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    return FakeServer(monkeypatch)


def test_requests_have_only_known_fields_and_pictures_in_them(
    folder: str, server: FakeServer
) -> None:
    image = {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}, "uuid": "x"}
    tools = [{"role": "assistant", "tool_calls": [1]}, {"role": "tool", "content": "1"}]
    turn = {"role": "user", "content": [{"type": "text", "text": "a", "extra": 1}, image]}
    body = {"model": "gpt", "user": "u", "messages": [turn, *tools], "tools": [1], "n": 2}
    spec = model(source=folder, **REQUESTS)
    urls = ["/chat/completions", None]
    asked(spec, body=[json.dumps(body), json.dumps({"messages": []})], url=urls)
    (path, sent), (other, _) = server.asked
    assert path == other == "/chat/completions"
    assert sent.keys() == {"model", "messages", "tools", "n"}
    assert sent["model"] == folder
    (text, image), *rest = sent["messages"][0]["content"], *sent["messages"][1:]
    assert (text, rest) == ({"type": "text", "text": "a"}, tools)
    assert image == {"type": "image_url", "image_url": {"url": PNG}}


def with_part(**part: Any) -> Any:
    return {"messages": [{"role": "user", "content": [part]}]}


CHAT = "/v1/chat/completions"
UNTRUSTED: dict[str, tuple[Any, str]] = {
    "template": ({"messages": [], "chat_template": "x"}, CHAT),
    "loaded by the processor": ({"messages": [], "mm_processor_kwargs": {}}, "/chat/completions"),
    "tensor": ({"prompt": "", "prompt_embeds": "AAAA"}, "/v1/completions"),
    "near picture": (with_part(type="image_url", image_url={"url": "http://127.0.0.1:1/a"}), CHAT),
    "file": (with_part(type="image_url", image_url="file:///etc/passwd"), CHAT),
    "embedding of a picture": (with_part(type="image_embeds", image_embeds="AA"), CHAT),
    "film": (with_part(type="video_url", video_url={"url": "a"}), CHAT),
    "content": ({"messages": [{"role": "user", "content": {"type": "x"}}]}, CHAT),
    "messages": ({"messages": "a"}, CHAT),
    "chat as prompt": ({"prompt": [{"role": "user"}]}, "/v1/completions"),
    "embedding": ({"input": "a"}, "/v1/embeddings"),
}


@pytest.mark.parametrize("case", UNTRUSTED)
def test_request_that_reads_other_things_is_a_failed_row(
    folder: str, server: FakeServer, case: str, messages: Messages
) -> None:
    body, url = UNTRUSTED[case]
    messages.check(asked(model(source=folder, **REQUESTS), body=[json.dumps(body)], url=[url]))
    assert server.asked == []


def test_embeddings_are_of_texts_and_tokens(
    folder: str, server: FakeServer, messages: Messages
) -> None:
    spec = model(source=folder, task="embed", **REQUESTS)
    good = ["a", ["a", "b"], [1, 2], [[1], [2]]]
    bad = [[{"role": "user", "content": "a"}], [[{"role": "user"}]], [True], {"a": 1}]
    bodies = [json.dumps({"input": value, "dimensions": 2}) for value in [*good, *bad]]
    answers = asked(spec, body=bodies, url=["/v1/embeddings"] * 8)
    assert [body["input"] for _, body in server.asked] == good
    messages.check(*answers[4:])


def test_tokens_and_cut_texts_of_responses_are_reported(folder: str, server: FakeServer) -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 3}
    usage["prompt_tokens_details"] = {"cached_tokens": 2}  # type: ignore[assignment]
    response = {"choices": [{}, {"finish_reason": "length"}], "usage": usage}
    server.answer = (200, json.dumps(response).encode())
    done = Asked(model(source=folder, **REQUESTS), body=["no request", "{}"], url=[None] * 2)
    assert done.warnings == [(1, "AnswerCut", 0)]
    assert done.tokens == {"inputTokens": {1: 5}, "cachedTokens": {1: 2}, "outputTokens": {1: 3}}


def test_refused_request_is_a_failed_row_unless_the_engine_is_dead(
    folder: str, server: FakeServer, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    spec = model(source=folder, **REQUESTS)
    for server.answer in (
        (400, b'{"error": {"message": "too long", "code": 400}}'),
        (404, b'{"detail": "Not Found"}'),
        (500, b"no json"),
        (200, b"data: [DONE]"),
    ):
        messages.check(asked(spec, body=["{}"], url=[None]))
    monkeypatch.setattr("vllm.AsyncLLMEngine.errored", True)
    server.answer = (500, b"{}")
    with messages.raises(EngineDied):
        asked(spec, body=["{}"], url=[None])
