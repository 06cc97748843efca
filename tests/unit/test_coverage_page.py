"""docs/coverage.md tells of each of the 68 things where it is, and all that it names is there."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
import typer

from batchinference.cli.main import app
from batchinference.spec.reference import reference
from batchinference.spec.report import Report
from batchinference.spec.uris import SCHEMES
from support.documentation import ROOT

PAGE = ROOT / "docs/coverage.md"
ROW = re.compile(r"\| (\d+) \| (.+?) \| (.+) \|")
FIELD = re.compile(r"\| \**`([\w.\[\]]+)`\** \| (.+)")
LINK = re.compile(r"\[([^]]+)\]\(([^)#]+)\)")
REASONS = ("not offered", "not in the product", "does not exist", "out of scope")
FOREIGN = frozenset(
    {"/dev/shm", "kubectl get bi", "nvidia-smi", "ray.priority", "ray.startup_hook",
     "read_parquet(prefetch_blocks=)", "retry_delays_ms", "runtime_env"}
)  # fmt: skip
"""What is named although it is no part of the product."""


@dataclass(frozen=True)
class Row:
    """One of the things: its number, what it is, and where it is."""

    number: str
    asked: str
    where: str

    @property
    def words(self) -> list[str]:
        """What stands in code letters."""
        return re.findall(r"`([^`]+)`", self.where)

    @property
    def links(self) -> list[tuple[str, str]]:
        """Their words and their targets within the repository."""
        return LINK.findall(self.where)

    @property
    def shown(self) -> str:
        """The text of all that is linked."""
        return "".join((PAGE.parent / target).read_text() for _, target in self.links)


ROWS = [
    Row(*match.groups()) for line in PAGE.read_text().splitlines() if (match := ROW.fullmatch(line))
]
FIELDS = [
    (found[1].replace("[]", "").split("."), found[2])
    for line in reference().splitlines()
    if (found := FIELD.match(line))
]
HEADINGS = re.findall(r"^### .*\b(\w+: \w+)$", reference(), re.MULTILINE)
each_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.number)


def is_field(word: str) -> bool:
    """Whether it is a field of a job or its status, or one with a value that it may have."""
    name, _, value = word.partition(": ")
    path = name.split(".")
    if value and f"{path[-1]}: {value}" in HEADINGS:
        return True
    tellings = [told for field, told in FIELDS if field[-len(path) :] == path]
    return any(f"`{value}`" in told if value else True for told in tellings)


def is_of_the_report(word: str) -> bool:
    return word in Report.model_json_schema(by_alias=True)["properties"]


def is_address(word: str) -> bool:
    return word.endswith("://") and word.removesuffix("://") in SCHEMES


def is_command(word: str) -> bool:
    name, *options = word.removeprefix("batchinference ").split()
    group = typer.main.get_command(app)
    if name not in getattr(group, "commands", {}):
        return False
    return set(options) <= {option for each in group.commands[name].params for option in each.opts}


def is_known(word: str) -> bool:
    return any(is_one(word) for is_one in (is_field, is_of_the_report, is_address, is_command))


def test_all_68_are_there_and_each_once() -> None:
    assert [row.number for row in ROWS] == [str(number) for number in range(1, 69)]
    assert len({row.asked.lower() for row in ROWS}) == 68
    lines = [line for line in PAGE.read_text().splitlines() if re.match(r"\|\s*\d", line)]
    assert len(lines) == 68


@each_row
def test_what_a_row_names_is_there(row: Row) -> None:
    assert [word for word in row.words if not is_known(word) and word not in FOREIGN] == []


@each_row
def test_a_row_leads_to_files_by_their_names(row: Row) -> None:
    for words, target in row.links:
        assert (PAGE.parent / target).is_file(), target
        assert words in target


@each_row
def test_a_row_names_what_does_it_or_a_reason_why_nothing_does(row: Row) -> None:
    named = any(map(is_known, row.words)) or row.links or "](#" in row.where
    assert named or any(reason in row.where for reason in REASONS)


@each_row
def test_what_a_row_leads_to_speaks_of_the_fields_that_it_names(row: Row) -> None:
    named = [re.split(r"[.]|: ", word)[-1] for word in row.words if is_field(word)]
    if row.links:
        assert [name for name in named if name not in row.shown] == []


@pytest.mark.parametrize(
    "word",
    ["read.colums", "runtime: tensorflow", "shuffle: rows", "batchinference fly", "run --fast",
     "ftp://", "gpu.resources", "secondss"],
)  # fmt: skip
def test_what_is_not_there_is_not_taken_for_known(word: str) -> None:
    assert not is_known(word)
