"""Each example runs without Ray and writes the documented rows.

The example `vllm` runs on Ray (pipeline/jobs/test_vllm_jobs.py).
"""

from __future__ import annotations

import csv
import functools
import json
import re
import runpy
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torchvision
import transformers
from PIL import Image

from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.steps import load_step
from batchinference.plan import plan_for_machine
from batchinference.spec import parse
from batchinference.spec.report import JobState
from batchinference.spec.steps import Step
from support.jobs.examples import EXAMPLES, job_of, module_of, prepared, run_example
from support.jobs.without_ray import in_this_process, without_starting_ray
from support.outputs.rows import rows_of
from support.servers.openai import openai_server, save_language_model
from support.servers.scripted_http import answering, serving

Row = dict[str, Any]


def rows_made_by(copy: Path, job: Row | None = None) -> list[Row]:
    report = run_example(copy, job)
    assert report.state is JobState.SUCCEEDED, report.message
    return rows_of(copy / "out")


def test_modules_of_examples_have_different_names() -> None:
    names = Counter(path.name for path in EXAMPLES.glob("*/*.py") if path.name != "prepare.py")
    assert [name for name, count in names.items() if count > 1] == []


def test_readme_lists_each_example() -> None:
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[([\w-]+)\]\(([\w-]+)/(?:job|schedule)\.yaml\)", page, re.MULTILINE)
    names = sorted(path.parent.name for path in EXAMPLES.glob("*/*.yaml"))
    assert listed == [(name, name) for name in names]


def test_image_embeddings(tmp_path: Path) -> None:
    copy = prepared("image-embeddings", tmp_path)
    rows = rows_made_by(copy)
    assert len(rows) == len(list((copy / "data").glob("*/*")))
    assert {len(row["embedding"]) for row in rows} == {32}


def test_torch_predictor(tmp_path: Path) -> None:
    copy = prepared("torch-predictor", tmp_path)
    rows = rows_made_by(copy)
    assert len(rows) == sum(pq.read_metadata(path).num_rows for path in (copy / "data").iterdir())
    right = [row["predicted"] == row["label"] for row in rows]
    assert sum(right) > 0.95 * len(rows)
    network = module_of("torch-predictor", "network").Classifier(features=4, classes=3)
    network.load_state_dict(torch.load(copy / "model" / "weights.pt"))
    features = torch.tensor([row["features"] for row in rows])
    with torch.inference_mode():
        expected = network(features).numpy()
    assert np.allclose([row["probabilities"] for row in rows], expected, atol=1e-5)


def test_cpu_preprocessing(tmp_path: Path) -> None:
    copy = prepared("cpu-preprocessing", tmp_path)
    rows = rows_made_by(copy)
    assert len(rows) == len(list((copy / "data").iterdir()))
    images = np.empty(len(rows), dtype=object)
    images[:] = [np.asarray(Image.open(row["path"])) for row in rows]
    batch = module_of("cpu-preprocessing", "preprocess").centre({"image": images}, side=64)
    program = torch.export.load(copy / "model" / "network.pt2").module()
    expected = program(torch.tensor(batch["image"])).detach().numpy()
    assert np.allclose([row["embedding"] for row in rows], expected, atol=1e-5)


def test_model_chain(tmp_path: Path) -> None:
    copy = prepared("model-chain", tmp_path)
    rows = rows_made_by(copy)
    assert {tuple(row) for row in rows} == {("id", "text", "score", "words")}
    assert len({row["id"] for row in rows}) == len(rows) == 400
    tokenizer = transformers.AutoTokenizer.from_pretrained(copy / "encoder")
    encoder = transformers.AutoModel.from_pretrained(copy / "encoder").eval()
    judge = module_of("model-chain", "judge").Judge()
    judge.load_state_dict(torch.load(copy / "model" / "judge.pt"))
    with torch.inference_mode():
        states = encoder(**tokenizer(rows[0]["text"], return_tensors="pt")).last_hidden_state
        expected = judge(states.mean(dim=1))
    assert rows[0]["score"] == pytest.approx(float(expected), abs=1e-5)
    assert rows[0]["words"] == len(rows[0]["text"].split())


def test_npu_without_a_device_runs_on_the_cpu(tmp_path: Path) -> None:
    copy = prepared("npu", tmp_path)
    rows = rows_made_by(copy)
    lines = (copy / "data" / "topics.txt").read_text(encoding="utf-8").split("\n")
    assert len(rows) == sum(1 for line in lines if line.strip())
    assert {len(row["embedding"]) for row in rows} == {384}
    assert plan_for_machine(parse(job_of(copy)).spec).notes == (
        "step 'embed' runs on the CPU: the job needs 1 NPU(s) at the same time and this machine "
        "has 0",
    )


