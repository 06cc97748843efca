"""Mutation score: how many of 200 small defects in the product the tests find.

    python -m mutants [--tree CHECKOUT]

Half of the defects are in the pure core (plan, rendering, status, reconcile), half in the commit
protocol. They are drawn with a fixed seed, so another checkout with the same product code gets the
same defects. Each half is tested by the suites that scope.py lists for it, without the tests that
need Ray, an API server or an object store. The folder --work stores the progress; the same command
continues from there, unless a tracked file has changed. The exit status is 1 if mutants were not
run.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from .draw import draw
from .forks import CRASHED, TOO_LONG
from .scope import CORE, SOURCES, TESTS
from .store import Mutant, Store

TOOLS = Path(__file__).parents[1]
DETECTED = ["killed", TOO_LONG, CRASHED]
"""With a mutant of the last two outcomes, the tests did not end or their process died."""
OUTCOMES = [*DETECTED, "survived", "no tests", "not run"]


def main() -> int:
    options = _options()
    store = Store(options.work.resolve())
    store.forget_other_versions(f"{_version(options.tree)} {options.count} {options.seed}")
    if not store.mutants:
        store.keep_mutants(draw(options.tree.resolve(), options.count, options.seed))
    end = time.monotonic() + 60 * options.minutes
    for scope in TESTS:
        minutes = (end - time.monotonic()) / 60
        if minutes > 0 and scope in _unfinished(store):
            _run(options, scope, minutes)
    _report(store)
    return bool(_unfinished(store))


def _version(tree: Path) -> str:
    """Return a hash of the tracked files of the checkout, with changes that are not committed."""
    commands = (["git", "ls-files", "--stage"], ["git", "diff", "HEAD"])
    done = [
        subprocess.run(command, cwd=tree, capture_output=True, check=True) for command in commands
    ]
    return hashlib.sha256(b"".join(each.stdout for each in done)).hexdigest()


def _unfinished(store: Store) -> set[str]:
    return {mutant.scope for mutant in store.mutants if mutant.name not in store.results}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="mutants")
    parser.add_argument("--tree", type=Path, default=Path(), help="the checkout to test")
    parser.add_argument("--work", type=Path, default=Path(".mutants"), help="keeps the progress")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=14)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--minutes", type=float, default=60, help="0: report only")
    return parser.parse_args()


def _run(options: argparse.Namespace, scope: str, minutes: float) -> None:
    own = {"": options.work.resolve(), "-scope": scope, "-jobs": options.jobs, "-minutes": minutes}
    given = [f"--mutants{name}={value}" for name, value in own.items()]
    quiet = ["-qqs", "-Wignore", "-pno:cacheprovider"]
    command = [sys.executable, "-mpytest", "-pmutants.plugin", *quiet, *given, *TESTS[scope]]
    subprocess.run(command, cwd=options.tree, env=_environment(options.tree), check=True)


def _environment(tree: Path) -> dict[str, str]:
    """Return an environment that imports the product from the tree, not the installed one."""
    paths = [*(str((tree / source).resolve()) for source in SOURCES), str(TOOLS)]
    paths += filter(None, [os.environ.get("PYTHONPATH")])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}


def _report(store: Store) -> None:
    results = store.results
    outcomes = {m: _outcome(results.get(m.name, {}).get("outcome")) for m in store.mutants}
    print(f"\n{'':32}{'mutants':>9}{''.join(f'{name:>10}' for name in OUTCOMES)}{'score':>9}")
    for part in [*CORE, "batchinference/pipeline"]:
        _print_row(part, (o for m, o in outcomes.items() if f"/{part}/" in m.file))
    _print_row("all", outcomes.values())
    for outcome in OUTCOMES[1:]:
        for mutant in sorted((m for m in outcomes if outcomes[m] == outcome), key=_place):
            print(f"\n{outcome}: {mutant.file}:{mutant.line} in {mutant.function}\n{mutant.diff}")


def _outcome(kept: str | None) -> str:
    if kept is None:
        return "not run"
    return kept if kept in OUTCOMES else "killed"


def _print_row(name: str, outcomes: Iterable[str]) -> None:
    counts = Counter(outcomes)
    total = sum(counts[outcome] for outcome in DETECTED) / max(counts.total(), 1)
    cells = "".join(f"{counts[outcome]:>10}" for outcome in OUTCOMES)
    print(f"{name:32}{counts.total():>9}{cells}{total:>9.1%}")


def _place(mutant: Mutant) -> tuple[str, int]:
    return mutant.file, mutant.line


if __name__ == "__main__":
    sys.exit(main())
