"""The mutated modules: the pure core and the commit protocol."""

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
        "row_batch.py",
        "execution/block_codec.py",
        "execution/chunk_commits.py",
        "execution/commit_tasks.py",
        "execution/crash_isolation.py",
        "input/input_snapshot.py",
        "storage/state_json.py",
        "storage/location.py",
    )
)
SCOPES = {"core": CORE, "commits": COMMITS}
TESTS = {
    "core": (
        *("tests/unit/plan", "tests/unit/mistakes", "tests/unit/rendering", "tests/unit/operator"),
        "tests/pipeline/data/test_flat_tokens.py",
    ),
    "commits": (
        "tests/pipeline/jobs",
        *(
            f"tests/pipeline/data/test_{name}.py"
            for name in (
                *("block_codec", "clouds", "code_hashes", "hostile_files", "missing_rows"),
                *("row_batch", "row_ids", "storage"),
            )
        ),
    ),
}
"""The tests that should find the mutants of each scope."""


def files(tree: Path, scope: str) -> list[Path]:
    """Return the source files of a scope in a checkout."""
    roots = [tree / source / part for source in SOURCES for part in SCOPES[scope]]
    return sorted(
        file for root in roots for file in ([root] if root.is_file() else root.rglob("*.py"))
    )


def module_of(file: Path) -> str:
    """Return the module name of a source file."""
    parts = file.with_suffix("").parts
    return ".".join(parts[len(parts) - parts[::-1].index("src") :]).removesuffix(".__init__")
