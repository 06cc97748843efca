"""The runtime `vllm` with the real engine, in an environment of its own.

docs/contributing/testing.md describes this environment."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import transformers as hf
import yaml
from PIL import Image

from plugins.messages import Messages
from support.documents.minimal import Document
from support.documents.vllm_models import vllm
from support.inputs.media_files import data_uri
from support.jobs.command import Command, wait_until
from support.jobs.gated import committed_rows
from support.jobs.on_ray import job_document, write_lines
from support.models import vllm_models
from support.outputs.checks import OutputFaults
from support.outputs.rows import rows_of
from support.vllm_engine import EngineProcess, environment, vllm_python

pytestmark = [
    pytest.mark.long("vllm-engine"),
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("vllm-engine"),
]

ENGINE = {"max_model_len": 256, "enforce_eager": True}
OBJECT = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}

STEP = {"type": "number", "multipleOf": 0.5}
LISTED = {**OBJECT, "properties": {"ok": {"type": "array", "items": STEP}}}
REFERENCED = {**OBJECT, "properties": {"ok": {"$ref": "#/$defs/step"}}, "$defs": {"step": STEP}}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    process = EngineProcess(tmp_path_factory.mktemp("engine") / "log")
    yield process
    process.close()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name in ("chat", "untemplated", "classifier", "cross_encoder", "vision"):
        vllm_models.write(name, folder / name)
    for seed, name in enumerate(("shout", "whisper")):
        (folder / "adapters" / name).mkdir(parents=True)
        vllm_models.adapter(folder / "adapters" / name, seed)
    return folder


def model(models: Path, name: str = "chat", **fields: Any) -> Document:
    sampling = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
    of_task = sampling if fields.get("task", "generate") == "generate" else {}
    return vllm(source=str(models / name), **{"engine": ENGINE, "sampling": of_task, **fields})


def requesting(models: Path, name: str = "chat", **fields: Any) -> Document:
    """Return a model whose rows are requests."""
    inputs = {"body": "body", "url": "url"}
    rows = {"inputs": inputs, "request": "body", "requestUrl": "url", "sampling": {}}
    return model(models, name, **rows, **fields)


def requests_of(engine: EngineProcess, spec: Document, *bodies: Document) -> list[Any]:
    """Return the response to each request, or its error."""
    kinds = {"messages": "chat/completions", "prompt": "completions", "input": "embeddings"}
    urls = [f"/v1/{kinds[next(iter(body))]}" for body in bodies]
    result = answers(engine.rows(spec, body=list(map(json.dumps, bodies)), url=urls))
    return [json.loads(one) if one.startswith("{") else one for one in result]


def check_with_openai(responses: dict[str, Any]) -> None:
    """Parse responses with the classes of OpenAI's own client, which vLLM needs."""
    parse = (
        "import functools, json, openai.types.chat, sys\n"
        "for name, response in json.load(sys.stdin).items():\n"
        "    kind = functools.reduce(getattr, name.split('.'), openai.types)\n"
        "    kind.model_validate(response, strict=True)\n"
    )
    subprocess.run([vllm_python(), "-c", parse], input=json.dumps(responses), text=True, check=True)


def square(color: str) -> str:
    return data_uri(Image.new("RGB", (40, 40), color))


def answers(rows: list[Any]) -> list[Any]:
    return [row.get("error") or row["answer"] for row in rows]


