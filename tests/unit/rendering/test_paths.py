"""Local paths in a job for a cluster, where every pod has a disk of its own."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.rendering.paths import check_paths
from batchinference.spec import SpecError
from support.documents.minimal import Document, model_step
from support.documents.parsed import job, nearest_step, spec_of
from support.documents.runtimes import full_model
from support.operator.rendered import render

WAY_OUT = "use s3://, gs:// or az://, or mount a volume that all pods share (cluster.volumes)"
CLAIM = {"persistentVolumeClaim": {"claimName": "c"}}


def volume(path: str, name: str = "data", **fields: Any) -> Document:
    source = fields.pop("source", CLAIM)
    return {"name": name, "mountPath": path, **source, **fields}


def problems(*volumes: Document, **spec: Any) -> list[str]:
    made = spec_of(**spec, cluster={"volumes": list(volumes)})
    return [str(problem) for problem in check_paths(made)]


def reading(*paths: str) -> Document:
    return {"read": {"format": "text", "paths": list(paths)}}


def writing(path: str) -> Document:
    return {"write": {"format": "parquet", "path": path}}


def torch(**fields: Any) -> Document:
    model = {"runtime": "torch", "inputs": {"x": "text"}, "output": "y", **fields}
    return {"steps": [{"name": "score", "model": model}]}


def transformers(source: str) -> Document:
    step = model_step()
    step["model"]["source"] = source
    return {"steps": [step]}


def test_object_store_addresses_are_accepted() -> None:
    spec = {
        **reading("s3://in/a/"),
        **writing("s3://out/"),
        **transformers("s3://models/m/"),
        "errors": {"path": "s3://errors/"},
    }
    assert problems(**spec) == []


@pytest.mark.parametrize("path", ["data", "./data", "../data/*.txt", "~/data", "file://data"])
def test_relative_input_is_refused_with_a_hint(path: str) -> None:
    assert problems(**reading("s3://in/", path)) == [
        f"spec.read.paths[1]: '{path}' is a relative path, which no pod has: {WAY_OUT}"
    ]


SQL = {"format": "sql", "query": "SELECT 1"}


@pytest.mark.parametrize(
    ("read", "field", "path"),
    [
        ({"format": "lance", "path": "./a.lance"}, "path", "./a.lance"),
        ({"format": "huggingface", "name": "./set"}, "name", "./set"),
        ({**SQL, "url": "sqlite:///data/a.db"}, "url", "data/a.db"),
    ],
)
def test_a_source_at_a_relative_path_is_refused(read: Document, field: str, path: str) -> None:
    assert problems(read=read) == [
        f"spec.read.{field}: '{path}' is a relative path, which no pod has: {WAY_OUT}"
    ]


@pytest.mark.parametrize(
    "read",
    [
        {"format": "lance", "path": "gs://in/a.lance"},
        {"format": "lance", "path": "/data/a.lance"},
        {"format": "huggingface", "name": "org/set"},
        {"format": "huggingface", "name": "/data/set"},
        {**SQL, "url": "sqlite:////data/a.db"},
        {**SQL, "url": "postgresql://host/db"},
        {**SQL, "urlEnv": "DATABASE_URL"},
    ],
)
def test_source_on_a_shared_volume_is_accepted(read: Document) -> None:
    assert problems(read=read) == []


@pytest.mark.parametrize("path", ["/data/in", "file:///data/in"])
def test_absolute_input_may_lie_in_the_image(path: str) -> None:
    assert problems(**reading(path)) == []


@pytest.mark.parametrize("source", ["./model", "../model", "~/model", ".", "file://model"])
def test_a_model_at_a_relative_path_is_refused(source: str) -> None:
    assert problems(**transformers(source)) == [
        f"spec.steps[0].model.source: '{source}' is a relative path, which no pod has: {WAY_OUT}"
    ]


@pytest.mark.parametrize("path", ["out", "./out", "~/out"])
def test_an_output_to_search_at_a_relative_path_is_refused(path: str) -> None:
    assert problems(steps=[nearest_step(path)]) == [
        f"spec.steps[0].nearest.path: '{path}' is a relative path, which no pod has: {WAY_OUT}"
    ]


@pytest.mark.parametrize("path", ["/data/out", "s3://bucket/out"])
def test_an_output_to_search_may_be_anywhere_that_pods_see(path: str) -> None:
    assert problems(steps=[nearest_step(path)]) == []


@pytest.mark.parametrize("source", ["org/model", "model", "/models/clip", "file:///models/clip"])
def test_model_of_the_hub_or_image_is_accepted(source: str) -> None:
    assert problems(**transformers(source)) == []


@pytest.mark.parametrize("runtime", ["torch", "torchvision", "keras", "onnx"])
@pytest.mark.parametrize("folder", ["", "models/", "./"])
def test_the_file_of_a_model_is_always_a_path(runtime: str, folder: str) -> None:
    model = full_model(runtime)
    file = folder + model.get("source", "weights.pt").rpartition("/")[2]
    (problem,) = problems(steps=[{"name": "score", "model": {**model, "source": file}}])
    assert problem.startswith(f"spec.steps[0].model.source: '{file}' is a relative path")


def test_a_torch_model_that_a_function_makes_has_no_path() -> None:
    assert problems(**torch(factory="own:build")) == []
    assert problems(**torch(factory="own:build", source="/models/weights.pt")) == []


@pytest.mark.parametrize("path", ["out", "./out", "/out", "file:///out", "~/out"])
def test_output_on_the_disk_of_a_pod_is_refused(path: str) -> None:
    message = f"'{path}' is not on a mounted volume, so it would be lost: {WAY_OUT}"
    assert problems(**writing(path)) == [f"spec.write.path: {message}"]
    assert problems(errors={"path": path}) == [f"spec.errors.path: {message}"]


@pytest.mark.parametrize(
    ("path", "volumes"),
    [
        pytest.param("/data/out", [volume("/data")], id="below a volume"),
        pytest.param("/data", [volume("/data/")], id="the volume itself"),
        pytest.param("file:///data/out", [volume("/data")], id="with a scheme"),
        pytest.param("/data/a/../out", [volume("/data")], id="up and down within it"),
        pytest.param(
            "/data/out", [volume("/data", source={"hostPath": {"path": "/d"}})], id="of the node"
        ),
        pytest.param(
            "/data/out/x",
            [volume("/data", "all", readOnly=True), volume("/data/out", "out")],
            id="a volume that can be written within one that cannot",
        ),
    ],
)
def test_output_on_a_writable_volume_is_accepted(path: str, volumes: list[Document]) -> None:
    assert problems(*volumes, **writing(path)) == []


@pytest.mark.parametrize(
    ("path", "volumes"),
    [
        pytest.param("/data/out", [volume("/data", readOnly=True)], id="read-only"),
        pytest.param("/database/out", [volume("/data")], id="a name that only begins alike"),
        pytest.param("/data/../out", [volume("/data")], id="out of the volume again"),
        pytest.param(
            "/data/out", [volume("/data", source={"configMap": {"name": "c"}})], id="a ConfigMap"
        ),
        pytest.param(
            "/data/out", [volume("/data", source={"secret": {"secretName": "s"}})], id="a Secret"
        ),
        pytest.param(
            "/data/in/x",
            [volume("/data", "all"), volume("/data/in", "in", readOnly=True)],
            id="a volume that cannot be written within one that can",
        ),
    ],
)
def test_output_on_a_read_only_volume_is_refused(path: str, volumes: list[Document]) -> None:
    (problem,) = problems(*volumes, **writing(path))
    assert problem.startswith(f"spec.write.path: '{path}' is not on a mounted volume")


def test_all_invalid_paths_are_reported() -> None:
    spec = {**reading("a", "b"), **writing("c"), **transformers("./d"), "errors": {"path": "e"}}
    assert [problem.split(":")[0] for problem in problems(**spec)] == [
        "spec.read.paths[0]",
        "spec.read.paths[1]",
        "spec.steps[0].model.source",
        "spec.write.path",
        "spec.errors.path",
    ]


def test_a_job_with_such_paths_is_not_rendered() -> None:
    with pytest.raises(SpecError, match="is a relative path"):
        render(job(**reading("./data")))
