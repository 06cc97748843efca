"""Chooses the groups of the long tier that a landing runs.

`tests/long.toml` lists the groups and the paths that each group guards. `tests/long-passed.json`
records when each group last passed, and a hash of its guarded paths at that time.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

MAX_AGE = 10
"""The number of landings after which a group must have run."""


@dataclass(frozen=True)
class Group:
    """A group of long tests."""

    name: str
    command: tuple[str, ...]
    minutes: float
    paths: tuple[str, ...]
    """The guarded paths, as git pathspecs."""
    added: str
    """The day it was added, as YYYY-MM-DD. Its age counts from this day until its first pass."""

    @property
    def step(self) -> str:
        """The name of the group's step in a landing."""
        return f"long:{self.name}"


@dataclass(frozen=True)
class Pass:
    """The last time a group passed."""

    day: str
    guarded: str
    """The hash of the guarded paths."""


@dataclass(frozen=True)
class Due:
    """A group and why it should run."""

    group: Group
    age: int
    """The number of landings since the last pass."""
    changed: bool
    """Whether a guarded path has changed since the last pass."""


def read_groups(file: Path) -> list[Group]:
    """Return the groups of a `long.toml`, in the order of the file."""
    groups = tomllib.loads(file.read_text())["groups"]
    return [
        Group(
            name,
            tuple(body["command"]),
            float(body["minutes"]),
            tuple(body["paths"]),
            str(body["added"]),
        )
        for name, body in groups.items()
    ]


def read_passes(file: Path) -> dict[str, Pass]:
    """Return the last pass of each group that has ever passed, by name."""
    found = json.loads(file.read_text()) if file.exists() else {}
    return {name: Pass(**body) for name, body in found.items()}


def write_pass(file: Path, group: Group, day: str, guarded: str) -> None:
    """Record that a group has passed."""
    passes = read_passes(file) | {group.name: Pass(day, guarded)}
    found = {name: asdict(each) for name, each in passes.items()}
    file.write_text(json.dumps(found, indent=2, sort_keys=True) + "\n")


def choose(dues: Sequence[Due], minutes: float) -> list[Due]:
    """Return the groups to run within `minutes`: all changed groups, then the oldest other group.

    Groups are ordered by age. Among groups of equal age, the quicker group comes first. The first
    group always runs, even if it takes longer, so that every group runs eventually.
    """
    by_age = sorted(dues, key=lambda due: (-due.age, due.group.minutes))
    changed = [due for due in by_age if due.changed]
    waiting = [due for due in by_age if not due.changed][:1]
    return list(_that_fit([*changed, *waiting], minutes))


def _that_fit(dues: Iterable[Due], minutes: float) -> Iterable[Due]:
    used = 0.0
    for due in dues:
        if used == 0 or used + due.group.minutes <= minutes:
            used += due.group.minutes
            yield due


def due_groups(
    groups: Sequence[Group],
    passes: Mapping[str, Pass],
    days: Sequence[str],
    hashes: Mapping[str, str],
) -> list[Due]:
    """Return the age of each group and whether it changed. A group that never passed has changed.

    `days` are the days of all landings. `hashes` are the current hashes of the guarded paths.
    """
    return [_due(group, passes.get(group.name), days, hashes[group.name]) for group in groups]


def _due(group: Group, last: Pass | None, days: Sequence[str], guarded: str) -> Due:
    since = last.day if last else group.added
    return Due(
        group,
        age=sum(day > since for day in set(days)),
        changed=last is None or last.guarded != guarded,
    )


def landing_days() -> list[str]:
    """Return the days of the commits on the branch. A day with commits counts as one landing."""
    return _git("log", "--format=%cs").split()


def guarded_hash(group: Group) -> str:
    """Return a hash of the tracked content of the paths that a group guards, and of its tests."""
    marks = ["-e", f'mark.long("{group.name}")', "-e", f'mark.scaled("{group.name}")']
    search = ("grep", "--files-with-matches", "--fixed-strings", *marks, "--", "tests/*.py")
    tests = _git(*search, codes=(0, 1))  # 1: no test has such a mark
    listing = _git("ls-files", "--stage", "--", *group.paths, *tests.splitlines())
    return hashlib.sha256(listing.encode()).hexdigest()[:16]


def _git(*arguments: str, codes: Sequence[int] = (0,)) -> str:
    """Return the output of a git command. Raises CalledProcessError for other exit codes."""
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    if done.returncode not in codes:
        raise subprocess.CalledProcessError(done.returncode, done.args, done.stdout, done.stderr)
    return done.stdout
