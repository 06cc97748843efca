"""Jobs that ask an endpoint, with a schema and a cache, are stopped and resume."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import yaml
from aiohttp import web

from support.documents.http_models import chat
from support.documents.minimal import Document
from support.jobs.command import Command, wait_until
from support.jobs.gated import committed_rows
from support.jobs.on_ray import job_document, run_job, write_lines
from support.outputs.rows import rows_of
from support.servers.scripted_http import serving

ROWS, HELD = 60, 40
"""The number of rows, and the first one that the endpoint does not answer at once."""
TEXTS = [f"text {number}" for number in range(ROWS)]


class Endpoint:
    """Answers a text with its number as JSON, and records the texts."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.released = threading.Event()

    async def answer(self, request: web.Request) -> web.Response:
        text = json.loads(await request.text())["messages"][0]["content"]
        self.asked[text] += 1
        number = int(text.split()[1])
        if number >= HELD:
            await asyncio.to_thread(self.released.wait, 120)
        usage = {"prompt_tokens": 2, "completion_tokens": 3}
        message = {"content": json.dumps({"number": number})}
        choices = [{"message": message, "finish_reason": "stop"}]
        return web.json_response({"choices": choices, "usage": usage})


def job(directory: Path, url: str) -> Document:
    files = {f"{n}.txt": TEXTS[20 * n : 20 * n + 20] for n in range(ROWS // 20)}
    source = write_lines(directory / "in", files)
    fields = {"schema": {"fields": [{"name": "number", "type": "int64"}]}, "concurrency": 4}
    ask = {"name": "ask", "model": chat(url=url, **fields), "batchSize": 4}
    ask["cache"] = {"path": str(directory / "results")}
    return job_document("asking", source, directory / "out", steps=[ask])


def assert_has(directory: Path, texts: Sequence[str]) -> None:
    pairs = [(row["text"], row["answer"]) for row in rows_of(directory / "out")]
    assert sorted(pairs) == sorted((text, {"number": TEXTS.index(text)}) for text in texts)


def test_sigterm_keeps_what_is_committed_and_what_is_cached(ray: None, tmp_path: Path) -> None:
    endpoint = Endpoint()
    with serving(endpoint.answer) as server:
        given = job(tmp_path, server.url)
        (tmp_path / "job.yaml").write_text(yaml.safe_dump(given))
        command = Command(["run", "job.yaml"], tmp_path)
        process = command.start()
        try:
            wait_until(lambda: committed_rows(given) > 0, "rows to be committed")
            wait_until(lambda: sum(endpoint.asked.values()) >= HELD, "the other rows")
            process.send_signal(signal.SIGTERM)
            _, printed = process.communicate(timeout=120)
        finally:
            command.kill()
        assert process.returncode == 130, printed
        endpoint.released.set()
        run = run_job(given)
        assert (run.report.reason, run.report.pass_number) == (None, 2)
        assert_has(tmp_path, TEXTS)
        again = [text for text, times in endpoint.asked.items() if times > 1]
        assert all(int(text.split()[1]) >= HELD - 8 for text in again), "at most those in flight"
        counts = run.report.counts
        assert counts is not None
        assert (counts.input_tokens or 0) <= 2 * sum(endpoint.asked.values())
