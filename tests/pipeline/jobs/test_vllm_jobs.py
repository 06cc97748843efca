"""Jobs with a vLLM model on Ray, with a fake engine. `make landing` tests it without Ray, in
data/test_vllm.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from batchinference.spec.report import JobState
from support.documents.minimal import Document
from support.documents.vllm_models import vllm_step
from support.jobs.examples import job_of, prepared, run_example_on_ray
from support.jobs.on_ray import Run, errors_of, job_document, run_job, write_lines
from support.outputs.rows import rows_of
from support.servers.openai import CHAT_TEMPLATE, save_language_model

pytestmark = pytest.mark.usefixtures("ray")

TEXTS = [f"row {number}" for number in range(40)]
PICKY = (
    "{% if 'odd' in messages[-1].content %}{{ raise_exception('roles must alternate') }}{% endif %}"
    + CHAT_TEMPLATE
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    save_language_model(folder)
    return str(folder)


def run(directory: Path, *steps: Document, texts: list[str] = TEXTS, **spec: Any) -> Run:
    source = write_lines(directory / "in", {"a.txt": texts[:25], "b.txt": texts[25:]})
    write = {"format": "parquet"}
    job = job_document("ask", source, directory / "out", steps=list(steps), write=write, **spec)
    return run_job(job)


def written(directory: Path) -> dict[str, Any]:
    table = pq.read_table(directory / "out")
    return dict(zip(table["text"].to_pylist(), table["answer"].to_pylist(), strict=True))


@pytest.mark.long("vllm")
def test_rows_keep_their_columns_and_failed_rows_their_errors(tmp_path: Path, model: str) -> None:
    texts = [*TEXTS[:10], "bad one", *TEXTS[10:], "refuse me", "odd one"]
    steps = [
        {"name": "keep", "filter": "text != 'row 7'"},
        {"name": "break", "python": {"callable": "own_code:refuse_bad"}},
        {"name": "make", "python": {"callable": "own_code:add_columns_of_many_types"}},
        vllm_step(source=model, system="Hm.", prompt="Say {question}!", chatTemplate=PICKY)
        | {"batchSize": 4},
        {"name": "drop", "dropColumns": ["pixels", "other"]},
    ]
    result = run(tmp_path, *steps, texts=texts, errors={"maxRows": 5})
    assert result.report.state == JobState.SUCCEEDED, result.report.message
    assert result.counts == (43, 39, 3, 1)
    prompts = {text: f"system: Hm.\nuser: Say {text}!\nassistant: " for text in TEXTS}
    assert written(tmp_path) == {
        text: prompt[::-1] for text, prompt in prompts.items() if text != "row 7"
    }
    errors = errors_of(tmp_path / "out")
    assert {(one["step"], one["error"].partition(" (")[0]) for one in errors} == {
        ("break", "ValueError: cannot do bad one"),
        ("ask", "VLLMValidationError: The decoder prompt is too odd"),
        ("ask", "TemplateError: roles must alternate"),
    }


def test_missing_adapters_are_reported_before_anything_starts(tmp_path: Path, model: str) -> None:
    fields = {"inputs": {"question": "text", "style": "text"}, "prompt": "{question}"}
    result = run(tmp_path, vllm_step(source=model, adapter="style", loraPath="/nowhere", **fields))
    assert (result.report.reason, result.report.pass_number) == ("ModelLoad", None)
    assert "'/nowhere' not found" in (result.report.message or "")


@pytest.mark.long("vllm")
def test_example_runs(tmp_path: Path, model: str) -> None:
    copy = prepared("vllm", tmp_path)
    job = job_of(copy)
    job["spec"]["steps"][0]["model"]["source"] = model
    example = run_example_on_ray(copy, job)
    assert example.report.state == JobState.SUCCEEDED, example.report.message
    haikus = {row["topic"]: row["haiku"] for row in rows_of(copy / "out")}
    assert len(haikus) == 4
    asked = "system: You are a bot that responds with haikus.\nuser: fresh bread\nassistant: "
    assert haikus["fresh bread"] == asked[::-1]
