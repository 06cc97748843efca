"""Chooses the groups of the long tier that a landing runs.

`tests/long.toml` lists the groups and the paths that each group guards. `tests/long-passed.json`
records when each group last passed, and a hash of its guarded paths at that time.
"""

from __future__ import annotations

import hashlib
import json
import math
import subprocess
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

MAX_AGE = 10
"""The number of landings after which a group must have run."""
EARLY_AGE = MAX_AGE // 2
"""The age from which groups run before changed groups, so that none becomes overdue."""


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
    landing: int
    """The number of recorded landings until this pass, including its own."""
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
    document = json.loads(file.read_text()) if file.exists() else {}
    return {name: Pass(**body) for name, body in document.items()}


def recorded_landings(passes: Mapping[str, Pass]) -> int:
    """Return the number of landings that have recorded a pass."""
    return max((each.landing for each in passes.values()), default=0)


def write_pass(file: Path, name: str, passed: Pass) -> None:
    """Record that a group has passed."""
    passes = read_passes(file) | {name: passed}
    by_name = {name: asdict(each) for name, each in passes.items()}
    file.write_text(json.dumps(by_name, indent=2, sort_keys=True) + "\n")


def choose(dues: Sequence[Due], minutes: float) -> list[Due]:
    """Return the groups to run: first those without which groups would become overdue, then all
    changed groups and the group that waited longest, if they fit into `minutes`.

    Groups are ordered by age, and the quicker group comes first among groups of equal age. The
    first group always runs, even if it takes longer.
    """
    ordered = sorted(dues, key=lambda due: (-due.age, due.group.minutes))
    required = _required(ordered)
    first, others = ordered[:required], ordered[required:]
    changed = [due for due in others if due.changed]
    waiting = [due for due in others if not due.changed][:1]
    used = sum(due.group.minutes for due in first)
    return [*first, *_that_fit([*changed, *waiting], used, minutes)]


def _required(ordered: Sequence[Due]) -> int:
    """Return how many groups must run in this landing, if each further landing runs as many and no
    group may become overdue. `ordered` has the oldest groups first."""
    early = [due for due in ordered if due.age >= EARLY_AGE]
    landings_left = [max(1, MAX_AGE + 1 - due.age) for due in early]
    needed = (math.ceil(count / left) for count, left in enumerate(landings_left, 1))
    return max(needed, default=0)


def _that_fit(dues: Iterable[Due], used: float, minutes: float) -> Iterable[Due]:
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

    `days` are the days of all landings. `hashes` are the current hashes of the guarded paths. The
    age is the number of recorded landings or of days since the last pass, whichever is larger:
    only landings that ran a group are recorded.
    """
    recorded, unique_days = recorded_landings(passes), set(days)

    def due(group: Group) -> Due:
        last = passes.get(group.name)
        since = last.day if last else group.added
        landings = recorded - last.landing if last else 0
        age = max(landings, sum(day > since for day in unique_days))
        return Due(group, age, changed=last is None or last.guarded != hashes[group.name])

    return [due(group) for group in groups]


def landing_days() -> list[str]:
    """Return the days of the commits on the branch. A day with commits counts as one landing."""
    return _git("log", "--format=%cs").split()


def is_shallow() -> bool:
    """Return whether the history is incomplete, so that the ages of groups are unknown."""
    return _git("rev-parse", "--is-shallow-repository").strip() == "true"


def guarded_hash(group: Group) -> str:
    """Return a hash of the tracked content of the paths that a group guards, and of its tests."""
    listing = _git("ls-files", "--stage", "--", *_guarded(group))
    return hashlib.sha256(listing.encode()).hexdigest()[:16]


def has_uncommitted_changes(group: Group) -> bool:
    """Return whether a guarded path or a test of the group has changes that `guarded_hash` does not
    include."""
    return bool(_git("diff", "--name-only", "--", *_guarded(group)))


def _guarded(group: Group) -> list[str]:
    marks = ["-e", f'mark.long("{group.name}")', "-e", f'mark.scaled("{group.name}")']
    search = ("grep", "--files-with-matches", "--fixed-strings", *marks, "--", "tests/*.py")
    tests = _git(*search, codes=(0, 1))  # 1: no test has such a mark
    return [*group.paths, *tests.splitlines()]


def _git(*arguments: str, codes: Sequence[int] = (0,)) -> str:
    """Return the output of a git command. Raises CalledProcessError for other exit codes."""
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    if done.returncode not in codes:
        raise subprocess.CalledProcessError(done.returncode, done.args, done.stdout, done.stderr)
    return done.stdout
