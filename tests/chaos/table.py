"""What has happened, as a table for docs/chaos.md."""

from __future__ import annotations

from collections import Counter

from chaos.battle import Blow, Story
from chaos.inputs import ROWS

_HEAD = """# What jobs have survived

Recorded by `make chaos CHAOS_JOBS={jobs} CHAOS_SEED={seed} CHAOS_OPTIONS=--write` on a cluster with
KubeRay 1.6 and one node of two CPUs, on which {at_once} jobs ran at a time, from S3 to S3. Each has
{rows} rows of input, of which one in a hundred raises an error, and is struck by three faults at
random moments; what hits the things that all jobs share counts for all that were running. The jobs
reach S3 through a proxy that cuts connections, delays requests and answers 503: one request in a
hundred, and in a storm (`connections`) every other.

{table}

After each job `batchinference verify` read its input and its output, and an independent reader
compared the rows and the errors with what has to come of the input. *Missing* and *duplicated* are
rows of the input. *Rows done again* are counted by the first step of each job itself: how often it
ran on rows, beyond once each. *Attempts* are those of the status, with the causes of those that
failed; KubeRay may begin a driver again within an attempt. Each goes on with what is missing.

Faults: {faults}. Requests that the proxy spoilt: {spoilt}.
"""
COLUMNS = (
    "job", "reads, does, writes", "faults, and seconds after its start", "attempts",
    "runs of the driver", "rows done again", "missing", "duplicated", "seconds",
)  # fmt: skip


def page(stories: list[Story], spoilt: Counter[str], seed: int, at_once: int) -> str:
    """All of docs/chaos.md."""
    faults = Counter(blow.fault for blow in _blows(stories))
    return _HEAD.format(
        jobs=len(stories),
        at_once=at_once,
        rows=ROWS,
        seed=seed,
        table=table(stories),
        faults=_listed(faults),
        spoilt=_listed(spoilt),
    )


def table(stories: list[Story]) -> str:
    """In Markdown."""
    lines = [COLUMNS, ("---",) * len(COLUMNS), *map(_row, stories), _total(stories)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _blows(stories: list[Story]) -> set[Blow]:
    return {blow for story in stories for blow in story.blows}


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())


def _row(story: Story) -> tuple[str, ...]:
    blows = sorted(story.blows, key=lambda blow: blow.at)
    attempts = story.status.get("attempts", [])
    causes = Counter(attempt["cause"] for attempt in attempts if "cause" in attempt)
    lost = ", ".join(f"{cause} {count}" for cause, count in causes.items())
    return (
        story.job.name,
        story.job.words,
        ", ".join(f"{blow.fault} {blow.at - story.began:.0f}" for blow in blows),
        f"{len(attempts)} ({lost})" if lost else str(len(attempts)),
        str(story.proof.runs),
        _again(story.again, ROWS),
        str(story.proof.missing),
        str(story.proof.duplicated),
        f"{story.ended - story.began:.0f}",
    )


def _total(stories: list[Story]) -> tuple[str, ...]:
    rows = ROWS * len(stories)
    return (
        "all",
        f"{rows} rows",
        f"{len(_blows(stories))} faults",
        str(sum(len(story.status.get("attempts", [])) for story in stories)),
        str(sum(story.proof.runs for story in stories)),
        _again(sum(story.again for story in stories), rows),
        str(sum(story.proof.missing for story in stories)),
        str(sum(story.proof.duplicated for story in stories)),
        f"{max(s.ended for s in stories) - min(s.began for s in stories):.0f}",
    )


def _again(again: int, rows: int) -> str:
    return f"{again} ({again / rows:.1%})"
