"""Jobs over batch files of the OpenAI API: each line has a result or an error line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from batchinference.spec import SpecError
from batchinference.spec.report import JobState
from plugins.messages import Messages
from support.documents.http_models import chat
from support.documents.minimal import Document
from support.jobs.on_ray import data_files, job_document, run_in_process
from support.outputs.verify_command import verified
from support.servers.scripted_http import answering, serving

pytestmark = pytest.mark.usefixtures("own_code")


def request(custom_id: str, text: str = "hi", url: str = "/v1/chat/completions") -> str:
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body})


LINES = [request("one"), request("two", url="/embeddings"), request("three", "refused"), "{x"]


async def respond(asked: web.Request) -> web.Response:
    """Return the path and the model as the answer, or an error for one text."""
    body = json.loads(await asked.text())
    if body["messages"][0]["content"] == "refused":
        return web.json_response({"error": {"message": "no such word"}}, status=400)
    return web.json_response({"id": "x", "choices": [asked.path, body["model"]], "usage": {}})


def job(directory: Path, url: str, lines: list[str], **write: Any) -> Document:
    source = directory / "in"
    source.mkdir(exist_ok=True)
    (source / "a.jsonl").write_text("\n".join(lines))
    fields = {"inputs": {"body": "body", "url": "url"}, "request": "body", "requestUrl": "url"}
    model = chat(url=f"{url}/v1", output="response", name="served", **fields)
    return job_document(
        "batch",
        source,
        directory / "out",
        read={"format": "openaiBatch"},
        steps=[{"name": "ask", "model": model}],
        write={"format": "openaiBatch", **write},
        errors={"maxPercent": 100},
    )


def lines_of(*files: Path) -> list[Document]:
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def results(directory: Path) -> dict[str, Any]:
    lines = lines_of(*data_files(directory / "out"))
    assert len({line["id"] for line in lines}) == len(lines)
    return {line["custom_id"]: line["response"]["body"]["choices"] for line in lines}


def errors(directory: Path) -> dict[str | None, Any]:
    lines = lines_of(directory / "out" / "_errors.jsonl")
    return {line["custom_id"]: (line["response"] or {}).get("status_code") for line in lines}


def test_each_line_has_a_result_or_an_error(tmp_path: Path, messages: Messages) -> None:
    with serving(respond) as server:
        run = run_in_process(job(tmp_path, server.url, LINES))
    assert (run.report.state, run.counts) == (JobState.SUCCEEDED, (4, 2, 2, 0))
    assert results(tmp_path) == {
        "one": ["/v1/chat/completions", "served"],
        "two": ["/v1/embeddings", "served"],
    }
    assert errors(tmp_path) == {"three": 400, None: None}
    failed = lines_of(tmp_path / "out" / "_errors.jsonl")
    assert [line["id"][-2:] for line in failed] == ["02", "03"]
    messages.check(*(json.dumps(line["error"]) for line in failed))
    assert verified(tmp_path / "out").result == "proven"


def test_repeated_lines_have_a_result_each(tmp_path: Path) -> None:
    with serving(respond) as server:
        lines = [request("same")] * 3 + [request("bad", url="answered 200: yes")]
        run_in_process(job(tmp_path, server.url, lines))
    assert errors(tmp_path) == {"bad": None}
    lines = lines_of(*data_files(tmp_path / "out"))
    assert [line["custom_id"] for line in lines] == ["same"] * 3
    assert len({line["id"] for line in lines}) == 3


def test_error_file_is_the_one_of_the_last_run(tmp_path: Path) -> None:
    with serving(respond) as server:
        document = job(tmp_path, server.url, LINES)
        run_in_process(document)
        before = {line["id"] for line in lines_of(*data_files(tmp_path / "out"))}
        server.answer = answering(200, {"choices": ["now"]})
        document["spec"]["errors"]["retryFailedRows"] = True
        assert run_in_process(document).counts == (4, 3, 1, 0)
        assert errors(tmp_path) == {None: None}
        lines = lines_of(*data_files(tmp_path / "out"))
        assert {line["id"] for line in lines} > before
        server.answer = answering(400, {})
        replaced = job(tmp_path, server.url, [request("four")], mode="overwrite")
        assert run_in_process(replaced).counts == (1, 0, 1, 0)
    assert (results(tmp_path), errors(tmp_path)) == ({}, {"four": 400})
    assert verified(tmp_path / "out").result == "proven"


def test_added_lines_have_ids_of_their_own(tmp_path: Path) -> None:
    with serving(respond) as server:
        document = job(tmp_path, server.url, LINES[:1], mode="append")
        run_in_process(document)
        (tmp_path / "in" / "b.jsonl").write_text(
            "\n".join([request("new"), request("bad", "refused")])
        )
        assert run_in_process(document).report.state is JobState.SUCCEEDED
    assert results(tmp_path).keys() == {"one", "new"}
    (failed,) = lines_of(*(tmp_path / "out").glob("_batchinference/append-*-0001/_errors.jsonl"))
    assert (failed["custom_id"], failed["id"]) == ("bad", "batch_req_00000001000000000001")


@pytest.mark.parametrize(
    ("write", "steps"),
    [
        ({"responseColumn": "answer"}, []),
        ({}, [{"name": "drop", "dropColumns": ["custom_id"]}]),
        ({}, [{"name": "own", "python": {"callable": "own_code:without_ids", "method": "map"}}]),
        ({}, [{"name": "cut", "addColumns": {"response": "url"}}]),
    ],
    ids=["other column", "dropped column", "dropped by code", "no JSON"],
)
def test_missing_results_are_named(
    tmp_path: Path, write: Document, steps: list[Document], messages: Messages
) -> None:
    with serving(respond) as server:
        document = job(tmp_path, server.url, LINES[:1], **write)
        document["spec"]["steps"] += steps
        try:
            report = run_in_process(document).report
        except SpecError as error:
            messages.check(error)
            return
    messages.check(report.message)
    if report.state is JobState.SUCCEEDED:
        (failed,) = lines_of(tmp_path / "out" / "_errors.jsonl")
        assert failed["custom_id"] == "one"
        messages.check(failed["error"]["message"])
