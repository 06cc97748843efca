"""Each code block of the READMEs and of docs/ is run or parsed by a test, or carries the reason why
not: a comment `<!-- not run: REASON -->` in the line before it."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from pathlib import Path

import pytest
import yaml
from typer.core import TyperGroup
from typer.main import get_command

from batchinference.cli.main import app
from batchinference.spec import parse
from batchinference.spec.job import BatchInferenceSpec
from support.documents.code_blocks import CodeBlock, code_blocks
from support.documents.minimal import Document, document
from support.documents.pages import ROOT
from support.documents.yaml_files import read_yaml
from support.program import run_program

BLOCKS = code_blocks()
ANY = -1
TESTED = read_yaml(Path(__file__).with_name("tested_blocks.yaml"))
"""The page, the language and the number of the blocks that each test checks. This file checks the
blocks of all pages that are jobs, fields of jobs or commands."""
NUMBERS = {(page, kind): number for rows in TESTED.values() for page, kind, number in rows}
SPEC_FIELDS = {field.alias or name for name, field in BatchInferenceSpec.model_fields.items()}
COMMAND = re.compile(r"^\s*(?:\$ )?batchinference (.*)", re.MULTILINE)
PROGRAM = get_command(app)
TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
MAX_REASON = 40
"""Maximum number of characters of a reason."""


def content(block: CodeBlock) -> Document:
    """Return the mapping in a YAML block; an empty one for a block in another language."""
    result = yaml.load(block.text, yaml.CSafeLoader) if block.language == "yaml" else {}
    return result if isinstance(result, dict) else {}


def place_of(block: CodeBlock) -> tuple[str, str]:
    return block.page.removeprefix("docs/"), block.language


def lines_of(block: CodeBlock) -> list[str]:
    """Return the commands of a block, without comments and empty lines."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def is_job(block: CodeBlock) -> bool:
    return str(content(block).get("apiVersion")).startswith("batchinference.dev/")


def is_part_of_a_job(block: CodeBlock) -> bool:
    return bool(content(block)) and content(block).keys() <= SPEC_FIELDS


def has_only_own_commands(block: CodeBlock) -> bool:
    """Return whether each line is a command of this program, or a target of make."""
    words = {line.split()[0] for line in lines_of(block)}
    return block.language == "bash" and words <= {"batchinference", "make", "source"}


def is_checked_here(block: CodeBlock) -> bool:
    return is_job(block) or is_part_of_a_job(block) or has_only_own_commands(block)


def test_each_block_has_a_test_or_a_reason() -> None:
    assert len(BLOCKS) > 150
    neither = [
        block.where
        for block in BLOCKS
        if not (block.reason or is_checked_here(block) or place_of(block) in NUMBERS)
    ]
    assert neither == [], "run them in a test, or write <!-- not run: REASON --> before them"


def test_each_test_exists_and_checks_as_many_blocks() -> None:
    for test in TESTED:
        file, name = test.split("::")
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8")
    counts = Counter(place_of(block) for block in BLOCKS if not block.reason)
    assert {location: counts[location] for location in NUMBERS} == {
        path: counts[path] if number == ANY else number for path, number in NUMBERS.items()
    }


def test_a_reason_is_short_and_needed() -> None:
    with_reason = [block for block in BLOCKS if block.reason]
    assert [block.where for block in with_reason if len(block.reason) > MAX_REASON] == []
    assert [block.where for block in with_reason if is_checked_here(block)] == []
    comments = sum(
        page.read_text(encoding="utf-8").count("<!-- not run: ")
        for page in [*ROOT.glob("README*.md"), *(ROOT / "docs").rglob("*.md")]
    )
    assert comments == len(with_reason), "a comment is not in the line before a block"


JOBS = [pytest.param(block, id=block.where) for block in BLOCKS if is_job(block)]
PARTS = [pytest.param(block, id=block.where) for block in BLOCKS if is_part_of_a_job(block)]


@pytest.mark.parametrize("block", JOBS)
def test_job_is_valid(block: CodeBlock, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(block.text)
    checked = run_program("validate", "--fields-only", str(file))
    assert checked.exit_code == 0, checked.output


@pytest.mark.parametrize("block", PARTS)
def test_fields_of_a_job_are_valid(block: CodeBlock) -> None:
    assert parse(document(**content(block)))


COMMANDS = [
    pytest.param(command, id=f"{block.page}:{command}")
    for block in BLOCKS
    for command in COMMAND.findall("\n".join(lines_of(block)))
]


@pytest.mark.parametrize("command", COMMANDS)
def test_command_and_its_options_exist(command: str) -> None:
    """The command is parsed, and not run."""
    words = shlex.split(command.split(" | ", maxsplit=1)[0], comments=True)
    assert isinstance(PROGRAM, TyperGroup)
    assert words == ["--help"] or PROGRAM.commands[words[0]].make_context(words[0], words[1:])


def test_targets_of_make_exist() -> None:
    assert [block.where for block in BLOCKS if not targets_of(block) <= TARGETS] == []


def targets_of(block: CodeBlock) -> set[str]:
    """Return the targets of make in a block, without variables and the directory."""
    lines = [line.replace("-C batchinference ", "") for line in lines_of(block)]
    commands = [shlex.split(line, comments=True) for line in lines if line[:5] == "make "]
    words = {word for command in commands for word in command[1:]}
    return {word for word in words if "=" not in word}
