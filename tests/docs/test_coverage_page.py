"""docs/coverage.md names the place of each of 81 features, and everything that it names exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import typer

from batchinference.cli.main import app
from batchinference.spec.addresses import SCHEMES
from batchinference.spec.reference import reference
from batchinference.spec.report import Report
from support.documents.pages import ROOT

PAGE = ROOT / "docs/coverage.md"
ROW = re.compile(r"\| (\d+) \| (.+?) \| (.+) \|")
FIELD = re.compile(r"\| \**`([\w.\[\]]+)`\** \| (.+)")
LINK = re.compile(r"\[([^]]+)\]\(([^)#]+)\)")
REASONS = ("not offered", "not in the product", "does not exist", "out of scope")
FOREIGN = frozenset(
    {"/dev/shm", "kubectl get bi", "nvidia-smi", "ray.priority", "ray.startup_hook",
     "read_parquet(prefetch_blocks=)", "retry_delays_ms", "runtime_env"}
)  # fmt: skip
"""Words that the page names although they are not part of the product."""


@dataclass(frozen=True)
class Row:
    """A feature: its number, its description, and the cell that says where it is."""

    number: str
    asked: str
    where: str

    @property
    def words(self) -> list[str]:
        """The words in code formatting."""
        return re.findall(r"`([^`]+)`", self.where)

    @property
    def links(self) -> list[tuple[str, str]]:
        """Words and targets of the links within the repository."""
        return LINK.findall(self.where)

    @property
    def shown(self) -> str:
        """The text of all linked files."""
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


def is_field(word: str) -> bool:
    """Return whether the word is a field of a job or its status, or a field and a valid value."""
    name, _, value = word.partition(": ")
    path = name.split(".")
    if value and f"{path[-1]}: {value}" in HEADINGS:
        return True
    descriptions = [about for field, about in FIELDS if field[-len(path) :] == path]
    return any(f"`{value}`" in about if value else True for about in descriptions)


def is_in_the_report(word: str) -> bool:
    return word in Report.model_json_schema(by_alias=True)["properties"]


def is_address(word: str) -> bool:
    return word.endswith("://") and word.removesuffix("://") in SCHEMES


def is_command(word: str) -> bool:
    name, *options = word.removeprefix("batchinference ").split()
    group = typer.main.get_command(app)
    if name not in getattr(group, "commands", {}):
        return False
    return set(options) <= {option for each in group.commands[name].params for option in each.opts}


def is_known(word: str, foreign: frozenset[str] = frozenset()) -> bool:
    return word in foreign or any(
        is_one(word) for is_one in (is_field, is_in_the_report, is_address, is_command)
    )


def findings(row: Row) -> Iterator[str]:
    """Yield the errors in a row."""
    yield from (f"unknown: {word}" for word in row.words if not is_known(word, FOREIGN))
    for words, target in row.links:
        if not (PAGE.parent / target).is_file():
            yield f"no file: {target}"
        if words not in target:
            yield f"link with other words: {words}"
    named = any(map(is_known, row.words)) or row.links or "](#" in row.where
    if not named and not any(reason in row.where for reason in REASONS):
        yield "names neither a place nor a reason"
    fields = [re.split(r"[.]|: ", word)[-1] for word in row.words if is_field(word)]
    if row.links:
        yield from (f"field not in the linked pages: {f}" for f in fields if f not in row.shown)


def test_rows_are_numbered_and_different() -> None:
    assert [row.number for row in ROWS] == [str(number) for number in range(1, 82)]
    assert len({row.asked.lower() for row in ROWS}) == 81
    lines = [line for line in PAGE.read_text().splitlines() if re.match(r"\|\s*\d", line)]
    assert len(lines) == 81


def test_rows_name_things_that_exist() -> None:
    found = {row.number: list(findings(row)) for row in ROWS}
    assert {number: wrong for number, wrong in found.items() if wrong} == {}


def test_unknown_words_are_recognized() -> None:
    words = ["read.colums", "runtime: tensorflow", "shuffle: rows", "batchinference fly",
             "run --fast", "ftp://", "gpu.resources", "secondss"]  # fmt: skip
    assert [word for word in words if is_known(word)] == []
