"""The page about coverage lists 81 features with their locations, and every name on it exists."""

from __future__ import annotations

import re

import typer

from batchinference.cli.main import app
from batchinference.spec.addresses import SCHEMES
from batchinference.spec.report import Report
from generators.reference import reference
from support.documents.pages import ROOT

PAGE = (ROOT / "docs/contributing/coverage.md").read_text()
ROW = re.compile(r"\| (\d+) \| (.+?) \| (.+) \|")
FIELD = re.compile(r"\| \**`([\w.\[\]]+)`\** \| (.+)")
REASONS = ("not offered", "not in the product", "does not exist", "out of scope")
FOREIGN = frozenset(
    {"/dev/shm", "kubectl get bi", "nvidia-smi", "ray.priority", "ray.startup_hook",
     "read_parquet(prefetch_blocks=)", "retry_delays_ms", "runtime_env"}
)  # fmt: skip
"""Names on the page that are not part of the product."""


ROWS = [match.groups() for line in PAGE.splitlines() if (match := ROW.fullmatch(line))]
"""The number of each feature, its description, and the cell with its location."""
FIELDS = [
    (result[1].replace("[]", "").split("."), result[2])
    for line in reference().splitlines()
    if (result := FIELD.match(line))
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


def is_known(word: str) -> bool:
    return any(is_one(word) for is_one in (is_field, is_in_the_report, is_address, is_command))


def test_rows_are_numbered_and_different() -> None:
    assert [number for number, *_ in ROWS] == [str(number) for number in range(1, 82)]
    assert len({asked.lower() for _, asked, _ in ROWS}) == 81
    assert len(re.findall(r"^\|\s*\d", PAGE, re.MULTILINE)) == 81


def test_rows_name_existing_features_or_give_a_reason() -> None:
    for number, _, where in ROWS:
        names = re.findall(r"`([^`]+)`", where)
        assert [word for word in names if not is_known(word) and word not in FOREIGN] == [], number
        location = any(map(is_known, names)) or "](" in where
        assert location or any(reason in where for reason in REASONS), number


def test_unknown_names_are_detected() -> None:
    names = ["read.colums", "runtime: tensorflow", "shuffle: rows", "batchinference fly",
             "run --fast", "ftp://", "gpu.resources", "secondss"]  # fmt: skip
    assert [word for word in names if is_known(word)] == []
