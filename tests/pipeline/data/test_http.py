"""The runtime http: results equal those of OpenAI's client, also after network faults."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from support.documents.http_models import ask, chat
from support.documents.minimal import Document
from support.servers.corrupting_proxy import FAULTS, Faults, Upstream, corrupting
from support.servers.openai import openai_server, save_language_model
from support.servers.scripted_http import served

if TYPE_CHECKING:
    import openai

ROWS = [f"{what} number {number}" for number in range(20) for what in ("star", "tea")]
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
    import openai

    async with openai.AsyncOpenAI(base_url=server, api_key="none", max_retries=0) as opened:
        yield opened


def served_model(url: str, folder: Path, **fields: Any) -> Document:
    return chat(url=url, name=str(folder), sampling=SAMPLING, **fields)


@pytest.mark.long("serve")
async def test_chat_answers_equal_those_of_openais_client(
    server: str, language_model: Path, client: openai.AsyncOpenAI
) -> None:
    model = served_model(server, language_model, system="Be brief.", prompt="Please {question}!")
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
    assert len(set(answers)) > 6, "the model gives too few different answers"


@pytest.mark.usefixtures("no_backoff")
async def test_each_row_gets_its_own_answer_through_network_faults() -> None:
    async def complete(request: web.Request) -> web.Response:
        prompt = json.loads(await request.text())["prompt"]
        return web.json_response({"choices": [{"text": f"answer to {prompt}"}]})

    faults = Faults(share=0.5, in_a_row=3)
    async with (
        served(complete) as upstream,
        served(corrupting(Upstream(upstream.url), faults)) as proxy,
    ):
        fields = {"api": "completions", "sampling": SAMPLING, "concurrency": 8}
        model = chat(url=f"{proxy.url}/v1", timeout="1s", **fields)
        answers = await ask(model, question=ROWS)
    assert answers == [f"answer to {row}" for row in ROWS]
    assert set(faults.met) == set(FAULTS)
    assert len(proxy.requests) >= len(ROWS) + faults.met.total()
