"""The chat messages of a row, for each runtime: order, images and rejected input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image

from batchinference.pipeline.prompts import messages_of
from batchinference.pipeline.runtimes.transformers.chats import images_of, in_parts, prompt_of
from batchinference.spec.models import HttpModel, TransformersModel, VllmModel
from support.documents.http_models import chat
from support.documents.minimal import Document
from support.documents.vllm_models import vllm

PIXELS = np.zeros((2, 2, 3), dtype=np.uint8)
EXAMPLES = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
ASKED = {"role": "user", "content": "a"}
ANSWERED = {"role": "assistant", "content": "b"}
Messages = list[dict[str, Any]]


def of_http(fields: Document, row: dict[str, Any]) -> Messages:
    return messages_of(HttpModel.model_validate(chat(**fields)), row)


def of_vllm(fields: Document, row: dict[str, Any]) -> Messages:
    return messages_of(VllmModel.model_validate(vllm(**fields)), row)


def of_transformers(fields: Document, row: dict[str, Any]) -> Messages:
    model = TransformersModel.model_validate(
        {"runtime": "transformers", "task": "any-to-any", "source": "m", "output": "o", **fields}
    )
    prompt = prompt_of(model, row, images_of(model, row), chat=True)
    assert isinstance(prompt, list)
    return in_parts(prompt)


RUNTIMES = pytest.mark.parametrize("of", [of_http, of_vllm, of_transformers])


def seen(messages: Messages) -> list[tuple[str, list[str]]]:
    """Return roles and texts, with IMAGE for an image in either form."""

    def words(content: Any) -> list[str]:
        return [content] if isinstance(content, str) else [_word(part) for part in content]

    return [(message["role"], words(message["content"])) for message in messages]


def _word(part: dict[str, Any]) -> str:
    if part["type"] == "text":
        return str(part["text"])
    there = part.get("image_url", {}).get("url", "").startswith("data:image/png")
    return "IMAGE" if there or isinstance(part.get("image"), Image.Image) else "?"


@RUNTIMES
def test_images_precede_the_prompt_only(of: Any) -> None:
    fields = {
        "inputs": {"question": "text", "one": "x", "two": "y"},
        "images": ["one", "two"],
        "prompt": "{question}?",
        "system": "Hm.",
        "messages": EXAMPLES,
    }
    found = seen(of(fields, {"question": "What", "one": PIXELS, "two": PIXELS}))
    assert found == [
        ("system", ["Hm."]),
        ("user", ["2 + 2?"]),
        ("assistant", ["4"]),
        ("user", ["IMAGE", "IMAGE", "What?"]),
    ]


@RUNTIMES
def test_images_precede_the_first_user_message(of: Any) -> None:
    fields = {"inputs": {"question": "text", "photo": "p"}, "images": ["photo"]}
    turns = [{"role": "system", "content": "Hm."}, ASKED, ANSWERED, ASKED]
    found = seen(of({**fields, "messages": EXAMPLES}, {"question": turns, "photo": PIXELS}))
    assert found[2:] == [
        ("system", ["Hm."]),
        ("user", ["IMAGE", "a"]),
        ("assistant", ["b"]),
        ("user", ["a"]),
    ]


@RUNTIMES
def test_images_without_a_user_message_are_rejected(of: Any) -> None:
    fields = {"inputs": {"question": "text", "photo": "p"}, "images": ["photo"]}
    with pytest.raises(ValueError, match="no message of the role 'user'"):
        of(fields, {"question": [ANSWERED], "photo": PIXELS})


@RUNTIMES
def test_null_fields_of_messages_are_dropped(of: Any) -> None:
    part = {"type": "text", "text": "a", "image_url": None}
    turns = [{"role": "user", "content": [part], "name": None}]
    (message,) = of({"inputs": {"question": "text"}}, {"question": turns})
    assert message == {"role": "user", "content": [{"type": "text", "text": "a"}]}


@RUNTIMES
@pytest.mark.parametrize(
    ("turn", "words"),
    [
        ("a", "a message of a conversation has 'role' and 'content'"),
        ({"content": "whose?"}, "a message of a conversation has 'role' and 'content'"),
        ({"role": "user", "content": ["a"]}, "is a text, or a list of parts with a 'type'"),
    ],
    ids=["text", "no role", "no part"],
)
def test_invalid_message_is_rejected(of: Any, turn: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        of({"inputs": {"question": "text"}}, {"question": [turn]})


def test_transformers_rejects_addresses_in_messages() -> None:
    for image in ({"url": "http://localhost:1/a.png"}, {"image": "a.png"}):
        turn = {"role": "user", "content": [{"type": "image", **image}]}
        with pytest.raises(TypeError, match="holds text alone, not 'image'"):
            of_transformers({"inputs": {"question": "text"}}, {"question": [turn]})
