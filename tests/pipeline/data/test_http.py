"""The runtime http against a real OpenAI-compatible server, beside OpenAI's own client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from support.documents import Document
from support.endpoints import ask, chat
from support.faulty import FAULTS, Faults, Upstream, spoiling
from support.http_servers import served
from support.openai_server import openai_server, save_language_model

ROWS = [f"{what} number {number}" for number in range(20) for what in ("star", "tea")]
SLOW = 5
"""Seconds after which a try counts as hanging. Honest answers are at hand by then."""
SAMPLING = {"max_tokens": 12, "temperature": 0}


@pytest.fixture(scope="module")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("language-model")
    save_language_model(folder)
    return folder


@pytest.fixture(scope="module")
def server(language_model: Path) -> Iterator[str]:
    with openai_server(language_model) as url:
        yield url


@pytest.fixture
async def client(server: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=server, api_key="none", max_retries=0) as opened:
        yield opened


def asking(url: str, folder: Path, **fields: Any) -> Document:
    return chat(url=url, name=str(folder), sampling=SAMPLING, **fields)


async def test_a_chat_is_answered_as_openais_client_has_it(
    server: str, language_model: Path, client: openai.AsyncOpenAI
) -> None:
    model = asking(server, language_model, system="Be brief.", prompt="Please {question}!")
    answers = await ask(model, question=ROWS[:12])
    for row, answer in zip(ROWS, answers, strict=False):
        expected = await client.chat.completions.create(
            model=str(language_model),
            messages=[
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": f"Please {row}!"},
            ],
            temperature=0,
            max_tokens=12,
        )
        assert answer == expected.choices[0].message.content
    assert len(set(answers)) > 6, "the model says the same of everything: the test is blind"


async def test_a_completion_is_what_openais_client_has(
    server: str, language_model: Path, client: openai.AsyncOpenAI
) -> None:
    answers = await ask(asking(server, language_model, api="completions"), question=ROWS[:6])
    for row, answer in zip(ROWS, answers, strict=False):
        expected = await client.completions.create(
            model=str(language_model), prompt=row, temperature=0, max_tokens=12
        )
        assert answer == expected.choices[0].text


async def test_no_row_is_lost_and_none_gets_anothers_answer_whatever_goes_wrong(
    server: str, language_model: Path
) -> None:
    model = asking(server, language_model, api="completions", concurrency=8)
    upstream = Upstream(server.removesuffix("/v1"))
    async with served(spoiling(upstream, Faults(share=0, in_a_row=0))) as proxy:
        expected = await ask(model | {"url": f"{proxy.url}/v1"}, question=ROWS)
    assert len(set(expected)) >= len(ROWS) - 2, "rows could be mixed up and nobody would see"
    faults = Faults(share=0.5, in_a_row=3)
    async with served(spoiling(upstream, faults)) as proxy:
        model |= {"url": f"{proxy.url}/v1", "timeoutSeconds": SLOW}
        answers = await ask(model, question=ROWS)
    assert answers == expected
    assert set(faults.met) == set(FAULTS)
    assert len(proxy.requests) == len(ROWS) + faults.met.total()
