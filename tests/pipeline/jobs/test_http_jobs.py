"""Jobs whose model is an endpoint: each row has a response or an error, or the job fails with
the reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from batchinference.spec.report import JobState
from support.documents.http_models import chat
from support.documents.minimal import Document
from support.jobs.on_ray import errors_of, job_document, run_job, write_lines
from support.outputs.rows import rows_of
from support.servers.corrupting_proxy import Faults, Upstream, corrupting
from support.servers.scripted_http import serving

TEXTS = [f"row {number}" for number in range(100)]


async def respond_in_capitals(request: web.Request) -> web.Response:
    """Return a response with the text in capitals, or an error for one row."""
    text = json.loads(await request.text())["messages"][0]["content"]
    if text == "row 77":
        return web.json_response({"error": "no"}, status=422)
    return web.json_response({"choices": [{"message": {"content": text.upper()}}]})


def asking(directory: Path, url: str, retries: int = 6, **fields: Any) -> Document:
    source = write_lines(directory / "in", {"a.txt": TEXTS[:60], "b.txt": TEXTS[60:]})
    model = chat(url=url, retries=retries, **fields)
    step = {"name": "ask", "model": model, "batchSize": 50, "replicas": {"max": 2}}
    return job_document(
        "asking", source, directory / "out", steps=[step], errors={"maxPercent": 50.0}
    )


@pytest.mark.usefixtures("ray")
def test_each_row_has_its_answer_or_error_despite_faults(tmp_path: Path) -> None:
    faults = Faults(share=0.3, in_a_row=1)
    with (
        serving(respond_in_capitals) as server,
        serving(corrupting(Upstream(server.url), faults)) as proxy,
    ):
        run = run_job(asking(tmp_path, proxy.url, timeout="1s"))
    assert run.report.state == JobState.SUCCEEDED, run.report.message
    assert run.counts == (100, 99, 1, 0)
    answers = {row["text"]: row["answer"] for row in rows_of(tmp_path / "out")}
    assert answers == {text: text.upper() for text in TEXTS if text != "row 77"}
    (error,) = errors_of(tmp_path / "out")
    assert (error["path"], error["row"], error["step"]) == (
        str(tmp_path / "in" / "b.txt"),
        17,
        "ask",
    )
    assert error["error"] == 'RequestFailed: the endpoint answered 422: {"error": "no"}'
    assert faults.met.total() > 15
