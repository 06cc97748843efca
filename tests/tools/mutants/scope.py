"""What is mutated: the pure core, and the modules of the commit protocol."""

from __future__ import annotations

from pathlib import Path

SOURCES = ("jobs/src", "operator/src")
CORE = (
    "batchinference/plan",
    "batchinference/rendering",
    "batchinference_operator/reconcile",
    "batchinference_operator/status",
)
PIPELINE = "batchinference/pipeline"
COMMITS = tuple(
    f"{PIPELINE}/{part}"
    for part in (
        "commit",
        "execution/sink.py",
        "input/snapshot.py",
        "storage/checksummed_json.py",
        "storage/location.py",
    )
)
SCOPES = {"core": CORE, "commits": COMMITS}
TESTS = {
    "core": ("tests/unit/plan", "tests/unit/rendering", "tests/unit/operator"),
    "commits": ("tests/pipeline/jobs",),
}
"""Which tests are to find the mutants of a scope."""


def files(tree: Path, scope: str) -> list[Path]:
    """The source files of a scope, below a checkout."""
    roots = [tree / source / part for source in SOURCES for part in SCOPES[scope]]
    return sorted(
        file for root in roots for file in ([root] if root.is_file() else root.rglob("*.py"))
    )


def module_of(file: Path) -> str:
    """The importable name of a source file."""
    parts = file.with_suffix("").parts
    return ".".join(parts[len(parts) - parts[::-1].index("src") :]).removesuffix(".__init__")
