"""Local paths in a job that runs on a cluster, where each pod has its own disk."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.rendering.cluster_checks import check_paths
from batchinference.spec import SpecError
from plugins.messages import Messages
from support.documents.minimal import Document, model_step, python_step
from support.documents.parsed import job, spec_of
from support.documents.runtimes import full_model
from support.operator.rendered import render

CLAIM = {"persistentVolumeClaim": {"claimName": "c"}}


def volume(path: str, name: str = "data", **fields: Any) -> Document:
    """Return a mount with its volume in the field `source`."""
    return {"name": name, "mountPath": path, "source": CLAIM, **fields}


def problems(*volumes: Document, **spec: Any) -> list[str]:
    sources = [{"name": one["name"], **one["source"]} for one in volumes]
    mounts = [{key: one[key] for key in one if key != "source"} for one in volumes]
    made = spec_of(**spec, cluster={"volumes": sources, "volumeMounts": mounts})
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


SQL = {"format": "sql", "query": "SELECT 1"}


def own_code(model: str) -> Document:
    step = python_step()
    step["python"]["constructorArgs"] = {"model": model}
    return {"steps": [step]}


@pytest.mark.parametrize(
    "spec",
    [
        *(
            reading("s3://in/", path)
            for path in ("data", "./data", "../data/*.txt", "~/data", "file://data")
        ),
        {"read": {"format": "lance", "path": "./a.lance"}},
        {"read": {"format": "huggingface", "name": "./set"}},
        {"read": {**SQL, "url": "sqlite:///data/a.db"}},
        *(transformers(path) for path in ("./model", "../model", "~/model", ".", "file://model")),
        own_code("../m"),
    ],
)
def test_relative_path_is_refused(spec: Document, messages: Messages) -> None:
    messages.check(problems(**spec))


@pytest.mark.parametrize(
    "spec",
    [
        reading("/data/in"),
        reading("file:///data/in"),
        {"read": {"format": "lance", "path": "gs://in/a.lance"}},
        {"read": {"format": "lance", "path": "/data/a.lance"}},
        {"read": {"format": "huggingface", "name": "org/set"}},
        {"read": {"format": "huggingface", "name": "/data/set"}},
        {"read": {**SQL, "url": "sqlite:////data/a.db"}},
        {"read": {**SQL, "url": "postgresql://host/db"}},
        {"read": {**SQL, "urlEnv": "DATABASE_URL"}},
        transformers("org/model"),
        transformers("model"),
        transformers("/models/clip"),
        transformers("file:///models/clip"),
        own_code("org/model"),
        torch(factory="own:build"),
        torch(factory="own:build", source="/models/weights.pt"),
    ],
    ids=str,
)
def test_absolute_path_or_address_is_accepted(spec: Document) -> None:
    assert problems(**spec) == []


@pytest.mark.parametrize("runtime", ["torch", "torchvision", "onnx"])
@pytest.mark.parametrize("folder", ["", "models/", "./"])
def test_relative_model_file_is_refused(runtime: str, folder: str, messages: Messages) -> None:
    model = full_model(runtime)
    file = folder + model.get("source", "weights.pt").rpartition("/")[2]
    (problem,) = problems(steps=[{"name": "score", "model": {**model, "source": file}}])
    messages.check(problem)


@pytest.mark.parametrize("path", ["out", "./out", "/out", "file:///out", "~/out"])
def test_output_on_the_disk_of_a_pod_is_refused(path: str, messages: Messages) -> None:
    messages.check(problems(**writing(path)))
    messages.check(problems(errors={"path": path}))


@pytest.mark.parametrize(
    ("path", "volumes"),
    [
        ("/data/out", [volume("/data")]),
        ("/data", [volume("/data/")]),
        ("file:///data/out", [volume("/data")]),
        ("/data/a/../out", [volume("/data")]),
        ("/data/out", [volume("/data", source={"hostPath": {"path": "/d"}})]),
        ("/data/out", [volume("/data", source={"csi": {"driver": "x"}})]),
        ("/data/out", [volume("/data", source={"nfs": {"server": "s", "path": "/"}})]),
        ("/data/out/x", [volume("/data", "all", readOnly=True), volume("/data/out", "out")]),
    ],
)
def test_output_on_a_writable_volume_is_accepted(path: str, volumes: list[Document]) -> None:
    assert problems(*volumes, **writing(path)) == []


@pytest.mark.parametrize(
    ("path", "volumes"),
    [
        ("/data/out", [volume("/data", readOnly=True)]),
        ("/database/out", [volume("/data")]),
        ("/data/../out", [volume("/data")]),
        ("/data/out", [volume("/data", source={"configMap": {"name": "c"}})]),
        ("/data/out", [volume("/data", source={"secret": {"secretName": "s"}})]),
        ("/data/out", [volume("/data", source={"emptyDir": {}})]),
        ("/data/out", [volume("/data", source={"image": {"reference": "x"}})]),
        ("/data/out", [volume("/data", source={"csi": {"driver": "x", "readOnly": True}})]),
        (
            "/data/out",
            [
                volume(
                    "/data", source={"persistentVolumeClaim": {"claimName": "c", "readOnly": True}}
                )
            ],
        ),
        ("/data/in/x", [volume("/data", "all"), volume("/data/in", "in", readOnly=True)]),
    ],
)
def test_output_on_a_volume_that_keeps_no_files_is_refused(
    path: str, volumes: list[Document], messages: Messages
) -> None:
    (problem,) = problems(*volumes, **writing(path))
    messages.check(problem)


def test_invalid_paths_are_reported_together() -> None:
    spec = {**reading("a", "b"), **writing("c"), **transformers("./d"), "errors": {"path": "e"}}
    with pytest.raises(SpecError) as refused:
        render(job(**spec))
    assert [problem.path for problem in refused.value.problems] == [
        "spec.read.paths[0]",
        "spec.read.paths[1]",
        "spec.steps[0].model.source",
        "spec.write.path",
        "spec.errors.path",
    ]


def sql(url: str) -> Document:
    return {"format": "sql", "table": "rows", "url": url}


def iceberg(**properties: str) -> Document:
    return {"format": "iceberg", "table": "ns.rows", "catalog": {"properties": properties}}


def cached(path: str) -> Document:
    spec = transformers("s3://b/model")
    spec["steps"][0]["cache"] = {"path": path}
    return spec


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        ({"write": sql("sqlite:////tmp/x.db")}, ["spec.write.url"]),
        ({"write": sql("sqlite:///x.db")}, ["spec.write.url"]),
        ({"write": sql("sqlite:////data/x.db")}, []),
        ({"write": sql("postgresql://db/x")}, []),
        ({"write": iceberg(uri="sqlite:////tmp/c.db")}, ["spec.write.catalog.properties.uri"]),
        ({"write": iceberg(warehouse="/tmp/w")}, ["spec.write.catalog.properties.warehouse"]),
        ({"write": iceberg(uri="http://catalog", warehouse="prod")}, []),
        ({"write": iceberg(uri="sqlite:////data/c.db", warehouse="/data/w")}, []),
        (cached("c"), ["spec.steps[0].cache.path"]),
        (cached("/tmp/c"), ["spec.steps[0].cache.path"]),
        (cached("/data/c"), []),
        (cached("s3://b/c"), []),
    ],
)
def test_table_and_cache_outlive_the_pods(spec: Document, fields: list[str]) -> None:
    """With a shared volume at /data."""
    write = {"path": "s3://out/", "format": "parquet", **spec.get("write", {})}
    problem = problems(volume("/data"), **{**spec, "write": write})
    assert [problem.split(": ")[0] for problem in problem] == fields
