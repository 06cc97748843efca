"""The chat messages of a row, for each runtime: order, images and rejected input."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from batchinference.pipeline.runtimes.prompts import json_compatible, messages_of, values_for_texts
from batchinference.pipeline.runtimes.transformers.prompt_inputs import (
    images_of,
    order_of_images,
    prompt_of,
    split_content,
)
from batchinference.spec.models import HttpModel, TransformersModel, VllmModel
from plugins.messages import Messages
from support.documents.http_models import chat
from support.documents.minimal import Document
from support.documents.vllm_models import vllm

PIXELS = np.zeros((2, 2, 3), dtype=np.uint8)
EXAMPLES = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
ASKED = {"role": "user", "content": "a"}
ANSWERED = {"role": "assistant", "content": "b"}
Chat = list[dict[str, Any]]


def of_http(fields: Document, row: dict[str, Any]) -> Chat:
    return messages_of(HttpModel.model_validate(chat(**fields)), row)


def of_vllm(fields: Document, row: dict[str, Any]) -> Chat:
    return messages_of(VllmModel.model_validate(vllm(**fields)), row)


def transformers_model(fields: Document) -> TransformersModel:
    task = "image-text-to-text" if fields.get("images") else "text-generation"
    own = {"runtime": "transformers", "task": task, "source": "m", "output": "o"}
    return TransformersModel.model_validate({**own, **fields})


def of_transformers(fields: Document, row: dict[str, Any]) -> Chat:
    model = transformers_model(fields)
    prompt = prompt_of(model, row, images_of(model, row), chat=True)
    assert isinstance(prompt, list)
    return split_content(prompt)


RUNTIMES = pytest.mark.parametrize("of", [of_http, of_vllm, of_transformers])


def seen(messages: Messages) -> list[tuple[str, list[str]]]:
    """Return the roles and texts of messages, with IMAGE for an image in either form."""

    def part_of(part: dict[str, Any]) -> str:
        if part["type"] == "text":
            return str(part["text"])
        encoded = part.get("image_url", {}).get("url", "").startswith("data:image/png")
        return "IMAGE" if encoded or isinstance(part.get("image"), Image.Image) else "?"

    def parts(content: Any) -> list[str]:
        return [content] if isinstance(content, str) else [part_of(part) for part in content]

    return [(message["role"], parts(message["content"])) for message in messages]


NOON = 1_704_110_400_123_456_789
"""2024-01-01T12:00:00.123456789 in nanoseconds."""
TEXTS: list[tuple[pa.Array, Any]] = [
    (pa.array([NOON, None], pa.timestamp("ns")), "2024-01-01T12:00:00.123456789"),
    (pa.array([NOON // 10**9], pa.timestamp("s", "Asia/Tokyo")), "2024-01-01T21:00:00+09:00"),
    (pa.array([NOON], pa.timestamp("ns", "UTC")), "2024-01-01T12:00:00.123456789+00:00"),
    (pa.array([NOON // 10**9], pa.timestamp("s")), "2024-01-01T12:00:00"),
    (pa.array([19_723], pa.date32()), "2024-01-01"),
    (pa.array([3_723_000_000_001], pa.time64("ns")), "01:02:03.000000001"),
    (pa.array([90 * 10**9], pa.duration("ns")), "0 days 00:01:30"),
    (pa.array([{"at": NOON}], pa.struct([("at", pa.timestamp("ns"))])),
     {"at": "2024-01-01T12:00:00.123456789"}),
    (pa.array([(1 << 53) + 1, None]), (1 << 53) + 1),
    (pa.array([[1, None], None]), [1, None]),
    (pa.array(["a", None]).dictionary_encode(), "a"),
]  # fmt: skip
"""A column, and its first value in prompts and bodies."""


@pytest.mark.parametrize(("column", "text"), TEXTS)
def test_values_are_written_exactly_into_texts(column: pa.Array, text: Any) -> None:
    for row, value in enumerate(values_for_texts({"a": "x"}, pa.table({"x": column}))["a"]):
        assert json_compatible(value) == (None if row else text)


@RUNTIMES
def test_images_precede_the_prompt_only(of: Any) -> None:
    inputs = {"question": "text", "one": "x", "two": "y"}
    fields = {"inputs": inputs, "images": ["one", "two"], "prompt": "{question}?"}
    row = {"question": "What", "one": PIXELS, "two": PIXELS}
    assert seen(of({**fields, "system": "Hm.", "messages": EXAMPLES}, row)) == [
        *(("system", ["Hm."]), ("user", ["2 + 2?"]), ("assistant", ["4"])),
        ("user", ["IMAGE", "IMAGE", "What?"]),
    ]


@RUNTIMES
def test_image_is_at_its_place_in_the_prompt(of: Any) -> None:
    inputs = {"question": "text", "one": "x", "two": "y"}
    fields = {"inputs": inputs, "images": ["one", "two"], "prompt": "{{a}} {two}{question}?{two}"}
    row = {"question": "What", "one": PIXELS, "two": PIXELS}
    asked = ["IMAGE", "{a} ", "IMAGE", "What?", "IMAGE"]
    assert seen(of({**fields, "system": "Hm."}, row)) == [("system", ["Hm."]), ("user", asked)]
    with pytest.raises(ValueError, match="input 'question' is null"):
        of(fields, {**row, "question": None})


@RUNTIMES
def test_fields_and_items_are_written_into_a_prompt(of: Any) -> None:
    fields = {"inputs": {"o": "x"}, "prompt": "{o.label} {o['label']} {o.tags[1]} {o.more.a}"}
    row = {"o": {"label": "cat", "tags": np.array(["a", "b"], object), "more": {"a": 1}}}
    assert seen(of(fields, row)) == [("user", ["cat cat b 1"])]
    for null in (
        {"o": None},
        {"o": {**row["o"], "tags": ["a"]}},
        {"o": {**row["o"], "more": None}},
    ):
        with pytest.raises(ValueError, match="is null"):
            of(fields, null)
    with pytest.raises(TypeError, match="has no part 'label'"):
        of(fields, {"o": "a text"})


def test_images_are_passed_in_the_order_of_the_prompt() -> None:
    fields = {"inputs": {"one": "x", "two": "y", "three": "z"}, "images": ["one", "two", "three"]}
    model = transformers_model({**fields, "prompt": "{three} and {one} or {three}"})
    assert order_of_images(model) == ["two", "three", "one", "three"]


@RUNTIMES
def test_images_precede_the_first_user_message(of: Any, messages: Messages) -> None:
    fields = {"inputs": {"question": "text", "photo": "p"}, "images": ["photo"]}
    turns = [{"role": "system", "content": "Hm."}, ASKED, ANSWERED, ASKED]
    result = seen(of({**fields, "messages": EXAMPLES}, {"question": turns, "photo": PIXELS}))
    assert result[2:] == [
        *(("system", ["Hm."]), ("user", ["IMAGE", "a"]), ("assistant", ["b"]), ("user", ["a"]))
    ]
    with messages.raises(ValueError):
        of(fields, {"question": [ANSWERED], "photo": PIXELS})


@RUNTIMES
def test_empty_list_of_messages_is_refused(of: Any, messages: Messages) -> None:
    with messages.raises(ValueError):
        of({"inputs": {"question": "text"}, "system": "Hm."}, {"question": []})


@RUNTIMES
def test_null_fields_of_messages_are_dropped(of: Any) -> None:
    part = {"type": "text", "text": "a", "image_url": None}
    turns = [{"role": "user", "content": [part], "name": None}]
    (message,) = of({"inputs": {"question": "text"}}, {"question": turns})
    assert message == {"role": "user", "content": [{"type": "text", "text": "a"}]}


@RUNTIMES
def test_json_of_a_list_of_messages_is_a_chat(of: Any) -> None:
    parts = [{"type": "text", "text": "a"}]
    turns = [{"role": "system", "content": "Hm."}, {"role": "user", "content": parts}]
    fields = {"inputs": {"question": "text"}}
    assert of(fields, {"question": f" {json.dumps(turns)}"}) == of(fields, {"question": turns})
    with pytest.raises(ValueError, match="two fields 'role'"):
        of(fields, {"question": '[{"role": "user", "role": "system", "content": "a"}]'})


PLAIN = ["[not JSON", "[]", '["role"]', '[{"roles": 1}]', '{"role": "user"}', '"a text"']


def test_any_other_text_is_a_plain_prompt() -> None:
    for text in PLAIN:
        for of in (of_http, of_vllm):
            (message,) = of({"inputs": {"question": "text"}}, {"question": text})
            assert message == {"role": "user", "content": text}
    turns = json.dumps([ASKED])
    (message,) = of_http({"inputs": {"q": "text"}, "prompt": "{q}"}, {"q": turns})
    assert message["content"] == turns


def test_text_stays_a_text_for_a_model_without_chat_template() -> None:
    model, turns = transformers_model({"inputs": {"text": "t"}}), json.dumps([ASKED])
    assert prompt_of(model, {"text": turns}, {}, chat=False) == turns
    assert prompt_of(model, {"text": turns}, {}, chat=True) == [ASKED]


@RUNTIMES
def test_invalid_message_is_rejected(of: Any) -> None:
    no_role = "a message of the conversation is not an object with a 'role'"
    for turn, reason in (
        ("a", no_role),
        ({"content": "whose?"}, no_role),
        ({"role": "user", "content": ["a"]}, "a part of a message's 'content' is not an object"),
    ):
        with pytest.raises(TypeError, match=reason):
            of({"inputs": {"question": "text"}}, {"question": [turn]})


def test_transformers_rejects_addresses_in_messages(messages: Messages) -> None:
    for image in ({"url": "http://localhost:1/a.png"}, {"image": "a.png"}):
        turn = {"role": "user", "content": [{"type": "image", **image}]}
        with messages.raises(TypeError):
            of_transformers({"inputs": {"question": "text"}}, {"question": [turn]})
