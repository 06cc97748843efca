"""Runs cases with one tool in a process of its own: `python -m traps.worker TOOL DIRECTORY`.

Each line of the standard input is the id of a case, whose input is below the directory. Each line
of the standard output is its verdict as JSON. BatchInference runs the first case of each kind on
Ray, and the others in the same process without it, which is ten times as fast.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from traps import peers, product
from traps.case import Case, Outcome
from traps.cases import CASES
from traps.verdict import Judged, Verdict, judge

OURS = "batchinference"
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "DAFT_ANALYTICS_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Environment variables without which the tools would use the network."""


def judged(case: Case, tool: str, directory: Path) -> Judged:
    """Run a case with a tool, and return the verdict."""
    try:
        outcome = _outcome(case, tool, directory)
    except peers.NotSupported as reason:
        return Judged(Verdict.NONE, str(reason))
    return judge(case, outcome, directory, ours=tool == OURS)


def _outcome(case: Case, tool: str, directory: Path) -> Outcome:
    if tool == OURS:
        first = case.id.endswith(".a")
        return product.outcome_of(case, directory, product.on_ray if first else product.without_ray)
    return peers.outcome_of(case, tool, directory)


def start_ray() -> None:
    import ray
    import ray.data

    os.environ.setdefault("RAY_worker_niceness", "0")
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        object_store_memory=300 << 20,
    )
    ray.data.DataContext.get_current().enable_progress_bars = False


def main(tool: str, directory: str, say: Callable[[str], object]) -> None:
    if tool in (OURS, "ray"):
        start_ray()
    for line in sys.stdin:
        case = CASES[line.strip()]
        result = judged(case, tool, Path(directory) / case.id)
        say(json.dumps([case.id, result.verdict, result.detail[:500]]) + "\n")


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the tools print is no answer
    main(sys.argv[1], sys.argv[2], answers.write)