class TestTexts:
    def test_chat_is_the_completion_of_its_template(
        self, engine: EngineProcess, models: Path
    ) -> None:
        texts = ["hello", "what is {this}?", "{{ x }}", "[user]"]
        chats = answers(engine.rows(model(models, system="Hm."), text=texts))
        prompts = [f"[system]Hm.[user]{text}[assistant]" for text in texts]
        completions = engine.rows(model(models, chat=False), text=prompts)
        assert chats == answers(completions)
        assert len(set(chats)) == len(texts)

    def test_rows_that_cannot_be_computed_fail_alone(
        self, engine: EngineProcess, models: Path, messages: Messages
    ) -> None:
        (alone,) = answers(engine.rows(model(models, chat=False), text=["ab"]))
        spec = model(models, chat=False, emptyInput="compute")
        rows = engine.rows(spec, text=["ab", None, "", "x" * 300, "ab"])
        assert rows[1] == {"answer": None}
        rows[1] = rows[0]
        first, _, empty, long, last = answers(rows)
        assert (first, last) == (alone, alone)
        messages.check(empty)
        messages.check(long)

    def test_conversations_of_rows(self, engine: EngineProcess, models: Path) -> None:
        turns = [{"role": "user", "content": "hello"}]
        result = answers(engine.rows(model(models), text=[json.dumps(turns), "hello", "[]"]))
        assert result[0] == result[1] != result[2]

    @pytest.mark.parametrize(
        ("constraint", "pattern"),
        [({"choice": ["yes", "no", "maybe"]}, "yes|no|maybe"), ({"regex": "[0-9]{3}"}, "[0-9]{3}")],
    )
    def test_structured_output(
        self, engine: EngineProcess, models: Path, constraint: Document, pattern: str
    ) -> None:
        sampling = {"max_tokens": 200, "temperature": 1, "seed": 3}
        spec = model(models, sampling={**sampling, "structured_outputs": constraint})
        for answer in answers(engine.rows(spec, text=[*"abcd"])):
            assert re.fullmatch(pattern, answer)

    def test_schema(self, engine: EngineProcess, models: Path, messages: Messages) -> None:
        label = {"name": "label", "type": "string", "enum": ["good", "bad"]}
        schema = {"fields": [{"name": "ok", "type": "bool", "nullable": True}, label]}
        sampling = {"max_tokens": 200, "temperature": 1, "seed": 3}
        rows = engine.rows(model(models, sampling=sampling, schema=schema), text=[*"abcd"])
        for answer in answers(rows):
            assert answer["ok"] in (True, False, None)
            assert answer["label"] in label["enum"]
        (cut,) = engine.rows(model(models, sampling={"max_tokens": 1}, schema=schema), text=["a"])
        messages.check(cut["error"].splitlines()[0])

    @pytest.mark.parametrize("document", [LISTED, REFERENCED], ids=["items", "reference"])
    def test_schema_that_the_engine_does_not_support(
        self, engine: EngineProcess, models: Path, messages: Messages, document: Document
    ) -> None:
        config = {**ENGINE, "structured_outputs_config": {"backend": "xgrammar"}}
        spec = model(models, engine=config, schema={"jsonSchema": document})
        messages.check(engine.answer(spec, text=["a"])["failure"])

    def test_constraint_that_the_engine_does_not_support(
        self, engine: EngineProcess, models: Path, messages: Messages
    ) -> None:
        sampling = {"structured_outputs": {"regex": "("}}
        messages.check(engine.answer(model(models, sampling=sampling), text=["a"])["failure"])

    def test_rows_that_take_too_long_are_ended(self, engine: EngineProcess, models: Path) -> None:
        sampling = {"max_tokens": 200, "ignore_eos": True, "temperature": 1}
        spec = model(models, sampling=sampling, rowTimeout="1s")
        rows = engine.rows(spec, text=["a"] * 4000)
        late = [row["error"] for row in rows if "error" in row]
        assert late
        assert all("no answer within 1s" in error for error in late)
        (after,) = engine.rows(model(models), text=["a"])
        assert after["answer"], "the engine is free again"

    def test_details(self, engine: EngineProcess, models: Path) -> None:
        sampling = {"max_tokens": 4, "temperature": 0, "ignore_eos": True, "logprobs": 2}
        (row,) = engine.rows(model(models, sampling=sampling, details="about"), text=["ab"])
        about = row["about"]
        tokens = about.pop("logprobs")
        prompt = len("[user]ab[assistant]") + 1
        assert about == {
            "prompt_tokens": prompt,
            "cached_tokens": 0,
            "completion_tokens": 4,
            "finish_reason": "length",
        }
        assert "".join(token["token"] for token in tokens) == row["answer"]
        for token in tokens:
            top = token["top_logprobs"]
            assert (len(top), top[0]) == (2, {name: token[name] for name in ("token", "logprob")})
            assert 0 > top[0]["logprob"] >= top[1]["logprob"]

    def test_details_of_several_texts(self, engine: EngineProcess, models: Path) -> None:
        choice = {"structured_outputs": {"choice": ["yes", "no"]}}
        sampling = {"max_tokens": 8, "n": 2, "logprobs": 0, **choice}
        (row,) = engine.rows(model(models, sampling=sampling, details="about"), text=["ab"])
        assert row["about"]["finish_reason"] == ["stop", "stop"]
        assert [len(tokens) for tokens in row["about"]["logprobs"]] == row["about"][
            "completion_tokens"
        ]

    def test_parameters_of_rows(self, engine: EngineProcess, models: Path) -> None:
        sampling = {"max_tokens": "{limit}", "temperature": 0, "ignore_eos": True}
        inputs = {"question": "text", "limit": "limit"}
        spec = model(models, inputs=inputs, sampling=sampling, details="about")
        rows = engine.rows(spec, text=[*"abcd"], limit=[2, 5, None, -1])
        counts = [row["about"]["completion_tokens"] for row in rows[:3]]
        assert counts == [2, 5, ENGINE["max_model_len"] - rows[2]["about"]["prompt_tokens"]]
        assert "max_tokens must be at least 1, got -1" in rows[3]["error"]


