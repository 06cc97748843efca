"""JSON from the API server is read within limits of nesting and size."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from kopf._cogs.clients.api import iter_jsonlines

from batchinference_operator.controller.cache import Cache
from batchinference_operator.kube.kopf_session import LimitedResponse
from batchinference_operator.kube.limited_json import MAX_BYTES, read, read_json
from batchinference_operator.reconcile.reconcile import reconcile
from support.operator.objects import CONFIG, job_body
from support.operator.virtual_time import BEGINNING
from support.servers.scripted_http import Serve, answering

LARGEST = 1_300_000
ARRAYS, OBJECTS = ("[" * 9000 + "]" * 9000), ('{"":' * 9000 + "0" + "}" * 9000)
DICTS = "[" + '{"":{"":0}},' * (LARGEST // 12) + "0]"
TEXT = '"' + "x" * LARGEST + '"'
QUOTES = '"' + '\\"]' * (LARGEST // 3) + '"'
HOSTILE = {"arrays": ARRAYS, "objects": OBJECTS, "dicts": DICTS, "text": TEXT, "quotes": QUOTES}
each_shape = pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
_TEXTS = st.text('a"\\]}é{[,:')
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _TEXTS,
    lambda child: st.lists(child, max_size=4) | st.dictionaries(_TEXTS, child, max_size=4),
)


def hostile(value: str, name: str = "hostile") -> str:
    """Return a job as JSON, with a value in its spec and in its managed fields."""
    job = job_body(name, uid=f"uid-of-{name}")
    job["spec"] |= {"suspend": False, "ttl": {"rayJob": "1h"}, "steps": "VALUE"}
    job["metadata"]["managedFields"] = [{"fieldsV1": "VALUE"}]
    return json.dumps(job).replace('"VALUE"', value)


def page(*items: str) -> bytes:
    return f'{{"metadata": {{"continue": "c"}}, "items": [{",".join(items)}]}}'.encode()


@each_shape
def test_hostile_job_is_refused_and_others_of_its_page_are_read(value: str) -> None:
    honest = job_body("honest")
    content = read(page(hostile(value), json.dumps(honest), hostile(value)))
    assert content["metadata"] == {"continue": "c"}
    assert content["items"][1] == honest
    cache = Cache(CONFIG)
    cache.set_job(content["items"][0])
    observed = cache.observe(("team", "hostile"))
    assert observed is not None
    assert observed.job.spec == {"suspend": False, "ttl": {"rayJob": "1h"}}
    status = reconcile(observed, CONFIG, BEGINNING).status
    assert status is not None
    (ready, *_) = status["conditions"]
    assert ready["reason"] == "InvalidSpec"
    deep, large = (
        "spec.steps: it is nested too deeply",
        "spec: it is too large (1270 KiB, at most 128",
    )
    assert ready["message"].startswith(deep if value in (ARRAYS, OBJECTS) else large)


@each_shape
async def test_hostile_job_does_not_end_the_watch_of_kopf(serve: Serve, value: str) -> None:
    honest = {"type": "ADDED", "object": job_body("honest")}
    event = f'{{"type": "ADDED", "object": {hostile(value)}}}'
    sent = "".join(f"{line}\n" for line in (json.dumps(honest), event, json.dumps(honest))).encode()

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for start in range(0, len(sent), 50_000):
            await response.write(sent[start : start + 50_000])
        return response

    server = await serve(answer)
    async with (
        aiohttp.ClientSession(response_class=LimitedResponse) as session,
        session.get(server.url) as response,
    ):
        documents = [json.loads(line) async for line in iter_jsonlines(response.content)]
    assert [event["object"]["metadata"]["name"] for event in documents] == [
        "honest",
        "hostile",
        "honest",
    ]
    assert (documents[0], documents[2]) == (honest, honest)
    assert documents[1]["object"]["skippedFields"]["spec"].startswith("spec")


@pytest.mark.parametrize("code", [410, 429, 500, 504])
async def test_watch_that_ends_with_any_error_starts_again(serve: Serve, code: int) -> None:
    """kopf ends for all errors but 410."""
    error = {"type": "ERROR", "object": {"kind": "Status", "code": code, "message": "no leader"}}
    server = await serve(answering(200, f"{json.dumps(error)}\n"))
    async with (
        aiohttp.ClientSession(response_class=LimitedResponse) as session,
        session.get(server.url) as response,
    ):
        (document,) = [json.loads(line) async for line in iter_jsonlines(response.content)]
    assert document == {"type": "ERROR", "object": {**error["object"], "code": 410}}


@given(value=_JSON, indent=st.sampled_from([None, 1]))
def test_values_within_the_limits_are_read_unchanged(value: Any, indent: int | None) -> None:
    body = {"kind": value, "spec": {"a": value, "b": value}, "status": {}, "data": "x" * MAX_BYTES}
    event = {"type": "ADDED", "object": {"metadata": {}, "items": [], **body}}
    assert read(json.dumps(event, indent=indent).encode()) == event


def test_status_of_a_job_is_read_completely() -> None:
    """Without its conditions, a finished job would start again."""
    job = job_body("job") | {"status": {"conditions": [], "attempts": ["x"] * MAX_BYTES}}
    assert read(json.dumps(job).encode()) == job


def test_large_spec_of_a_ray_job_is_read() -> None:
    """The operator needs the devices and the memory of each worker group, and there may be many."""
    job = {"kind": "RayJob", "metadata": {}, "spec": {"rayClusterSpec": ["x"] * (MAX_BYTES // 4)}}
    assert read(json.dumps(job).encode()) == job


@pytest.mark.parametrize("cut", [1, 2, 40, MAX_BYTES])
def test_answer_that_ends_too_early_is_an_error(cut: int) -> None:
    text = json.dumps({"spec": {"a": ["x"] * MAX_BYTES}}).encode()
    with pytest.raises(ValueError, match=r"JSON|missing"):
        read(text[:-cut])


def test_a_page_of_the_largest_jobs_takes_little_memory() -> None:
    text = page(*[hostile(DICTS[: 12 * 16_000] + "0]", str(number)) for number in range(3)])
    tracemalloc.start()
    assert len(read(text)["items"]) == 3
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


async def test_other_tasks_run_while_a_large_answer_is_read() -> None:
    reading, turns = asyncio.create_task(read_json(page(hostile(DICTS)))), 0
    while not reading.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 2, "the Lease is renewed meanwhile"
