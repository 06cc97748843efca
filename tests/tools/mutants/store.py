"""Stores data between runs: the mutants, the cost and reach of each test, and the results."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Mutant:
    """One changed function of a module."""

    name: str
    scope: str
    file: str
    module: str
    line: int
    function: str
    """The qualified name of the outermost function."""
    nth: int
    """The index among functions of the same name. A property and its setter share a name."""
    source: str
    """The source of the whole changed module."""
    diff: str


class Store:
    """A folder of JSON Lines files. Work that is stored there is not repeated."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def forget_other_versions(self, version: str) -> None:
        """Delete the data unless it belongs to this version of the product and its tests."""
        file = self._folder / "version"
        if not file.exists() or file.read_text() != version:
            for data in self._folder.glob("*.jsonl"):
                data.unlink()
            file.write_text(version)

    @property
    def mutants(self) -> list[Mutant]:
        return [Mutant(**mutant) for mutant in self._read("mutants")]

    def keep_mutants(self, mutants: list[Mutant]) -> None:
        for mutant in mutants:
            self._append("mutants", dataclasses.asdict(mutant))

    @property
    def measured(self) -> dict[str, dict[str, Any]]:
        """By test file: the cost of each test and the names of the mutants that it reaches."""
        return {line["file"]: line["tests"] for line in self._read("measured")}

    def keep_measured(self, file: str, tests: dict[str, Any]) -> None:
        self._append("measured", {"file": file, "tests": tests})

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        """By mutant: its outcome, or the test that killed it, and the number of its tests."""
        return {line["mutant"]: line for line in self._read("results")}

    def keep_result(self, mutant: str, **result: Any) -> None:
        self._append("results", {"mutant": mutant, **result})

    def _read(self, name: str) -> list[dict[str, Any]]:
        file = self._folder / f"{name}.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def _append(self, name: str, entry: dict[str, Any]) -> None:
        with (self._folder / f"{name}.jsonl").open("a") as file:
            print(json.dumps(entry), file=file)
