"""Error messages of invalid documents, and valid documents that together use every field."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.spec import BatchInference, SpecError, parse, parse_one
from support.documents import http_models as endpoints
from support.documents.minimal import Document, document, model_step, python_step
from support.documents.runtimes import FULL_MODELS, full_model
from support.documents.variations import REMOVED, changed, full_document, keys_of
from support.documents.vllm_models import full_requests, full_vllm_step, vllm_step
from support.documents.yaml_files import PARTS


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


def refused_at(keys: str, value: Any, base: Document | None = None) -> str:
    """Return the error message about a value at a path of a valid document."""
    return refused(with_value(keys, value, base))


def accepted_at(keys: str, value: Any, base: Document | None = None) -> BatchInference:
    return parse(with_value(keys, value, base))


def with_value(keys: str, value: Any, base: Document | None = None) -> Document:
    """Return the document, by default the full one, with one value replaced."""
    return changed(full_document() if base is None else base, keys_of(keys), value)


READ_OPTIONS: dict[str, dict[str, Any]] = PARTS["readOptions"]
SOURCES: dict[str, Document] = PARTS["sources"]


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


def reading_source(name: str, **fields: Any) -> Document:
    """Return a document that reads one of these sources, with some fields replaced."""
    return document(read={"format": name, **SOURCES[name], **fields})


def writing(format: str, **fields: Any) -> Document:
    return document(write={"format": format, "path": "s3://out/", **fields})


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
        **{f"write {name}": writing(**fields) for name, fields in PARTS["writes"].items()},
    }


def short(value: Any) -> str:
    """Return a short text for a value, for the id of a test."""
    if value is REMOVED:
        return "removed"
    if isinstance(value, int) and abs(value) > 2**64:
        return "huge"
    return (value if isinstance(value, str) else repr(value))[:40]
