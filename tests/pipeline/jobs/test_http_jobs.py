"""Jobs whose model is an endpoint: each row has a response or an error, or the job fails with
the reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from aiohttp import web

from batchinference.api.output_status import error_groups
from batchinference.spec.report import JobState
from plugins.messages import Messages
from support.documents.http_models import chat
from support.documents.minimal import Document
from support.jobs.on_ray import job_document, run_in_process, write_lines
from support.jobs.without_ray import run_without_ray
from support.outputs.rows import rows_of
from support.outputs.verify_command import verified
from support.servers.scripted_http import Answer, serving

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


def test_second_job_takes_answers_from_the_cache(tmp_path: Path) -> None:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(await request.text())
        return await respond_in_capitals(request)

    with serving(answer) as server:
        for name in ("first", "second"):
            job = asking(tmp_path / name, server.url)
            job["spec"]["steps"][0]["cache"] = {"path": str(tmp_path / "cache")}
            asked.clear()
            run = run_in_process(job)
            assert run.counts == (100, 99, 1, 0)
            answers = {row["text"]: row["answer"] for row in rows_of(tmp_path / name / "out")}
            assert answers == {text: text.upper() for text in TEXTS if text != "row 77"}
    assert len(asked) == 1
    assert run.report.steps["ask"].cached == 99


def test_skipped_rows_are_not_asked(tmp_path: Path) -> None:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(json.loads(await request.text())["messages"][0]["content"])
        return web.json_response({"choices": [{"message": {"content": "yes"}}]})

    with serving(answer) as server:
        job = asking(tmp_path, server.url)
        job["spec"]["steps"][0]["when"] = "endswith(text, '3')"
        report = run_without_ray(job)
    chosen = [text for text in TEXTS if text.endswith("3")]
    assert sorted(asked) == sorted(chosen)
    answers = {row["text"]: row["answer"] for row in rows_of(tmp_path / "out")}
    assert answers == {text: "yes" if text in chosen else None for text in TEXTS}
    assert [(one.name, one.step, one.count) for one in report.warnings] == [("Skipped", "ask", 90)]


REVIEW = [
    {"name": "label", "type": "string", "enum": ["good", "bad"]},
    {"name": "score", "type": "float32", "minimum": 0, "maximum": 1},
]
GOOD = '{"label": "good", "score": 0.5}'
ANSWERS = {
    "fence": [f"```json\n{GOOD}\n```"],
    "prose": [f"Sure: {GOOD}", GOOD],
    "high": ['{"label": "good", "score": 7}'] * 2,
    "higher": ['{"label": "good", "score": 1e400}', '{"label": "bad", "score": 11}'],
    "cut": ['{"label": "go'] * 2,
}


def answering_badly() -> Answer:
    """Return a script that gives the answers to a text one after the other, and one error."""
    errors = [web.json_response({"error": "an error with status 200"})]

    async def answer(request: web.Request) -> web.Response:
        messages = json.loads(await request.text())["messages"]
        text, turns = messages[0]["content"], len(messages) // 2
        if text == "prose" and errors:
            return errors.pop()
        content = ANSWERS.get(text, [GOOD])[turns]
        reason = "length" if text == "cut" else "stop"
        choice = {"message": {"content": content}, "finish_reason": reason}
        return web.json_response({"choices": [choice]})

    return answer


def test_answers_are_typed_repaired_or_grouped_by_the_violated_rule(
    tmp_path: Path, messages: Messages
) -> None:
    source = write_lines(tmp_path / "in", {"a.txt": [*ANSWERS, *TEXTS[:20]]})
    output = tmp_path / "out"
    with serving(answering_badly()) as server:
        ask = chat(url=server.url, schema={"fields": REVIEW}, repair=1)
        steps = [
            {"name": "ask", "model": ask},
            {"name": "use", "addColumns": {"sure": "answer.score >= 0.5"}},
        ]
        job = job_document("review", source, output, steps=steps, write={"format": "parquet"},
                           errors={"maxRows": 3})  # fmt: skip
        run = run_in_process(job)
        asked = len(server.requests)
        assert run_in_process(job).counts == run.counts
    assert asked == len(server.requests)
    assert run.report.state == JobState.SUCCEEDED, run.report.message
    assert run.counts == (25, 22, 3, 0)
    table = pq.read_table(output)
    kinds = [("label", pa.string()), ("score", pa.float32())]
    assert table.schema.field("answer").type == pa.struct(kinds)
    assert {(str(row["answer"]), row["sure"]) for row in table.to_pylist()} == {
        ("{'label': 'good', 'score': 0.5}", True)
    }
    groups = {group.cause: group.rows for group in error_groups(str(output))}
    messages.check(list(groups))
    assert sorted(groups.values()) == [1, 2]
    (repaired,) = run.report.warnings
    assert (repaired.name, repaired.count, repaired.amount) == ("AnswerRepaired", 1, 1)
    assert verified(output).result == "proven"
