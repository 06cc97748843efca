"""Jobs that ask an endpoint or an engine are stopped, or fail, and resume."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
import yaml
from aiohttp import web

from batchinference.pipeline.execution.stop_signals import StopSignal
from batchinference.spec.report import JobState
from support.documents.http_models import chat
from support.documents.minimal import Document
from support.documents.vllm_models import vllm
from support.jobs.command import Command, wait_until
from support.jobs.gated import committed_rows
from support.jobs.on_ray import job_document, run_job, write_lines
from support.outputs.rows import rows_of
from support.servers.openai import save_language_model
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


BATCH = ["hold", "a", "b", "c", "d", "e"]
"""The texts of each file and batch. The model answers the first one only after its release."""


class Answers:
    """Files in a directory that a model writes: one for each text that it answers."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        (directory / "record").touch()

    async def answer(self, request: web.Request) -> web.Response:
        """Answer like the fake engine."""
        text = json.loads(await request.text())["messages"][0]["content"]
        while text == "hold" and not (self._directory / "release").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        (self._directory / f"computed-{uuid4().hex}").write_text(text)
        return web.json_response({"choices": [{"message": {"content": text[::-1]}}]})

    def release(self) -> None:
        (self._directory / "release").touch()

    def texts(self) -> Counter[str]:
        return Counter(file.read_text() for file in self._directory.glob("computed-*"))


@contextmanager
def model_of(runtime: str, answers: Answers, directory: Path) -> Iterator[Document]:
    if runtime == "vllm":
        save_language_model(directory / "model")
        yield vllm(source=str(directory / "model"), chat=False)
        return
    with serving(answers.answer) as server:
        try:
            yield chat(url=server.url)
        finally:
            answers.release()


@pytest.mark.parametrize("runtime", ["http", pytest.param("vllm", marks=pytest.mark.long("vllm"))])
def test_stop_commits_the_answered_rows_of_incomplete_batches(
    ray: None, tmp_path: Path, runtime: str
) -> None:
    source = write_lines(tmp_path / "in", {f"{number}.txt": BATCH for number in range(2)})
    answers, stop = Answers(tmp_path), StopSignal()

    def stop_when_answered(_: object) -> None:
        if answers.texts().total() >= 10:
            stop.ask(signal.SIGTERM)

    with model_of(runtime, answers, tmp_path) as model:
        step = {"name": "ask", "model": model, "batchSize": len(BATCH)}
        step |= {"resources": {"gpu": 1}} if runtime == "vllm" else {}
        given = job_document("asking", source, tmp_path / "out", steps=[step])
        first = run_job(given, stop=stop, on_publish=stop_when_answered)
        assert (first.report.state, first.report.reason) == (JobState.FAILED, "Interrupted")
        kept = [row["text"] for row in rows_of(tmp_path / "out")]
        assert sorted(kept) == sorted(2 * BATCH[1:])
        answers.release()
        second = run_job(given)
    assert (second.report.state, second.counts) == (JobState.SUCCEEDED, (12, 12, 0, 0))
    assert sorted(row["answer"] for row in rows_of(tmp_path / "out")) == sorted(
        text[::-1] for text in 2 * BATCH
    )
    asked_again = {text for text, times in answers.texts().items() if times > 2}
    assert asked_again <= {"hold"}


class RevokedKey(Answers):
    """Refuses the key of the first text of one batch, after all other texts are answered."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._held = 0

    async def answer(self, request: web.Request) -> web.Response:
        text = json.loads(await request.text())["messages"][0]["content"]
        self._held += text == "hold"
        if text != "hold" or self._held != 1:
            return await super().answer(request)
        while self.texts().total() < 2 * len(BATCH[1:]):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        return web.Response(text="the key is invalid", status=401)


def test_failure_of_an_endpoint_commits_the_answered_rows(ray: None, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in", {f"{number}.txt": BATCH for number in range(2)})
    answers = RevokedKey(tmp_path)
    with model_of("http", answers, tmp_path) as model:
        step = {"name": "ask", "model": model, "batchSize": len(BATCH)}
        given = job_document("asking", source, tmp_path / "out", steps=[step])
        first = run_job(given)
        assert (first.report.state, first.report.reason) == (JobState.FAILED, "Application")
        assert "the endpoint answered 401: the key is invalid" in (first.report.message or "")
        kept = [row["text"] for row in rows_of(tmp_path / "out")]
        assert sorted(kept) == sorted(2 * BATCH[1:])
        answers.release()
        second = run_job(given)
    assert (second.report.state, second.counts) == (JobState.SUCCEEDED, (12, 12, 0, 0))
    assert answers.texts() == Counter(2 * BATCH), "no row is asked again"


@pytest.mark.long("vllm")
def test_row_that_fails_the_job_loses_no_answer_of_other_rows(ray: None, tmp_path: Path) -> None:
    files = {"0.txt": ["refuse me", *BATCH[1:]], "1.txt": BATCH}
    source, answers = write_lines(tmp_path / "in", files), Answers(tmp_path)
    with model_of("vllm", answers, tmp_path) as model:
        step = {"name": "ask", "model": model, "batchSize": len(BATCH), "resources": {"gpu": 1}}
        given = job_document("asking", source, tmp_path / "out", steps=[step])
        first = run_job(given)
        assert (first.report.state, first.report.reason) == (JobState.FAILED, "Application")
        kept = [row["text"] for row in rows_of(tmp_path / "out")]
        assert sorted(kept) == sorted(2 * BATCH[1:])
        answers.release()
        second = run_job(given)
    assert first.report.message == second.report.message
    asked_again = {text for text, times in answers.texts().items() if times > 2}
    assert asked_again == set(), "only the row in flight is asked again"


def test_row_that_fails_the_job_loses_no_earlier_result_of_its_pool(
    ray: None, tmp_path: Path
) -> None:
    source = write_lines(tmp_path / "in", {"a.txt": [*"abcd", "fail", "e"]})
    python = {"callable": "own_code:Scripted", "constructorArgs": {"directory": str(tmp_path)}}
    step = {"name": "own", "python": python, "batchSize": 2, "replicas": {"max": 1}}
    run = run_job(job_document("pool", source, tmp_path / "out", steps=[step]))
    assert "failed on row 4" in (run.report.message or "")
    assert sorted(row["text"] for row in rows_of(tmp_path / "out")) == [*"abcd"]
