"""Requests of the OpenAI API for transformers models, and chat templates that refuse them."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import openai.types
import pytest
import transformers

from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.preflight import preflight
from batchinference.pipeline.row_warnings import collect_warnings
from batchinference.pipeline.runtimes.kinds import check_runtime
from batchinference.pipeline.runtimes.vllm.chat_template import check_template
from batchinference.spec import parse
from batchinference.spec.models import VllmModel
from plugins.messages import Messages
from support.documents.minimal import Document, document
from support.documents.vllm_models import vllm
from support.models.replicas import model_of
from support.models.run_transformers import column, loaded, run
from support.models.tiny_transformers import set_template
from support.outputs.row_warnings import tokens_in

Tiny = Callable[[str], str]
CHAT, TEXT, VECTORS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
MESSAGES = [{"role": "user", "content": "a cat"}]
GREEDY: Document = {"messages": MESSAGES, "max_tokens": 6, "temperature": 0}
DRAWN = {**GREEDY, "temperature": 1.5, "seed": 7}


def answers(source: str, *requests: tuple[str, Document], task: str = "text-generation") -> Any:
    """Return the response to each request, or its error as a text."""
    fields = {"request": "body", "requestUrl": "url"}
    runtime = loaded(task, source, ["body", "url"], **fields)
    bodies = [json.dumps(body) for _, body in requests]
    result = runtime({"body": column(bodies), "url": column([url for url, _ in requests])})
    return [str(one) if isinstance(one, Exception) else json.loads(one) for one in result]


def of_prompts(source: str, values: list[Any], **sampling: Any) -> list[Any]:
    """Return the texts and details of prompts of the same model without requests."""
    sampling = {"max_new_tokens": 6, "do_sample": False, **sampling}
    runtime = loaded("text-generation", source, ["p"], sampling=sampling, details="about")
    result: list[Any] = runtime({"p": column([json.dumps(v) if v != "a" else v for v in values])})
    return result


def test_chat_answer_is_that_of_the_prompt(tiny: Tiny) -> None:
    source = tiny("chat_model")
    system = [{"role": "system", "content": "Be brief"}, *MESSAGES]
    texts = [{"type": "text", "text": text} for text in ("a", " cat")]
    parts = [{"role": "user", "content": texts}]
    expected = of_prompts(source, [MESSAGES, system])
    bodies = [{**GREEDY, "messages": each} for each in (MESSAGES, system, parts)]
    result = answers(source, *((CHAT, body) for body in bodies))
    made = [one["choices"][0]["message"]["content"] for one in result]
    assert made == [text for text, _ in [*expected, expected[0]]]
    about = expected[0][1]
    assert result[0]["usage"] == {
        "prompt_tokens": about["prompt_tokens"],
        "completion_tokens": about["completion_tokens"],
        "total_tokens": about["prompt_tokens"] + about["completion_tokens"],
    }
    assert result[0]["choices"][0]["finish_reason"] == about["finish_reason"]
    for one in result:
        openai.types.chat.ChatCompletion.model_validate(one)
        assert one["model"] == source
    assert len({one["id"] for one in result}) == len(result)


def test_request_whose_last_message_is_an_answer_gets_a_new_turn(tiny: Tiny) -> None:
    turns = [*MESSAGES, {"role": "assistant", "content": "The"}]
    (one,) = answers(tiny("chat_model"), (CHAT, {**GREEDY, "messages": turns}))
    asked = len("[user]a cat[assistant]The[assistant]")
    assert one["usage"]["prompt_tokens"] == 1 + asked, "a token for each letter, and <bos>"


def test_parts_are_lines_for_a_template_that_takes_texts(tiny: Tiny, tmp_path: Path) -> None:
    source = str(shutil.copytree(tiny("chat_model"), tmp_path / "model"))
    (Path(source) / "chat_template.jinja").write_text(
        "{% for message in messages %}[{{ message.content }}]{% endfor %}"
    )
    parts = [{"type": "text", "text": text} for text in ("a", "cat")]
    ((expected, about),) = of_prompts(source, [[{"role": "user", "content": "a\ncat"}]])
    (value,) = answers(source, (CHAT, {**GREEDY, "messages": [{"role": "user", "content": parts}]}))
    assert value["choices"][0]["message"]["content"] == expected
    assert value["usage"]["prompt_tokens"] == about["prompt_tokens"]


def test_parameters_are_those_of_the_library(tiny: Tiny) -> None:
    source = tiny("chat_model")
    (drawn,) = of_prompts(source, [MESSAGES], do_sample=True, temperature=1.5, seed=7, top_k=0)
    (short,) = of_prompts(source, [MESSAGES], max_new_tokens=3)
    shorter = {**GREEDY, "max_completion_tokens": 3}
    result = answers(source, (CHAT, DRAWN), (CHAT, shorter), (CHAT, DRAWN), (CHAT, GREEDY))
    texts = [one["choices"][0]["message"]["content"] for one in result]
    assert texts[:3] == [drawn[0], short[0], drawn[0]]
    assert texts[3] != drawn[0]


def test_text_ends_before_a_stop(tiny: Tiny) -> None:
    source = tiny("chat_model")
    ((prompt, _),) = of_prompts(source, [MESSAGES], max_new_tokens=40)
    stop = prompt[4:6]
    (one,) = answers(source, (CHAT, {**GREEDY, "max_tokens": 40, "stop": [stop, "\0"]}))
    (choice,) = one["choices"]
    assert choice["message"]["content"] == prompt[: prompt.index(stop)]
    assert choice["finish_reason"] == "stop"


def test_completion_is_no_chat(tiny: Tiny) -> None:
    source = tiny("chat_model")
    ((text, _),) = of_prompts(source, ["a"])
    conversation = json.dumps(MESSAGES)
    prompts = {"prompt": "a", "max_tokens": 6}, {"prompt": conversation, "temperature": 0}
    first, second = answers(source, *((TEXT, body) for body in prompts))
    assert first["choices"][0]["text"] == text
    assert second["usage"]["prompt_tokens"] == len(conversation) + 1, "a token for each letter"
    assert second["usage"]["completion_tokens"] <= 16
    openai.types.Completion.model_validate(first)


def test_embeddings_are_those_of_the_texts(tiny: Tiny) -> None:
    source = tiny("masked_model")
    texts = ["a cat", "dogs", "a cat"]
    expected = run(loaded("feature-extraction", source, ["text"]), {"text": texts})
    binary = {"input": "a cat", "encoding_format": "base64"}
    several, encoded = answers(
        source, (VECTORS, {"input": texts}), (VECTORS, binary), task="feature-extraction"
    )
    embeddings = [each["embedding"] for each in several["data"]]
    np.testing.assert_allclose(embeddings, expected, rtol=1e-5)
    decoded = np.frombuffer(base64.b64decode(encoded["data"][0]["embedding"]), np.float32)
    np.testing.assert_allclose(decoded, expected[0], rtol=1e-5)
    assert encoded["usage"] == {"prompt_tokens": 2 + 4, "total_tokens": 2 + 4}
    openai.types.CreateEmbeddingResponse.model_validate(several)


def test_tokens_are_counted(tiny: Tiny) -> None:
    with collect_warnings() as warnings:
        (one,) = answers(tiny("chat_model"), (CHAT, GREEDY))
    usage = one["usage"]
    assert tokens_in(warnings)["inputTokens"] == {0: usage["prompt_tokens"]}
    assert tokens_in(warnings)["outputTokens"] == {0: usage["completion_tokens"]}


REFUSED = {
    "unknown": (CHAT, {**GREEDY, "logit_bias": {"1": 5}}),
    "several": (CHAT, {**GREEDY, "n": 2}),
    "penalty": (CHAT, {**GREEDY, "presence_penalty": 0.5}),
    "empty stop": (CHAT, {**GREEDY, "stop": ""}),
    "empty stop of several": (TEXT, {"prompt": "a", "stop": ["b", ""]}),
    "limit": (CHAT, {**GREEDY, "max_tokens": 0}),
    "no messages": (CHAT, {**GREEDY, "messages": []}),
    "image": (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
    "no prompt": (TEXT, {"max_tokens": 3}),
    "tokens": (TEXT, {"prompt": [1, 2]}),
    "stream": (CHAT, {**GREEDY, "stream": True}),
    "embeddings": (VECTORS, {"input": "a"}),
}


def test_request_that_is_not_supported_fails_alone(tiny: Tiny, messages: Messages) -> None:
    good = {**GREEDY, "user": "x", "n": 1, "seed": None, "frequency_penalty": 0.0}
    *refused, last = answers(tiny("chat_model"), *REFUSED.values(), (CHAT, good))
    for name, error in zip(REFUSED, refused, strict=True):
        assert isinstance(error, str), name
        messages.check(error)
    assert last["choices"]


NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{{ messages[0].content }}"
)
ALTERNATE = (
    "{% for message in messages %}"
    "{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{{ message.content }}{% endfor %}"
)
BROKEN = "{{ messages[0].content.nothing.at_all }}"
EXAMPLES = [{"role": "user", "content": "2 + 2?"}, {"role": "user", "content": "3 + 3?"}]
CASES: list[tuple[str | None, dict[str, Any], str | None]] = [
    (NO_SYSTEM, {"system": "Be brief.", "prompt": "{text}"}, "no system role"),
    (NO_SYSTEM, {"prompt": "{text}"}, None),
    (ALTERNATE, {"messages": EXAMPLES, "prompt": "{text}"}, "must alternate"),
    (BROKEN, {"prompt": "{text}"}, "does not accept the messages"),
    (None, {"system": "Be brief.", "prompt": "{text}"}, "system: .*no chat template"),
    (None, {"prompt": "{text}"}, None),
]


@pytest.fixture
def source(tiny: Tiny, tmp_path: Path) -> Callable[[str | None], str]:
    """Return a function that gives the folder of a model with a chat template."""

    def written(template: str | None) -> str:
        shutil.copytree(tiny("text_model"), tmp_path / "model")
        set_template(tmp_path / "model", template)
        return str(tmp_path / "model")

    return written


@pytest.mark.parametrize(("template", "fields", "problem"), CASES)
def test_template_is_checked_before_the_job_and_when_a_replica_starts(
    source: Any, template: str | None, fields: dict[str, Any], problem: str | None
) -> None:
    folder = source(template)
    model = model_of("transformers", ("text",), task="text-generation", source=folder, **fields)
    if problem is None:
        check_runtime(model)
        assert loaded("text-generation", folder, ["text"], **fields)
        return
    with pytest.raises(ModelLoad, match=problem):
        check_runtime(model)
    with pytest.raises(ModelLoad, match=problem):
        loaded("text-generation", folder, ["text"], **fields)


def test_deep_validation_names_the_step(source: Any, tmp_path: Path) -> None:
    model = {
        **{"runtime": "transformers", "task": "text-generation", "source": source(NO_SYSTEM)},
        **{"inputs": {"text": "text"}, "output": "out", "system": "Hm.", "prompt": "{text}"},
    }
    read = {"format": "items", "items": [{"text": "a"}]}
    write = {"format": "parquet", "path": str(tmp_path / "out")}
    steps = [{"name": "ask", "model": model}]
    spec = parse(document(read=read, steps=steps, write=write)).spec
    (problem,) = (one for one in preflight(spec) if one.path.startswith("spec.steps[0]"))
    assert "no system role" in problem.message


def test_model_that_is_not_on_this_machine_is_checked_later() -> None:
    fields = {"task": "text-generation", "system": "Hm.", "prompt": "{text}"}
    for location in ("s3://models/nowhere", "org/nowhere", "/nowhere"):
        check_runtime(model_of("transformers", ("text",), source=location, **fields))


def test_vision_model_is_checked_with_images(tiny: Tiny) -> None:
    fields = {"prompt": "{text} {image}", "images": ["image"], "system": "Hm."}
    given = {"task": "image-text-to-text", "source": tiny("vision_chat"), **fields}
    check_runtime(model_of("transformers", ("image", "text"), **given))


@pytest.mark.parametrize(("template", "fields", "problem"), CASES[:4])
def test_template_for_vllm_is_checked(
    tiny: Tiny, template: str, fields: dict[str, Any], problem: str | None
) -> None:
    given = vllm(inputs={"text": "text"}, chatTemplate=template, **fields)
    spec = VllmModel.model_validate(given)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny("text_model"))
    with pytest.raises(ModelLoad, match=problem) if problem else nullcontext():
        check_template(spec, tokenizer)


def test_chat_for_vllm_needs_a_template(tiny: Tiny, messages: Messages) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny("text_model"))
    with messages.raises(ModelLoad):
        check_template(VllmModel.model_validate(vllm()), tokenizer)
