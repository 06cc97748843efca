"""`validate` answers each typical mistake with the field, the value, and a correction that is
right: if it names an exact one, this one is accepted. `messages.yaml` has all answers."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from batchinference.cli import exits
from plugins.messages import Messages
from support.mistakes import Mistake, answer, document, expressions, files, models, python
from support.mistakes.fixes import fixed

CPU_SECONDS = 3
ADDITION = re.compile("required, but missing. Add|mode: merge needs")
"""Parts of the next answer if a correction needs another field."""
HEAVY = ("ray", "torch", "transformers")
AREAS = (document, expressions, python, models, files)
MISTAKES = {
    f"{area.__name__.rpartition('.')[2]}: {about}": mistake
    for area in AREAS
    for about, mistake in area.MISTAKES.items()
}


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current directory, whose modules only this test imports."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_the_answer_says_what_to_write(
    mistake: Mistake, work: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    wrong, right, follows = (work / name for name in ("wrong", "right", "follows"))
    for directory in (wrong, right, follows):
        directory.mkdir()
    monkeypatch.chdir(wrong)
    job = mistake.job(mistake.wrong)
    code, said = answer(wrong, job, mistake.files)
    assert code == exits.BAD_INPUT
    messages.check(said)
    assert (mistake.right if mistake.says is None else mistake.says) in said
    if (changed := fixed(job, (wrong / "steps.py").read_text(), said)) is not None:
        monkeypatch.chdir(follows)
        code, said = answer(follows, changed[0], {**mistake.files, **changed[1]})
        assert code == exits.SUCCESS or ADDITION.search(said)
    monkeypatch.chdir(right)
    corrected = mistake.files if mistake.right_files is None else mistake.right_files
    assert answer(right, mistake.job(mistake.right), corrected)[0] == exits.SUCCESS


@pytest.mark.parametrize("name", ["files: a misspelled file", "models: no tokenizer"])
def test_an_answer_takes_little_time(
    name: str, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work)
    answer(work, MISTAKES[name].job(MISTAKES[name].wrong), MISTAKES[name].files)
    program = f"""
import sys
from batchinference.cli.main import app
try:
    app(["validate", "job.yaml"])
finally:
    print(set({HEAVY!r}) & sys.modules.keys())
"""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.stdout.splitlines()[-1] == "set()", done.stderr
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < CPU_SECONDS