class TestRefusals:
    @pytest.mark.parametrize(
        ("name", "fields"),
        [
            ("untemplated", {}),
            ("chat", {"engine": {"max_model_length": 256}}),
            ("chat", {"sampling": {"temperature": -1}}),
        ],
        ids=["template", "engine", "sampling"],
    )
    def test_model_is_refused(
        self, engine: EngineProcess, models: Path, name: str, fields: Document, messages: Messages
    ) -> None:
        messages.check(engine.answer(model(models, name, **fields), text=["a"])["failure"])


class TestOtherTasks:
    def test_adapters_of_rows(
        self, engine: EngineProcess, models: Path, messages: Messages
    ) -> None:
        inputs = {"question": "text", "style": "style"}
        adapters = {"adapter": "style", "loraPath": str(models / "adapters")}
        spec = model(models, inputs=inputs, prompt="{question}", **adapters)
        styles = ["shout", "whisper", "nobody", None, "shout"]
        shout, whisper, missing, base, last = answers(
            engine.rows(spec, text=["ab"] * 5, style=styles)
        )
        assert shout == last != whisper
        assert missing.startswith("there is no ")
        messages.check(base)
        (alone,) = answers(engine.rows(spec, text=["ab"], style=["whisper"]))
        assert alone == whisper

    def test_images_in_prompts(self, engine: EngineProcess, models: Path) -> None:
        fields = {"inputs": {"photo": "photo"}, "images": ["photo"], "prompt": "What is {photo}?"}
        one_image = {**ENGINE, "limit_mm_per_prompt": {"image": 1, "video": 0}}
        spec = model(models, "vision", engine=one_image, **fields)
        red, blue, again, broken = answers(
            engine.rows(spec, photo=[*map(square, ("red", "blue", "red")), "data:;base64,AAAA"])
        )
        assert red == again != blue
        assert broken.startswith("UnidentifiedImageError: ")

    def test_requests_of_the_openai_api(
        self, engine: EngineProcess, models: Path, messages: Messages
    ) -> None:
        turn = [{"role": "user", "content": "ab"}]
        greedy = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
        function = {"name": "f", "parameters": OBJECT}
        tools = {
            "tools": [{"type": "function", "function": function}],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
        }
        chat, several, completion, tool, *refused = requests_of(
            engine,
            requesting(models, toolCallParser="hermes"),
            {"messages": turn, **greedy, "logprobs": True, "top_logprobs": 1, "model": "gpt"},
            {"messages": turn, "n": 2, "max_completion_tokens": 3, "seed": 1},
            {"prompt": ["ab", "cd"], **greedy},
            {"messages": turn, "max_tokens": 200, "temperature": 0, **tools},
            {"messages": [{"role": "user", "content": "x" * 300}]},
            {"messages": turn, "temperature": -1},
            {"messages": turn, "seed": "a"},
        )
        check_with_openai({"chat.ChatCompletion": chat, "Completion": completion})
        (choice,) = chat["choices"]
        (expected,) = answers(engine.rows(model(models), text=["ab"]))
        assert (choice["message"]["content"], chat["object"]) == (expected, "chat.completion")
        assert len(choice["logprobs"]["content"]) == chat["usage"]["completion_tokens"] == 12
        assert chat["model"] == str(models / "chat")
        assert [choice["index"] for choice in several["choices"]] == [0, 1]
        assert completion["object"] == "text_completion"
        assert len({choice["text"] for choice in completion["choices"]}) == 2
        (call,) = tool["choices"][0]["message"]["tool_calls"]
        assert set(json.loads(call["function"]["arguments"])) == {"ok"}
        messages.check(*refused)

    def test_requests_with_pictures(self, engine: EngineProcess, models: Path) -> None:
        def request(color: str) -> Document:
            picture = {"type": "image_url", "image_url": {"url": square(color)}}
            turn = {"role": "user", "content": [{"type": "text", "text": "What is "}, picture]}
            return {"messages": [turn], "max_tokens": 12, "temperature": 0, "ignore_eos": True}

        one_image = {**ENGINE, "limit_mm_per_prompt": {"image": 1, "video": 0}}
        spec = requesting(models, "vision", engine=one_image)
        requests = requests_of(engine, spec, *map(request, ("red", "blue", "red")))
        red, blue, again = (one["choices"][0]["message"]["content"] for one in requests)
        assert red == again != blue

    def test_requests_of_embeddings(self, engine: EngineProcess, models: Path) -> None:
        spec = requesting(models, task="embed")
        one, several = requests_of(engine, spec, {"input": "ab"}, {"input": ["ab", "cd"]})
        (expected,) = answers(engine.rows(model(models, task="embed"), text=["ab"]))
        assert one["data"][0]["embedding"] == pytest.approx(expected, abs=1e-3)
        assert (len(several["data"]), several["usage"]["prompt_tokens"]) == (2, 6)
        check_with_openai({"CreateEmbeddingResponse": several})

    def test_embeddings(self, engine: EngineProcess, models: Path) -> None:
        rows = engine.rows(model(models, task="embed"), text=["ab", "cd", "x" * 300, "ab"])
        *vectors, long, last = [row.get("answer") for row in rows]
        assert (long, "PromptTooLong" in rows[2]["error"]) == (None, True)
        assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1], abs=0.01)
        assert np.shape(vectors) == (2, 64)
        assert last == vectors[0] != vectors[1]

    def test_labels_are_those_of_transformers(
        self, engine: EngineProcess, models: Path, messages: Messages
    ) -> None:
        texts = ["ab", "hello", "x"]
        spec = model(models, "classifier", task="classify", topK=3, engine=EXACT)
        result = answers(engine.rows(spec, text=texts))
        pair = {"query": "text", "document": "text"}
        spec = model(models, "classifier", task="score", inputs=pair, engine=EXACT)
        messages.check(engine.answer(spec, text=["a"])["failure"])
        expected = [
            {model.config.id2label[number]: float(score) for number, score in enumerate(scores)}
            for model, scores in scores_of(models / "classifier", [(text,) for text in texts])
        ]
        for labels, of_label in zip(result, expected, strict=True):
            scores = [label["score"] for label in labels]
            assert scores == sorted(scores, reverse=True)
            assert {label["label"]: label["score"] for label in labels} == pytest.approx(
                of_label, abs=0.01
            )

    def test_scores_are_those_of_transformers(
        self, engine: EngineProcess, models: Path, messages: Messages
    ) -> None:
        queries, documents = ["ab", "abc", "a", "a"], ["cd", "xyz", "", "b " * 100]
        spec = cross_encoder(models)
        result = answers(engine.rows(spec, query=queries, document=documents))
        pairs = list(zip(queries[:3], documents[:3], strict=True))
        expected = [float(scores[0]) for _, scores in scores_of(models / "cross_encoder", pairs)]
        assert result[:3] == pytest.approx(expected, abs=0.01)
        messages.check(result[3])


