"""A document that uses nearly every field, and documents that differ from another in one place."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from support.documents import document, model_step, python_step

Document = dict[str, Any]
Place = tuple[str | int, ...]
"""Keys and indexes that lead to a value."""

REMOVED = object()
"""Instead of a value: the field is taken away."""


def full_document(name: str = "full") -> Document:
    """Valid, and with every field that does not exclude another that is here."""
    return document(
        name,
        read={
            "format": "images",
            "paths": ["s3://in/train/", "s3://in/more/*.png"],
            "storage": {"endpoint": "https://minio.example:9000", "region": "eu-west-1"},
            "options": {
                "include_paths": True,
                "file_extensions": ["png"],
                "mode": "RGB",
                "size": [224, 320],
            },
        },
        steps=_steps(),
        write={
            "format": "parquet",
            "path": "s3://out/result/",
            "storage": {"anonymous": True},
            "mode": "overwrite",
            "columns": ["score", "class"],
            "partitionBy": ["class"],
            "rowsPerFile": 1000,
            "compression": "zstd",
        },
        errors={"maxRows": 10, "maxPercent": 0.5, "path": "s3://out/errors/"},
        cluster=_cluster(),
    )


def _steps() -> list[Document]:
    embedding = model_step(
        "embed",
        batchSize=64,
        replicas={"min": 2, "max": 8},
        resources={"cpu": 2, "gpu": 1, "memory": "5Gi", "acceleratorType": "T4"},
    )
    embedding["model"] |= {
        "task": "image-feature-extraction",
        "inputs": {"image": "image"},
        "pooling": "cls",
        "normalize": True,
        "options": {"use_fast": True},
    }
    torch = model_step("score", resources={"cpu": 0.5, "custom": {"XPU": 1}})
    torch["model"] = {
        "runtime": "torch",
        "factory": "own.models:build",
        "factoryArgs": {"width": 4},
        "source": "s3://models/weights.pt",
        "inputs": {"x": "embedding"},
        "output": "score",
    }
    own = python_step("own", "own.code:Label", batchSize=8, replicas={"max": 2})
    own["python"] |= {
        "method": "map",
        "constructorArgs": {"labels": ["a", "b"]},
        "callArgs": {"top": 3},
    }
    return [
        {"name": "label", "labelFromPath": {"column": "class", "index": -2}},
        embedding,
        torch,
        own,
        {"name": "keep", "filter": "score >= 0.5"},
        {"name": "select", "selectColumns": ["path", "class", "score"]},
        {"name": "drop", "dropColumns": ["path"]},
        {"name": "rename", "renameColumns": {"score": "rating"}},
        {"name": "each", "explode": {"column": "rating"}},
        {"name": "cut", "repartition": {"rowsPerBlock": 1000}},
        _nearest(),
        _legacy(),
    ]


def _nearest() -> Document:
    nearest = {
        **{
            "path": "s3://out/index/",
            "storage": {"region": "eu-1"},
            "indexColumn": "embedding",
            "columns": ["path"],
        },
        **{"column": "rating", "k": 3, "output": "matches"},
    }
    return {"name": "near", "nearest": nearest, "batchSize": 512, "resources": {"cpu": 2}}


def _legacy() -> Document:
    legacy = python_step("legacy", "old.code:Predictor", batchSize="auto")
    columns = {"input": "rating", "output": "score"}
    legacy["python"] |= {
        "predictBatch": columns,
        "constructorRefs": {"model": "old.code:network"},
    }
    return legacy


def _cluster() -> Document:
    secret = {"name": "s3", "key": "secret"}
    return {
        "image": "registry.example/pipeline:1",
        "imagePullPolicy": "IfNotPresent",
        "imagePullSecrets": [{"name": "registry"}],
        "serviceAccountName": "reader",
        "env": [
            {"name": "AWS_REGION", "value": "eu-west-1"},
            {"name": "AWS_SECRET_ACCESS_KEY", "valueFrom": {"secretKeyRef": secret}},
            {"name": "LEVEL", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "level"}}},
        ],
        "volumes": [
            {
                "name": "data",
                "mountPath": "/data",
                "readOnly": True,
                "persistentVolumeClaim": {"claimName": "data"},
            },
            {"name": "node", "mountPath": "/node", "hostPath": {"path": "/var/data"}},
            {"name": "config", "mountPath": "/config", "configMap": {"name": "config"}},
            {"name": "secret", "mountPath": "/secret", "secret": {"secretName": "secret"}},
        ],
        "nodeSelector": {"pool": "gpu"},
        "tolerations": [
            {"key": "gpu", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60},
            {"key": "team", "value": "vision"},
        ],
        "priorityClassName": "batch",
        "requests": {"cpu": 0.5, "memory": "512Mi"},
        "head": {"cpu": 1.5, "memory": "6Gi"},
        "workers": {"cpu": 4, "memory": "8Gi", "min": 1, "max": 4},
        "profiles": {
            "T4": {"nodeSelector": {"nvidia.com/gpu.product": "Tesla-T4"}},
            "XPU": {
                "resource": "vendor.example/xpu",
                "device": "xpu",
                "tolerations": [{"key": "xpu", "operator": "Exists"}],
                "env": [{"name": "XPU_LEVEL", "value": "1"}],
                "runtimeClassName": "xpu",
            },
        },
    }


def places(value: Any, place: Place = ()) -> Iterator[Place]:
    """Every place below a value."""
    below = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in below:
        yield (*place, key)
        if isinstance(child, dict | list):
            yield from places(child, (*place, key))


def at(value: Any, place: Place) -> Any:
    for key in place:
        value = value[key]
    return value


def changed(original: Document, place: Place, value: Any) -> Document:
    """The document with another value in one place, which need not be there yet."""
    result = copy.deepcopy(original)
    parent = at(result, place[:-1])
    if value is REMOVED:
        del parent[place[-1]]
    elif isinstance(parent, list) and place[-1] == len(parent):
        parent.append(value)
    else:
        parent[place[-1]] = value
    return result


def named(place: Place) -> str:
    """The place as it stands in messages of the API server and of the parser."""
    words = (f"[{key}]" if isinstance(key, int) else f".{key}" for key in place)
    return "".join(words).removeprefix(".")


def place_of(name: str) -> Place:
    """The other way round, from `spec.steps.0.name`."""
    return tuple(int(word) if word.isdigit() else word for word in name.split("."))