def test_image_captioning(tmp_path: Path) -> None:
    copy = prepared("image-captioning", tmp_path)
    rows = rows_made_by(copy)
    assert len(rows) == 6
    processor = transformers.AutoProcessor.from_pretrained(copy / "model")
    model = transformers.AutoModelForImageTextToText.from_pretrained(copy / "model").eval()
    picture = Image.open(rows[0]["path"]).convert("RGB")
    picture = picture.resize((224, 224), Image.Resampling.BILINEAR)
    parts = [{"type": "text", "text": "描述这张图片的内容"}, {"type": "image", "image": picture}]
    options = dict.fromkeys(("add_generation_prompt", "tokenize", "return_dict"), True)
    chat = [{"role": "user", "content": parts}]
    inputs = processor.apply_chat_template(chat, return_tensors="pt", **options)
    made = model.generate(**inputs, max_new_tokens=24, do_sample=False)
    new = made[0, inputs["input_ids"].shape[1] :]
    assert rows[0]["caption"] == processor.decode(new, skip_special_tokens=True)


def test_sharded_model(tmp_path: Path) -> None:
    copy = prepared("sharded-model", tmp_path)
    rows = rows_made_by(copy)
    tokenizer = transformers.AutoTokenizer.from_pretrained(copy / "model")
    model = transformers.AutoModelForCausalLM.from_pretrained(copy / "model").eval()
    for row in rows:
        tokens = tokenizer(row["text"], return_tensors="pt")
        made = model.generate(**tokens, max_new_tokens=16, do_sample=False, pad_token_id=0)
        new = made[0, tokens["input_ids"].shape[1] :]
        assert row["continued"] == tokenizer.decode(new, skip_special_tokens=True)
    assert len(rows) == 4


def test_legacy_predictor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = prepared("legacy-predictor", tmp_path)
    legacy = module_of("legacy-predictor", "legacy")
    monkeypatch.setattr(legacy, "seeded_resnet152", functools.cache(legacy.seeded_resnet152))
    rows = rows_made_by(copy)
    assert len(rows) == len(list((copy / "data").iterdir()))
    weights = torchvision.models.ResNet152_Weights.DEFAULT
    predictor = legacy.TorchPredictor(legacy.seeded_resnet152, weights)
    probabilities = predictor.predict_batch([Image.open(rows[0]["path"])])
    assert rows[0]["predicted_class_idx"] == int(probabilities.argmax())
    assert rows[0]["confidence"] == pytest.approx(float(probabilities.max()), abs=1e-4)


def test_own_function(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = prepared("own-function", tmp_path)
    with in_this_process(), without_starting_ray():
        runpy.run_path(str(copy / "analyse.py"), run_name="__main__")
    printed = capsys.readouterr().out
    for words in (["snow.jpg", "Tyrol", "white"], ["forest.jpg", "Black Forest", "green"]):
        assert [line for line in printed.splitlines() if all(word in line for word in words)]
    assert "night.jpg" not in printed
    captions = {Path(row["path"]).stem: row["caption"] for row in rows_of(copy / "out")}
    assert len(captions) == 5
    assert captions["night"] == "a dark picture, mostly black"


def test_text_generation(tmp_path: Path) -> None:
    copy = prepared("text-generation", tmp_path)
    rows = rows_made_by(copy)
    assert len(rows) == 12
    assert all(row["sentence"] for row in rows)
    assert len({row["sentence"] for row in rows}) > 6
    step = job_of(copy)["spec"]["steps"][0]
    step["model"]["source"] = str(copy / "model")
    again = load_step(Step.model_validate(step), Device())(pa.Table.from_pylist(rows[:2]))
    assert isinstance(again, pa.Table)
    assert again.to_pylist() == rows[:2], "the same seed writes the same"


def test_structured_answers(tmp_path: Path) -> None:
    copy = prepared("structured-answers", tmp_path)
    job = job_of(copy)
    judged = {"label": "bad", "score": 0.25, "product": None}
    answer = {"choices": [{"message": {"content": json.dumps(judged)}}]}
    with serving(answering(200, answer)) as server:
        job["spec"]["steps"][0]["model"]["url"] = server.url
        rows = rows_made_by(copy, job)
    assert [row["judgement"] for row in rows] == [judged] * 3
    assert all(row["unhappy"] for row in rows)


def test_openai_batch(tmp_path: Path) -> None:
    copy = prepared("openai-batch", tmp_path)
    job = job_of(copy)
    with serving(answering(200, {"choices": [{"message": {"content": "A."}}]})) as server:
        job["spec"]["steps"][0]["model"]["url"] = f"{server.url}/v1"
        rows = rows_made_by(copy, job)
    assert sorted(row["custom_id"] for row in rows) == [f"request-{n}" for n in range(4)]
    assert (copy / "out" / "_errors.jsonl").read_text() == ""
    assert {request.body["model"] for request in server.requests} == {"model"}


@pytest.mark.long("serve")
def test_openai_endpoint(tmp_path: Path) -> None:
    copy = prepared("openai-endpoint", tmp_path)
    model = tmp_path / "served"
    model.mkdir()
    save_language_model(model)
    job = job_of(copy)
    with openai_server(model) as url:
        job["spec"]["steps"][0]["model"] |= {"url": url, "name": str(model)}
        rows_made_by(copy, job)
    (file,) = (copy / "out").glob("*.csv")
    with file.open(newline="") as opened:
        rows = list(csv.DictReader(opened))
    assert sorted(int(row["id"]) for row in rows) == list(range(16))
    assert all(row["judgement"] for row in rows)