def test_engine_ends_with_a_killed_process(engine: EngineProcess, models: Path) -> None:
    engine.rows(cross_encoder(models), query=["a"], document=["b"])  # as the test before
    engine.kill()


@contextmanager
def running(job: Document, directory: Path) -> Iterator[tuple[Command, subprocess.Popen[str]]]:
    """Start `batchinference run` with the engine, and kill all of its processes in the end."""
    (directory / "job.yaml").write_text(yaml.safe_dump(job))
    program = f"exec {vllm_python()} -m batchinference run job.yaml >>log 2>&1"
    ends_soon = {"RAY_gcs_rpc_server_reconnect_timeout_s": "5"}
    shell = Path("/bin/bash")
    command = Command(["-c", program], directory, {**environment(), **ends_soon}, shell)
    process = command.start()
    try:
        yield command, process
    finally:
        command.kill()
        process.communicate()


def next_engine(job: Document, command: Command, dead: int = 0) -> int:
    """Wait until the dead engine has ended, and rows are committed while another one runs. Return
    its process id."""
    engines: list[int] = []

    def is_replaced() -> bool:
        engines[:] = command.processes(b"VLLM::EngineCore")
        return bool(engines) and dead not in engines

    wait_until(is_replaced, "another engine to start", 500)
    before = committed_rows(job)
    wait_until(lambda: committed_rows(job) > before, "the engine to compute rows", 500)
    assert is_replaced()
    return engines[0]


