"""Formats, steps and runtimes are told apart only in their own modules and where they are
registered: all other modules ask their classes. CONTRIBUTING says what to write for a new one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest

from batchinference.spec.models import RUNTIMES
from batchinference.spec.read import Read
from batchinference.spec.steps import Step
from batchinference.spec.write import Write

ROOT = Path(__file__).parents[2]
JOBS = ROOT / "jobs/src/batchinference"
MODULES = sorted(path for path in JOBS.rglob("*.py") if "templates" not in path.parts)


def members(union: Any) -> list[type]:
    """Return the classes of a union with a discriminator, which may hold further unions."""
    parts = [part for part in get_args(union) if get_args(part) or isinstance(part, type)]
    return [one for part in parts for one in (members(part) if get_args(part) else [part])]


def formats_of(classes: list[type]) -> set[str]:
    return {get_args(kind.model_fields["format"].annotation)[0] for kind in classes}  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Kind:
    """What can be added: the classes in the specification, their names in YAML, the attributes that
    hold such a name, and the modules that may tell them apart."""

    classes: set[str]
    names: set[str]
    attribute: str
    own: tuple[str, ...]
    others: tuple[str, ...] = ()
    """Modules in which the feature is about one format: see the comments."""


READ, WRITE = members(Read), members(Write)
KINDS = {
    "a read format": Kind(
        {kind.__name__ for kind in READ},
        formats_of(READ),
        "format",
        ("spec/read/", "pipeline/input/readers/", "pipeline/input/sources/", "pipeline/output/"),
    ),
    "an output format": Kind(
        {kind.__name__ for kind in WRITE},
        formats_of(WRITE),
        "format",
        ("spec/write/", "pipeline/output/writers/", "pipeline/output/tables/"),
        # reads typed tables of Parquet and CSV, and rows of all other formats
        # counts rows without the code that has written them
        ("pipeline/output/output_rows.py", "pipeline/verify/file_check.py"),
    ),
    "a runtime": Kind(
        {model.__name__ for model in RUNTIMES.values()},
        set(RUNTIMES),
        "runtime",
        ("spec/models/", "pipeline/runtimes/"),
    ),
    "a step": Kind(
        {"Chunk", "Explode", "LabelFromPath", "PythonStep"},
        set(Step.kinds()),
        "kind",
        ("spec/steps.py", "pipeline/steps/"),
    ),
}


@cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def constants(node: ast.AST) -> list[Any]:
    return [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]


def names_in(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def distinctions(path: Path, kind: Kind) -> Iterator[int]:
    """Yield the lines in which code tells classes of a kind apart: by type, by pattern, by name, or
    with a table of names."""
    for node in nodes(path):
        match node:
            case ast.Call(func=ast.Name("isinstance" | "issubclass"), args=[_, given]):
                classes = kind.classes & names_in(given)
            case ast.MatchClass(cls=ast.Name(name)):
                classes = kind.classes & {name}
            case ast.Compare(left=ast.Attribute(attr=attribute)) if attribute == kind.attribute:
                classes = kind.names & set(constants(node))
            case ast.Dict(keys=keys) | ast.Tuple(elts=keys) | ast.List(elts=keys):
                texts = [key.value for key in keys if isinstance(key, ast.Constant)]
                classes = set(texts) if len(texts) > 2 and kind.names.issuperset(texts) else set()
            case _:
                continue
        if classes:
            yield node.lineno


@pytest.mark.parametrize("kind", KINDS)
def test_only_own_modules_tell_kinds_apart(kind: str) -> None:
    by_name = {
        name: lines
        for path in MODULES
        if not (name := str(path.relative_to(JOBS))).startswith(KINDS[kind].own)
        if (lines := list(distinctions(path, KINDS[kind])))
    }
    assert {name: lines for name, lines in by_name.items() if name not in KINDS[kind].others} == {}
    assert [name for name in KINDS[kind].others if name not in by_name] == []


def test_steps_are_not_told_apart_by_their_fields() -> None:
    kinds = set(Step.kinds()) - {"model"}  # a model is more than a kind of step
    for path in MODULES:
        name = str(path.relative_to(JOBS))
        if name.startswith(("spec/steps.py", "pipeline/steps/")):
            continue
        used = {
            node.attr
            for node in nodes(path)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
            if node.value.id == "step" and node.attr in kinds
        }
        assert used == set(), name


ROW = re.compile(r"^\| (an? [a-z ]+) \| (.+) \| (.+) \| \[.+\]\((.+)\) \|$", re.MULTILINE)
EXAMPLES = {
    "a read format": ("webdataset", r"ReadWebdataset|Webdataset(Options|Reader)"),
    "an output format": ("json", "WriteJson|JsonWriter"),
    "an output table": ("lance", "WriteLance|LanceTable"),
    "a runtime": ("onnx", "Onnx(Model|Runtime)"),
    "a step": ("chunk", "class Chunk|spec.chunk import Chunk|ChunkText"),
}
"""An example of each kind, and its classes."""


def test_contributing_names_all_files_of_each_kind() -> None:
    rows = {name: cells for name, *cells in ROW.findall((ROOT / "CONTRIBUTING.md").read_text())}
    assert rows.keys() == EXAMPLES.keys() > KINDS.keys()
    for name, (*cells, page) in rows.items():
        example, classes = EXAMPLES[name]
        files = {
            file.replace("NAME", example)
            for cell in cells
            for file in re.findall(r"`([\w/]+\.py)`", cell)
        }
        named = re.compile(rf"\b({classes})\b")
        using = {str(path.relative_to(JOBS)) for path in MODULES if named.search(path.read_text())}
        assert using == files, name
        assert example in (ROOT / page).read_text()
