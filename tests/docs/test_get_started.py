"""The commands of the first page run, without Ray and offline, and print what the page shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pandas as pd
import pytest

from support.documents.pages import ROOT, blocks
from support.jobs.without_ray import invoke_without_ray

PAGE, CHINESE = "docs/get-started.md", "docs/get-started.zh-CN.md"
MAX_WORDS = 900
CODE = re.compile(r"^```\w+\n.*?^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("get-started")
    (folder / "reviews").mkdir()
    (table,) = blocks(PAGE, "csv")
    (folder / "reviews/may.csv").write_text(table)
    return folder


def printed(block: str) -> list[str]:
    """Run the commands of a block, and return what each prints."""
    shown = []
    for command in block.replace("\\\n", "").splitlines():
        program, *arguments = shlex.split(command)
        assert program == "batchinference"
        done = invoke_without_ray(*arguments)
        assert done.exit_code == 0, (command, done)
        shown.append(done.stdout + done.stderr)
    return shown


def test_commands_print_the_expected_output(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(directory)
    _, first, run, again, _ = blocks(PAGE, "bash")
    (preview,), (step,) = blocks(PAGE, "text"), blocks(PAGE, "yaml")
    assert without_seconds(printed(first)[-1]) == without_seconds(preview)
    job = Path("job.yaml").read_text().replace("  write:\n", f"{step}  write:\n")
    Path("job.yaml").write_text(job)
    assert "3 read, 2 written, 1 filtered" in printed(run)[0]
    Path("job.yaml").write_text(job.replace("mode: error", "mode: append"))
    Path("reviews/june.csv").write_text("id,review\n4,The courier came late\n")
    assert "1 read, 1 written" in printed(again)[0]
    assert invoke_without_ray("verify", "out").exit_code == 0


def without_seconds(text: str) -> str:
    return re.sub(r"\d+\.\d+ s\b", "N s", text)


def test_python_code_of_the_page_runs(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(directory)
    assert (directory / "out").exists(), "the commands run first"
    (code,) = blocks(PAGE, "py")
    data_frames: dict[str, pd.DataFrame] = {}
    exec(code, data_frames)
    assert sorted(data_frames["labels"]["id"]) == [1, 2, 4]


def test_first_page_is_short() -> None:
    assert len((ROOT / PAGE).read_text(encoding="utf-8").split()) <= MAX_WORDS


@pytest.mark.parametrize(
    ("english", "chinese"), [(PAGE, CHINESE), ("README.md", "README.zh-CN.md")]
)
def test_translation_has_the_same_code(english: str, chinese: str) -> None:
    assert code_of(chinese) == code_of(english)


def code_of(page: str) -> list[str]:
    """Return the code blocks of a page, without comments."""
    matches = CODE.findall((ROOT / page).read_text(encoding="utf-8"))
    return [re.sub(r" *# .*", "", block) for block in matches]


def test_site_has_each_page() -> None:
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    listed = re.findall(r"[:-] ([\w.-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(pages)
