"""Models in an object store that can be reached only with the model's `storage` field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.runtimes import load_runtime
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.runtimes.model_files import engine_source, files_without_weights
from batchinference.pipeline.steps import check_step
from batchinference.spec.models import VllmModel
from batchinference.spec.steps import Step
from plugins.messages import Messages
from support.documents.vllm_models import vllm
from support.servers.s3 import S3Server

FILES = {
    "transformers": {"task": "feature-extraction", "source": "s3://models/missing"},
    "sentenceTransformers": {"source": "s3://models/missing"},
    "torch": {"source": "s3://models/missing.pt", "trustSource": True},
    "torchvision": {"arch": "resnet18", "source": "s3://models/missing.pt"},
    "onnx": {"source": "s3://models/missing.onnx"},
}


@pytest.fixture(scope="module", autouse=True)
def bucket(s3: S3Server) -> None:
    s3.client().create_bucket(Bucket="models")


@pytest.fixture
def storage(s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """Return the `storage` field for the server. The environment has only the access keys."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.delenv("AWS_REGION")
    monkeypatch.setenv("BATCHINFERENCE_CACHE", str(tmp_path / "cache"))
    return {"endpoint": s3.endpoint, "region": "us-east-1"}


def step(runtime: str, **fields: Any) -> Step:
    named = "image" if runtime == "torchvision" else "text"
    model = {"runtime": runtime, "inputs": {named: "text"}, "output": "y", **fields}
    return Step.model_validate({"name": "own", "model": model})


@pytest.mark.parametrize("runtime", FILES)
def test_missing_model_is_rejected_at_check_and_load(
    runtime: str, storage: dict[str, Any], messages: Messages
) -> None:
    asked = step(runtime, **FILES[runtime], storage=storage)
    assert asked.model is not None
    with messages.raises(ModelLoad):
        check_step(asked)
    with messages.raises(ModelLoad):
        load_runtime(asked.model, Device())


def test_model_is_fetched_from_the_store(bert: str, s3: S3Server, storage: dict[str, Any]) -> None:
    files = [path for path in Path(bert).iterdir() if path.is_file()]
    s3.put("models", {f"bert/{path.name}": path.read_bytes() for path in files})
    fields = {"task": "feature-extraction", "inputs": {"text": "text"}}
    found, expected = (
        step("transformers", **fields, **source).model
        for source in ({"source": "s3://models/bert", "storage": storage}, {"source": bert})
    )
    assert found is not None
    assert expected is not None
    batch = {"text": np.array(["a cat", "dogs"], dtype=object)}
    vectors = [load_runtime(model, Device())(batch) for model in (found, expected)]
    assert np.array_equal(*vectors)


def test_tokenizer_of_vllm_fetches_no_weights(s3: S3Server, storage: dict[str, Any]) -> None:
    names = ["config.json", "tokenizer.json", "model-1.safetensors", "more/pytorch_model.bin"]
    s3.put("models", {f"llama/{name}": b"{}" for name in names})
    model = VllmModel.model_validate(vllm(source="s3://models/llama", storage=storage))
    pairs = (files_without_weights(model), names[:2]), (engine_source(model), names)
    for fetched, expected in pairs:
        found = [path for path in Path(fetched).rglob("*") if path.is_file()]
        assert {str(path.relative_to(fetched)) for path in found} == set(expected)
