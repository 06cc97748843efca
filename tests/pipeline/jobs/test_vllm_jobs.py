"""Jobs with a model for vLLM: Ray Data's own chain of stages around a stand-in for the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import ray
from ray.util.placement_group import PlacementGroup, PlacementGroupID

from batchinference.spec.report import JobState
from support.documents import Document
from support.examples import job_of, prepared, run_here
from support.job_runs import Run, errors_of, job_document, run_job, write_lines
from support.language_models import vllm_step
from support.openai_server import save_language_model
from support.outputs import rows_of

pytestmark = pytest.mark.usefixtures("ray")

TEXTS = [f"row {number}" for number in range(40)]


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


def test_rows_go_through_the_chain_and_those_with_nothing_to_ask_pass_it_by(
    tmp_path: Path, model: str
) -> None:
    texts = [*TEXTS[:10], "bad one", *TEXTS[10:], "refuse me"]
    steps = [
        {"name": "keep", "filter": "text != 'row 7'"},
        {"name": "break", "python": {"callable": "own_code:refuse_bad"}},
        {"name": "make", "python": {"callable": "own_code:of_many_types"}},
        vllm_step(source=model, system="Hm.", prompt="Say {question}!"),
        {"name": "drop", "dropColumns": ["pixels", "other"]},
    ]
    found = run(tmp_path, *steps, texts=texts, errors={"maxRows": 5})
    assert found.report.state == JobState.SUCCEEDED, found.report.message
    assert found.counts == (42, 39, 2, 1)
    prompts = {text: f"system: Hm.\nuser: Say {text}!\nassistant: " for text in TEXTS}
    assert written(tmp_path) == {
        text: prompt[::-1] for text, prompt in prompts.items() if text != "row 7"
    }
    errors = {error["step"]: error["error"] for error in errors_of(tmp_path / "out")}
    assert errors["ask"] == "EngineError: ValueError: The decoder prompt is too long"
    assert errors["break"] == "ValueError: cannot do bad one"


def test_columns_keep_their_types(tmp_path: Path, model: str) -> None:
    steps = [
        {"name": "make", "python": {"callable": "own_code:of_many_types"}},
        vllm_step(source=model, task="embed", sampling={}),
    ]
    found = run(tmp_path, *steps)
    assert found.report.state == JobState.SUCCEEDED, found.report.message
    run(tmp_path / "without", steps[0])
    ours = pq.read_table(tmp_path / "out").sort_by("text")
    plain = pq.read_table(tmp_path / "without" / "out").sort_by("text")
    assert ours.drop_columns("answer").equals(plain)
    lengths = [len(text) for text in ours["text"].to_pylist()]
    assert np.stack(ours["answer"].to_pylist()).tolist() == [[length, 0.5] for length in lengths]


@pytest.fixture
def groups() -> Iterator[Callable[[], list[Any]]]:
    """The placement groups that are there. Ray keeps them until the program ends."""
    yield lambda: [one for one in all_groups() if one["state"] != "REMOVED"]
    for one in all_groups():
        found = PlacementGroup(PlacementGroupID.from_hex(one["placement_group_id"]))
        ray.util.remove_placement_group(found)


def all_groups() -> list[Any]:
    return list(ray.util.placement_group_table().values())


def test_images_adapters_and_several_workers_of_an_engine(
    tmp_path: Path, model: str, groups: Callable[[], list[Any]]
) -> None:
    ask = vllm_step(
        source=model,
        gpu=2,
        inputs={"photo": "pixels", "style": "style"},
        images=["photo"],
        prompt="What?",
        adapter="style",
        loraPath="/adapters",
        parallelism={"tensor": 2},
    )
    steps = [
        {"name": "make", "python": {"callable": "own_code:of_many_types"}},
        {"name": "choose", "python": {"callable": "own_code:with_styles"}},
        ask,
        {"name": "drop", "dropColumns": ["pixels"]},
    ]
    found = run(tmp_path, *steps, texts=["plain", "poem"])
    assert found.report.state == JobState.SUCCEEDED, found.report.message
    backwards = "user: What?\nassistant: "[::-1]
    assert written(tmp_path) == {
        "plain": f"{backwards} of [(2, 2)] on 2 bundles",
        "poem": f"{backwards} by /adapters/poem of [(2, 2)] on 2 bundles",
    }
    assert [len(group["bundles"]) for group in groups()] == [2], "more would reserve GPUs"


@pytest.mark.usefixtures("groups")
def test_the_example(tmp_path: Path, model: str) -> None:
    copy = prepared("vllm", tmp_path)
    job = job_of(copy)
    job["spec"]["steps"][0]["model"]["source"] = model
    found = run_here(copy, job)
    assert found.report.state == JobState.SUCCEEDED, found.report.message
    haikus = {row["topic"]: row["haiku"] for row in rows_of(copy / "out")}
    assert len(haikus) == 4
    asked = "system: You are a bot that responds with haikus.\nuser: fresh bread\nassistant: "
    assert haikus["fresh bread"] == f"{asked[::-1]} on 2 bundles"
