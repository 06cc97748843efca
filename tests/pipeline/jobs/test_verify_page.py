"""What docs/verify.md shows and names is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from batchinference.pipeline.verify.findings import MEANINGS, WAYS_OUT, Kind
from batchinference.pipeline.verify.proof import Result
from support.committed import commit, every_tenth
from support.documentation import ROOT, blocks
from support.job_runs import job_document, write_lines
from support.verified import invoke

PAGE = "docs/verify.md"


def test_the_example_is_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = {f"{n}.txt": [f"text {m}" for m in range(50)] for n in range(4)}
    source = write_lines(tmp_path / "in", lines)
    commit(job_document("page", source, tmp_path / "out", errors={"maxRows": 20}), every_tenth)
    monkeypatch.chdir(tmp_path)
    local = [line for line in blocks(PAGE, "bash")[0].splitlines() if "s3://" not in line]
    assert len(local) == 2
    for line in local:
        assert invoke(*line.partition("#")[0].split()[2:]).exit_code == 0
    (shown,) = blocks(PAGE, "text")
    assert without_bytes(invoke("out").stdout) == without_bytes(shown)


def without_bytes(text: str) -> str:
    return re.sub(r"\d+ B", "", text)


def test_the_page_has_every_result_and_kind() -> None:
    page = (ROOT / PAGE).read_text()
    named = set(re.findall(r"`(\w+)`", page))
    assert named >= {kind.value for kind in (*Kind, *Result)}
    assert MEANINGS.keys() == WAYS_OUT.keys() == set(Kind)
