"""Error messages of invalid documents, and valid documents that together use every field."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.spec import BatchInference, SpecError, parse, parse_one
from support.documents import http_models as endpoints
from support.documents.minimal import Document, document, model_step, python_step
from support.documents.runtimes import FULL_MODELS, full_model
from support.documents.variations import REMOVED, changed, full_document, place_of
from support.documents.vllm_models import full_requests, full_vllm_step, vllm_step


def refused(value: Any) -> str:
    """Return the error messages about a document, one per line."""
    with pytest.raises(SpecError) as caught:
        parse(value)
    return str(caught.value)


def refused_text(text: str) -> str:
    """Return the error message about a YAML text."""
    with pytest.raises(SpecError) as caught:
        parse_one(text)
    return str(caught.value)


def refused_at(place: str, value: Any, base: Document | None = None) -> str:
    """Return the error message about a value at a path of a valid document."""
    return refused(with_value(place, value, base))


def accepted_at(place: str, value: Any, base: Document | None = None) -> BatchInference:
    return parse(with_value(place, value, base))


def with_value(place: str, value: Any, base: Document | None = None) -> Document:
    """Return the document, by default the full one, with one value replaced."""
    return changed(full_document() if base is None else base, place_of(place), value)


FRAME_OPTIONS: dict[str, Any] = {
    "truncated": "accept",
    "size": [32, 64],
    "maxPixels": 1000,
    "orientation": "ignore",
    "background": "#00ff7f",
}
IMAGE_OPTIONS: dict[str, Any] = {**FRAME_OPTIONS, "mode": "L", "range": [0.0, 4095.0]}
READ_OPTIONS: dict[str, dict[str, Any]] = {
    "images": {"maxRowBytes": 1 << 20, **IMAGE_OPTIONS, "pages": "all"},
    "parquet": {
        "duplicateColumns": "rename",
        "columns": ["id", "text"],
        "assumeTimezone": "UTC",
        "int96": "ns",
    },
    "json": {"maxRowBytes": 1 << 20, "lines": False},
    "openaiBatch": {"maxRowBytes": 1 << 20},
    "csv": {
        "maxRowBytes": 1 << 20,
        "duplicateColumns": "rename",
        "delimiter": ";",
        "columnNames": ["id", "text"],
        "encoding": "latin-1",
        "quote": "'",
        "escape": "\\",
        "comment": "#",
        "skipLines": 2,
        "newlinesInValues": False,
        "decimal": ",",
        "nullValues": ["-", ""],
    },
    "text": {"maxRowBytes": 1 << 20, "encoding": "latin-1", "dropEmptyLines": False},
    "binary": {"maxRowBytes": 1 << 20},
    "numpy": {"maxRowBytes": 1 << 20},
    "audio": {
        "maxRowBytes": 1 << 20,
        "truncated": "accept",
        "sampleRate": 16000,
        "mono": True,
    },
    "video": {**FRAME_OPTIONS, "fps": 0.5, "includeTimestamps": True},
    "webdataset": {
        "maxRowBytes": 1 << 20,
        **IMAGE_OPTIONS,
        "decoder": False,
        "suffixes": ["jpg"],
    },
    "manifest": {
        **IMAGE_OPTIONS,
        "column": "url",
        "decode": "image",
        "onUnreachable": "error",
        "allow": ["https://intranet.example/photos/", "s3://photos/", "/data/"],
        "maxBytes": 1024,
    },
    "documents": {
        "maxRowBytes": 1 << 20,
        "rows": "page",
        "render": {"dpi": 100, "maxPixels": 1000},
    },
}
"""The options of each format, without those that all formats have."""


def reading(format_: str, **options: Any) -> Document:
    """Return a document that reads this format, by default with all its options."""
    common = {
        "includePaths": True,
        "pathColumn": "source",
        "types": {"day": "date"},
        "fileExtensions": ["a", "b"],
        "ignoreMissingPaths": True,
        "partitioning": "hive",
        "limit": 10,
        "shuffle": "files",
        "shuffleSeed": 7,
        "overrideNumBlocks": 8,
    }
    own = options or {**common, **READ_OPTIONS[format_]}
    return document(read={"format": format_, "paths": ["s3://in/"], "options": own})


SOURCES: dict[str, Document] = {
    "sql": {
        "query": "SELECT * FROM t",
        "url": "sqlite:///data.db",
        "options": {"shardKeys": ["id"], "shardHashFn": "unicode", "overrideNumBlocks": 4},
    },
    "sql of a secret": {"format": "sql", "query": "SELECT * FROM t", "urlEnv": "DATABASE_URL"},
    "huggingface": {
        "name": "org/data",
        "options": {"config": "en", "split": "train", "revision": "v1", "streaming": False},
    },
    "lance": {
        "path": "s3://in/data.lance",
        "storage": {"region": "eu-west-1"},
        "options": {"columns": ["id"], "filter": "id > 3", "version": 2},
    },
    "delta": {
        "path": "s3://in/table",
        "storage": {"region": "eu-west-1"},
        "options": {
            "columns": ["id"],
            "filter": "id > 3",
            "limit": 5,
            "version": 0,
            "changes": "include",
        },
    },
    "iceberg": {
        "table": "ns.rows",
        "catalog": {"name": "prod", "properties": {"type": "rest", "uri": "http://catalog:8181"}},
        "options": {"columns": ["id"], "filter": "id > 3", "snapshot": 1, "changes": "include"},
    },
    "items": {"items": [{"text": "a", "n": 1}, {"text": "b"}], "options": {"limit": 1}},
}
"""Sources other than files, with every field."""


def reading_source(name: str, **fields: Any) -> Document:
    """Return a document that reads one of these sources, with some fields replaced."""
    return document(read={"format": name, **SOURCES[name], **fields})


def writing(format_: str, **fields: Any) -> Document:
    return document(write={"format": format_, "path": "s3://out/", **fields})


def calling(callable_: str = "module:Class", **fields: Any) -> Document:
    """Return a document with one python step. `fields` are added to `callable`."""
    step = python_step(callable_=callable_)
    step["python"] |= fields
    return document(steps=[step])


def running(model: Document) -> Document:
    """Return a document with one step that runs the model."""
    return document(steps=[model_step(model=model)])


def valid_documents() -> dict[str, Document]:
    """Return valid documents by name. Together they use every field."""
    return {
        "smallest": document(),
        "full": full_document(),
        **{f"read {format_}": reading(format_) for format_ in READ_OPTIONS},
        **{f"read {name}": reading_source(name) for name in SOURCES},
        **{f"http {api}": running(model) for api, model in endpoints.full_models().items()},
        **{f"model {name}": running(full_model(name)) for name in FULL_MODELS},
        "vllm": document(steps=[full_vllm_step()]),
        "reuse": document(steps=[{**vllm_step(), "dedupe": True, "cache": {"path": "s3://c/d"}}]),
        "vllm with requests": document(steps=[vllm_step(**full_requests())]),
        "write parquet": writing("parquet", mode="error", compression="lz4"),
        "write json": writing("json", mode="overwrite", compression="gzip"),
        "write openaiBatch": writing("openaiBatch", customIdColumn="key", responseColumn="answer"),
        "write lance": writing("lance", rowsPerFile=1000),
        "write delta": writing("delta", partitionBy=["class"]),
        "write iceberg": writing(
            "iceberg",
            table="ns.rows",
            catalog={"name": "prod", "properties": {"type": "rest", "uri": "http://catalog:8181"}},
        ),
        "write sql": writing("sql", table="rows", url="postgresql+psycopg://me@db/x"),
        "write sql, address from outside": writing("sql", table="s.rows", urlEnv="DATABASE"),
        "write sql with vectors": writing(
            "sql", table="rows", urlEnv="DATABASE", vectorColumn="e", dimensions=2
        ),
        "write qdrant": writing(
            "qdrant",
            collection="rows",
            urlEnv="QDRANT",
            apiKeyEnv="QDRANT_KEY",
            key=["id"],
            vectorColumn="e",
            dimensions=2,
            distance="dot",
        ),
        "write opensearch": writing(
            "opensearch", index="rows", url="http://search:9200", mode="merge", key=["id"]
        ),
        "write webdataset": writing("webdataset", keyColumn="path"),
    }


def short(value: Any) -> str:
    """Return a short text for a value, for the id of a test."""
    if value is REMOVED:
        return "removed"
    if isinstance(value, int) and abs(value) > 2**64:
        return "huge"
    return (value if isinstance(value, str) else repr(value))[:40]