FAULTY = """
import multiprocessing

def install():
    if multiprocessing.parent_process() is not None:
        from vllm.v1.engine.core import EngineCore
        EngineCore.step = EngineCore.step_with_batch_queue = fail

def fail(engine):
    reason = "uncorrectable ECC error encountered"
    raise RuntimeError("CUDA error: " + reason)
"""
"""A plugin of vLLM with which a device fails in the process of the engine."""


def test_failed_device_of_an_engine_is_named(
    tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = tmp_path / "plugins" / "faulty-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[vllm.general_plugins]\nfaulty = faulty:install\n")
    (about.parent / "faulty.py").write_text(FAULTY)
    before = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(about.parent), before])))
    source = write_lines(tmp_path / "in", {"a.txt": ["one", "two"]})
    step = {"name": "ask", "model": model(models), "resources": {"gpu": 0}}
    job = job_document("ask", source, tmp_path / "out", steps=[step])
    with running(job, tmp_path) as (_, driver):
        assert driver.wait(500) != 0
    log = (tmp_path / "log").read_text()
    assert re.search(r"DeviceFailed: step 'ask': .*CUDA error: uncorrectable ECC error", log), log


@pytest.mark.timeout(1800)  # four starts of an engine
def test_every_row_once_after_the_engine_the_actor_and_the_driver_were_killed(
    tmp_path: Path, models: Path
) -> None:
    texts = [f"question number {number}" for number in range(2000)]
    files = {f"{number}.txt": texts[number::20] for number in range(20)}
    source = write_lines(tmp_path / "in", files)
    sampling = {"max_tokens": 100, "temperature": 0, "ignore_eos": True}
    asked = model(models, sampling=sampling, details="about")
    step = {"name": "ask", "model": asked, "resources": {"gpu": 0}}
    output = tmp_path / "out"
    job = job_document("ask", source, output, steps=[step], write={"format": "parquet"})
    with running(job, tmp_path) as (command, driver):
        engine = next_engine(job, command)
        os.kill(engine, signal.SIGKILL)
        engine = next_engine(job, command, engine)
        os.kill(psutil.Process(engine).ppid(), signal.SIGKILL)
        next_engine(job, command, engine)
        os.kill(driver.pid, signal.SIGKILL)
    assert committed_rows(job) < len(texts)
    with running(job, tmp_path) as (_, driver):
        assert driver.wait(500) == 0, (tmp_path / "log").read_text()[-3000:]
    *_, last = sorted((output / "_batchinference/logs").iterdir())
    assert " ERROR " not in last.read_text()  # the engine ends before its process is killed
    rows = rows_of(output)
    assert sorted(row["text"] for row in rows) == sorted(texts)
    assert {row["about"]["completion_tokens"] for row in rows} == {100}
    assert list(OutputFaults(output).wrong_files()) == []


EXACT = {**ENGINE, "dtype": "float32"}


def cross_encoder(models: Path) -> Document:
    inputs = {"query": "query", "document": "document"}
    engine = {**EXACT, "max_model_len": 64}
    return model(models, "cross_encoder", task="score", inputs=inputs, engine=engine)


def scores_of(folder: Path, texts: list[tuple[str, ...]]) -> Iterator[tuple[Any, torch.Tensor]]:
    """Yield the model and the probabilities of its labels, as transformers computes them."""
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    loaded = hf.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    for text in texts:
        with torch.no_grad():
            logits = loaded(**tokenizer(*text, return_tensors="pt")).logits[0]
        yield loaded, logits.softmax(0) if len(logits) > 1 else logits.sigmoid()
