"""Checks that an output has each row once: by `batchinference verify`, and by reading the output
and comparing it with the expected rows."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pyarrow.dataset as pads
from deltalake import DeltaTable

from chaos.inputs import number_of
from chaos.jobs import Job, Pair
from chaos.store import ChaosStore

Thing = TypeVar("Thing")


@dataclass
class Proof:
    """The result of the checks: missing and duplicate rows, driver runs, and all problems."""

    missing: int = 0
    duplicated: int = 0
    runs: int = 0
    problems: list[str] = field(default_factory=list)


def prove(job: Job, store: ChaosStore) -> Proof:
    proof = Proof()
    _ask_verify(job, store, proof)
    with tempfile.TemporaryDirectory() as directory:
        output = store.download(job.output, Path(directory))
        report = json.loads((output / "_batchinference/report.json").read_text())
        proof.runs = report["passNumber"]
        if report["counts"] != job.counts():
            proof.problems.append(f"report.json counts {report['counts']}, not {job.counts()}")
        _compare(proof, "row of the output", job.rows(), rows_in(output, job.writes))
        _compare(proof, "error", job.errors(), errors_in(output))
    return proof


def _ask_verify(job: Job, store: ChaosStore, proof: Proof) -> None:
    """Run `batchinference verify` and record its findings in `proof`."""
    result = store.verified(store.uri(job.output))
    findings = [*result["findings"], *(f for one in result["jobs"] for f in one["findings"])]
    counts = {finding["kind"]: finding["count"] for finding in findings}
    proof.missing, proof.duplicated = counts.get("missing", 0), counts.get("duplicated", 0)
    if result["result"] != "proven" or findings:
        proof.problems.append(f"verify: {json.dumps(result)}")


def _compare(proof: Proof, what: str, wanted: Counter[Thing], counts: Counter[Thing]) -> None:
    for kind, difference in (("missing", wanted - counts), ("unexpected", counts - wanted)):
        if difference:
            proof.problems.append(f"{what} {kind}: {difference.total()}, {_some(difference)}")


def _some(things: Counter[Any]) -> str:
    return ", ".join(map(str, sorted(things)[:5]))


def rows_in(output: Path, form: str) -> Counter[Pair]:
    """Count the rows of an output, without the product's code."""
    return Counter(_columns(output, form, "number", "part"))


def errors_in(output: Path) -> Counter[int]:
    columns = _columns(output / "_batchinference/errors", "parquet", "path", "row")
    return Counter(number_of(path, row) for path, row in columns)


def _columns(directory: Path, form: str, *names: str) -> Iterator[tuple[Any, ...]]:
    if form == "delta":
        rows = DeltaTable(directory).to_pyarrow_dataset()
    else:
        rows = pads.dataset(directory, format=form)
    table = rows.to_table(columns=list(names))
    return zip(*(table.column(name).to_pylist() for name in names), strict=True)
