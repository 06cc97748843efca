"""Rules of the repository that no other tool keeps: layers, weights, sizes, words."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
JOBS = ROOT / "jobs/src/batchinference"
OPERATOR = ROOT / "operator/src/batchinference_operator"
SOURCES = sorted([*JOBS.rglob("*.py"), *OPERATOR.rglob("*.py")])
LONGEST = 60
LONG = 35
MAY_BE_LONG = 5
"""CONTRIBUTING: a function has about 10 lines, hardly ever over 35, never over 60."""
HEAVY = ("ray", "pyarrow", "torch", "transformers", "numpy", "pandas", "PIL")
KUBERNETES = ("kopf", "kubernetes")
NETWORK = (*KUBERNETES, "aiohttp")
BASE = {"pydantic", "pydantic_core", "yaml", "batchinference"}
"""What the light part of `jobs` may import: the operator installs no more of it."""


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> Iterator[str]:
    """The first words of all modules that a file imports, wherever in it."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """The functions of a file, and the lines from `def` to the last."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
            yield f"{name_of(path)}:{node.lineno} {node.name}", node.end_lineno - node.lineno + 1


def test_the_sources_are_found() -> None:
    assert JOBS / "spec/problems.py" in SOURCES
    assert OPERATOR / "runtime/main.py" in SOURCES


def test_the_layers_hold() -> None:
    command = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())"
    done = subprocess.run(
        [sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 kept, 0 broken" in done.stdout


@pytest.mark.parametrize(
    ("modules", "unwanted"),
    [
        ("batchinference.spec", HEAVY + NETWORK),
        ("batchinference.plan", HEAVY + NETWORK),
        ("batchinference.rendering", HEAVY + NETWORK),
        ("batchinference.cli.main", HEAVY + NETWORK),
        ("batchinference_operator.status.status", HEAVY + NETWORK),
        ("batchinference_operator.reconcile.reconcile", HEAVY + NETWORK),
        ("batchinference_operator.runtime.main", HEAVY),
    ],
)
def test_a_light_module_imports_nothing_heavy(modules: str, unwanted: tuple[str, ...]) -> None:
    command = f"import sys, {modules}; print(*sorted(sys.modules.keys() & set({unwanted})))"
    done = subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


@pytest.mark.parametrize("package", ["spec", "plan", "rendering"])
def test_the_base_of_jobs_needs_two_packages(package: str) -> None:
    for path in sorted((JOBS / package).rglob("*.py")):
        outside = set(imports(path)) - BASE - sys.stdlib_module_names
        assert outside == set(), name_of(path)


def test_only_the_operators_runtime_talks_to_kubernetes() -> None:
    talking = {path for path in SOURCES if set(imports(path)) & set(KUBERNETES)}
    assert talking
    assert {path.parent for path in talking} == {OPERATOR / "runtime"}


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_no_function_is_longer_than_60_lines(path: Path) -> None:
    assert [name for name, lines in functions(path) if lines > LONGEST] == []


def test_hardly_any_function_is_longer_than_35_lines() -> None:
    long = [name for path in SOURCES for name, lines in functions(path) if lines > LONG]
    assert len(long) <= MAY_BE_LONG, long


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_a_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(parsed(path))


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_nothing_is_left_to_be_done(path: Path) -> None:
    marks = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX|HA" + r"CK)\b")
    text = path.read_text(encoding="utf-8")
    assert [line for line in text.splitlines() if marks.search(line)] == []
