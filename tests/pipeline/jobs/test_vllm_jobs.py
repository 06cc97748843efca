"""Jobs with a vLLM model: the stages of Ray Data around a fake engine.

Each stage is an actor whose imports take 14 s of CPU time. `make landing` tests the chain without
actors, in test_vllm_processor.py and data/test_llm_*.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import ray
from ray.util.placement_group import PlacementGroup, PlacementGroupID

from batchinference.pipeline.runtimes.model_files import ADAPTER_FILE
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
def test_rows_pass_through_the_chain_and_failed_rows_bypass_it(tmp_path: Path, model: str) -> None:
    texts = [*TEXTS[:10], "bad one", *TEXTS[10:], "refuse me", "odd one"]
    steps = [
        {"name": "keep", "filter": "text != 'row 7'"},
        {"name": "break", "python": {"callable": "own_code:refuse_bad"}},
        {"name": "make", "python": {"callable": "own_code:add_columns_of_many_types"}},
        vllm_step(source=model, system="Hm.", prompt="Say {question}!", chatTemplate=PICKY),
        {"name": "drop", "dropColumns": ["pixels", "other"]},
    ]
    found = run(tmp_path, *steps, texts=texts, errors={"maxRows": 5})
    assert found.report.state == JobState.SUCCEEDED, found.report.message
    assert found.counts == (43, 39, 3, 1)
    prompts = {text: f"system: Hm.\nuser: Say {text}!\nassistant: " for text in TEXTS}
    assert written(tmp_path) == {
        text: prompt[::-1] for text, prompt in prompts.items() if text != "row 7"
    }
    errors = errors_of(tmp_path / "out")
    assert {(one["step"], one["error"].partition(" (own_code.py:")[0]) for one in errors} == {
        ("break", "ValueError: cannot do bad one"),
        ("ask", "EngineError: ValueError: The decoder prompt is too long"),
        ("ask", "EngineError: TemplateError: roles must alternate"),
    }


@pytest.mark.long("vllm")
def test_columns_keep_their_types_and_embeddings_are_vectors(tmp_path: Path, model: str) -> None:
    texts = [f"{'bad' if number % 7 == 3 else 'row'} {number}" for number in range(100)]
    steps = [
        {"name": "break", "python": {"callable": "own_code:refuse_bad"}},
        {"name": "make", "python": {"callable": "own_code:add_columns_of_many_types"}},
        vllm_step(source=model, task="embed", sampling={}),
    ]
    found = run(tmp_path, *steps, texts=texts, errors={"maxRows": 20})
    assert found.counts == (100, 86, 14, 0)
    run(tmp_path / "without", *steps[:2], texts=texts, errors={"maxRows": 20})
    ours = pq.read_table(tmp_path / "out").sort_by("text")
    plain = pq.read_table(tmp_path / "without" / "out").sort_by("text")
    assert ours.drop_columns("answer").equals(plain)
    assert ours.schema.field("answer").type == plain.schema.field("vector").type
    lengths = [len(text) for text in ours["text"].to_pylist()]
    assert ours["answer"].to_pylist() == [[length, 0.5] for length in lengths]


@pytest.mark.long("vllm")
def test_engine_that_does_not_load_fails_the_job(tmp_path: Path, model: str) -> None:
    found = run(tmp_path, vllm_step(source=model, engine={"gpu_memory_utilization": 2}))
    assert (found.report.state, found.report.reason) == (JobState.FAILED, "ModelLoad")
    message = found.report.message or ""
    assert message.startswith(f"step 'ask': the model '{model}' cannot be loaded (vLLM needs GPUs")
    assert "ValueError: GPU memory utilization must be less than 1.0. Got 2." in message


def test_missing_adapters_are_reported_before_anything_starts(tmp_path: Path, model: str) -> None:
    fields = {"inputs": {"question": "text", "style": "text"}, "prompt": "{question}"}
    found = run(tmp_path, vllm_step(source=model, adapter="style", loraPath="/nowhere", **fields))
    assert (found.report.reason, found.report.attempt) == ("ModelLoad", None)
    assert "'/nowhere' not found" in (found.report.message or "")


@pytest.fixture
def groups() -> Iterator[Callable[[], list[Any]]]:
    """Yield a function that lists the placement groups, and remove them after the test.

    Ray keeps placement groups until the program ends."""
    yield lambda: [one for one in all_groups() if one["state"] != "REMOVED"]
    for one in all_groups():
        found = PlacementGroup(PlacementGroupID.from_hex(one["placement_group_id"]))
        ray.util.remove_placement_group(found)


def all_groups() -> list[Any]:
    return list(ray.util.placement_group_table().values())


@pytest.mark.long("vllm")
def test_images_adapters_and_several_workers_of_an_engine(
    tmp_path: Path, model: str, groups: Callable[[], list[Any]]
) -> None:
    adapters = tmp_path / "adapters"
    (adapters / "poem").mkdir(parents=True)
    (adapters / "poem" / ADAPTER_FILE).write_text("{}")
    ask = vllm_step(
        source=model,
        gpu=2,
        inputs={"photo": "pixels", "style": "style"},
        images=["photo"],
        prompt="What?",
        adapter="style",
        loraPath=str(adapters),
        parallelism={"tensor": 2},
    )
    steps = [
        {"name": "make", "python": {"callable": "own_code:add_columns_of_many_types"}},
        {"name": "choose", "python": {"callable": "own_code:with_styles"}},
        ask,
        {"name": "drop", "dropColumns": ["pixels"]},
    ]
    found = run(tmp_path, *steps, texts=["plain", "poem", "ode"], errors={"maxRows": 1})
    assert found.report.state == JobState.SUCCEEDED, found.report.message
    backwards = "user: What?\nassistant: "[::-1]
    assert written(tmp_path) == {
        "plain": f"{backwards} of [(2, 2)] on 2 bundles",
        "poem": f"{backwards} by {adapters}/poem of [(2, 2)] on 2 bundles",
    }
    (error,) = errors_of(tmp_path / "out")
    assert error["error"] == f"EngineError: NoAdapter: there is no {adapters}/ode/{ADAPTER_FILE}"
    assert [len(group["bundles"]) for group in groups()] == [2], "more would reserve GPUs"


@pytest.mark.long("vllm")
@pytest.mark.usefixtures("groups")
def test_example_runs(tmp_path: Path, model: str) -> None:
    copy = prepared("vllm", tmp_path)
    job = job_of(copy)
    job["spec"]["steps"][0]["model"]["source"] = model
    found = run_example_on_ray(copy, job)
    assert found.report.state == JobState.SUCCEEDED, found.report.message
    haikus = {row["topic"]: row["haiku"] for row in rows_of(copy / "out")}
    assert len(haikus) == 4
    asked = "system: You are a bot that responds with haikus.\nuser: fresh bread\nassistant: "
    assert haikus["fresh bread"] == f"{asked[::-1]} on 2 bundles"
