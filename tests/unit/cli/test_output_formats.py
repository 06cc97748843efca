"""The option `-o`: commands print their data as JSON or YAML."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import date

import pytest
import yaml

from batchinference.cli.printing import Format, as_data, print_data
from support.documents.minimal import document, schedule_document
from support.documents.parsed import filter_step
from support.program import Invoke, WriteJob

DATA = {"name": "\x1b[2Ja", "share": math.nan, "bytes": b"\xff", "day": date(2026, 1, 31)}
PLAIN = {"name": "\x1b[2Ja", "share": None, "bytes": "/w==", "day": "2026-01-31"}


def test_data_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    print_data([DATA, DATA], Format.JSON)
    printed = capsys.readouterr().out
    assert json.loads(printed) == [PLAIN, PLAIN]
    assert "\x1b" not in printed
    print_data([DATA], Format.YAML)
    assert yaml.safe_load(capsys.readouterr().out) == [PLAIN]


def test_records_are_lines_of_json_or_documents_of_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        print_data(DATA, Format.JSON, indent=None)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [PLAIN, PLAIN]
    for number in range(2):
        print_data({"number": number}, Format.YAML, indent=None)
    documents = yaml.safe_load_all(capsys.readouterr().out)
    assert list(documents) == [{"number": 0}, {"number": 1}]


@dataclass(frozen=True)
class Part:
    of_rows: int


@dataclass(frozen=True)
class Whole:
    all_parts: list[Part]
    given: dict[str, int]


def test_names_of_fields_are_in_camel_case() -> None:
    full = Whole([Part(1)], {"user_column": 2})
    assert as_data(full) == {"allParts": [{"ofRows": 1}], "given": {"user_column": 2}}


def test_validate_as_data(invoke: Invoke, write_job: WriteJob) -> None:
    wrong = document("b", steps=[filter_step(expression="txt == 'a'")])
    file = write_job(document("a"), wrong, schedule_document())
    done = invoke("validate", "--fields-only", file, "nowhere.yaml", "-o", "json")
    assert (done.exit_code, done.stderr) == (2, "")
    first, second, third, missing = json.loads(done.stdout)
    assert first == {
        "file": "job.yaml (BatchInference 1)",
        "valid": True,
        "message": "a is valid",
        "notes": [],
        "problems": [],
    }
    assert (second["valid"], second["problems"][0]["path"]) == (False, "spec.steps[0].filter")
    assert third["message"].startswith("nightly is valid; next run: ")
    assert (missing["file"], missing["valid"]) == ("nowhere.yaml", False)
    assert missing["problems"][0]["message"].startswith("cannot be read: ")
    assert invoke("validate", "--fields-only", write_job(document()), "-o", "yaml").exit_code == 0
