"""Runs all cases with BatchInference and with each other tool that is installed: `make traps`.

    python -m traps                          all cases and tools
    python -m traps --cases R04 R06.a        some cases
    python -m traps --tools daft             some tools
    python -m traps --verbose                with the messages, and how wrong rows differ
    python -m traps --write                  writes the table into docs/contributing/traps.md

Fails if BatchInference is silently wrong in a case, or refuses one without a documented reason.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from support.documents.pages import ROOT
from traps import peers, table
from traps.cases import CASES
from traps.verdict import MAX_REFUSED, Judged, Verdict
from traps.worker import OFFLINE, OURS

PAGE = ROOT / "docs/contributing/traps.md"
NAMES = {OURS: "BatchInference", **peers.NAMES}
SECONDS_TO_START, SECONDS_PER_CASE = 120, 45
OWN_SECONDS_PER_CASE = 180
"""BatchInference runs some cases three times, each with a new model."""
AT_ONCE = 2
"""The number of tools that run at a time."""


@dataclass
class Worker:
    """A process that runs cases with a tool."""

    tool: str
    directory: Path
    _answers: queue.Queue[str] = field(default_factory=queue.Queue)

    def __post_init__(self) -> None:
        log = (self.directory / f"{self.tool}.log").open("a")
        command = [sys.executable, "-m", "traps.worker", self.tool, str(self.directory)]
        paths = os.pathsep.join([str(ROOT / "tests"), *sys.path])
        environment = {**os.environ, **OFFLINE, "PYTHONPATH": paths}
        self._process = subprocess.Popen(
            command, env=environment, cwd=self.directory, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
        )  # fmt: skip
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def run(self, case: str, seconds: float) -> Judged | None:
        """Run a case. Return None if the process died or did not answer in time."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{case}\n")
            self._process.stdin.flush()
            answer = self._answers.get(timeout=seconds)
        except (BrokenPipeError, queue.Empty):
            return None
        if not answer:
            return None
        _, verdict, detail = json.loads(answer)
        return Judged(Verdict(verdict), detail)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


def run_tool(tool: str, cases: Sequence[str], directory: Path) -> dict[str, Judged]:
    """Run cases with a tool. A case that ends its process, or does not end, counts as refused."""
    if tool != OURS and not peers.installed(tool):
        return dict.fromkeys(cases, Judged(Verdict.MISSING))
    results, worker = {}, Worker(tool, directory)
    seconds = SECONDS_TO_START
    for case in cases:
        result = worker.run(case, seconds)
        seconds = OWN_SECONDS_PER_CASE if tool == OURS else SECONDS_PER_CASE
        if result is None:
            worker.end()
            worker, seconds = Worker(tool, directory), SECONDS_TO_START
            result = Judged(Verdict.REFUSED, "the process died, or there was no result in time")
        results[case] = result
        print(f"{NAMES[tool]:16}{case:8}{result.verdict}", flush=True)
    worker.end()
    return results


def chosen(patterns: Sequence[str]) -> Iterator[str]:
    """Yield the ids of the cases that begin with one of the patterns; of all without patterns."""
    return (case for case in CASES if not patterns or case.startswith(tuple(patterns)))


def run_all(tools: Sequence[str], cases: Sequence[str]) -> table.Results:
    """Run cases with several tools, each in a directory of its own, some of them at a time."""
    with tempfile.TemporaryDirectory(prefix="traps-") as directory:
        by_tool = {tool: Path(directory) / tool for tool in tools}
        for location in by_tool.values():
            for case in cases:
                CASES[case].write_input(location / case)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            results = list(pool.map(lambda tool: run_tool(tool, cases, by_tool[tool]), tools))
    return {_title(tool): each for tool, each in zip(tools, results, strict=True)}


def _title(tool: str) -> str:
    """Return the name of a tool, with its version if it is another tool."""
    if tool == OURS or not peers.installed(tool):
        return NAMES[tool]
    return f"{NAMES[tool]} {metadata.version(tool)}"


def failures(own: dict[str, Judged]) -> list[str]:
    """Return why the command fails: BatchInference is wrong, or refuses a case without a reason."""
    wrong = [case for case, each in own.items() if each.verdict == Verdict.WRONG]
    refused = [case for case, each in own.items() if each.verdict == Verdict.REFUSED]
    unknown = [case for case in refused if not CASES[case].refused or len(refused) > MAX_REFUSED]
    lists = {"silently wrong": wrong, "refused without a reason, or too many": unknown}
    return [f"{title}: {', '.join(cases)}" for title, cases in lists.items() if cases]


def main() -> None:
    parser = argparse.ArgumentParser(prog="traps", description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="+", default=(), help="beginnings of the ids of cases")
    parser.add_argument("--tools", nargs="+", default=tuple(NAMES), choices=tuple(NAMES))
    parser.add_argument("--verbose", action="store_true", help="print all messages")
    parser.add_argument("--write", action="store_true", help=f"write the table into {PAGE.name}")
    options = parser.parse_args()
    results = run_all(options.tools, list(chosen(options.cases)))
    print("\n" + table.listed(results))
    own = dict(results.get(NAMES[OURS], {}))
    for name, each in results.items() if options.verbose else [(NAMES[OURS], own)]:
        for case, result in each.items():
            if result.verdict in (Verdict.REFUSED, Verdict.WRONG):
                print(f"\n{name} {case} {result.verdict}: {CASES[case].title}\n    {result.detail}")
                if name == NAMES[OURS] and CASES[case].refused:
                    print(f"    reason: {CASES[case].refused}")
    if options.write:
        PAGE.write_text(table.with_section(PAGE.read_text(), results))
    if failed := failures(own):
        raise SystemExit("; ".join(failed))


if __name__ == "__main__":
    main()
