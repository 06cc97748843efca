"""Jobs that put texts and their vectors into a store by key."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchinference.spec.report import Report
from support.documents.minimal import Document, document
from support.jobs.on_ray import write_lines
from support.jobs.without_ray import run_without_ray
from support.outputs.rows import Row
from support.outputs.verify_command import verified
from support.servers.stores import FakeOpensearch, LocalQdrant, Store

STORES = {"qdrant": LocalQdrant, "opensearch": FakeOpensearch}
COMPUTED: list[str] = []
"""The texts that the step has computed."""


def embedded(row: Row) -> Row:
    """Return a row with a vector: two numbers in its text after `=`, or none of them."""
    COMPUTED.append(row["text"])
    name, _, numbers = row["text"].partition("=")
    return {**row, "name": name, "vector": [float(number) for number in numbers.split(",")]}


def store_fields(format_: str, store: Store, folder: Path, **fields: Any) -> Row:
    """Return the fields of `write` for the collection or index `rows` of a store."""
    name = {"qdrant": "collection", "opensearch": "index"}[format_]
    common = {"format": format_, "path": str(folder / "out"), "url": store.url, name: "rows"}
    return {**common, "key": ["name"], "vectorColumn": "vector", "dimensions": 2, **fields}


@dataclass
class VectorJob:
    """A job that reads lines such as `a=1,2` and puts a row with name and vector for each."""

    format: str
    folder: Path
    store: Store

    @property
    def output(self) -> Path:
        return self.folder / "out"

    def lines(self, name: str, *lines: str) -> None:
        write_lines(self.folder / "in", {f"{name}.txt": list(lines)})

    def job(self, **fields: Any) -> Document:
        callable_ = {"callable": "support.jobs.vector_jobs:embedded", "method": "map"}
        return document(
            "vectors",
            read={"format": "text", "paths": [str(self.folder / "in")]},
            write=store_fields(self.format, self.store, self.folder, **fields),
            steps=[{"name": "embed", "python": callable_}],
            errors={"maxRows": 10},
        )

    def run(self, **fields: Any) -> Report:
        return run_without_ray(self.job(**fields))

    def vectors(self) -> dict[str, list[float]]:
        """Return the vectors in the store by name."""
        return {row["name"]: row["vector"] for row in self.store.rows()}

    def proven(self) -> bool:
        done = verified(self.output, "--trust-output")
        return (done.result, done.counts) == ("proven", {})
