"""The commands over pictures of the first page run, without Ray and with a small model for CLIP."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from support.documents.pages import ROOT, blocks
from support.inputs.photographs import photograph
from support.jobs.without_ray import invoke_without_ray
from support.models import tiny_transformers

PAGE, CHINESE = "docs/get-started.md", "docs/get-started.zh-CN.md"
PICTURES = {"one": "coffee", "two": "chelsea", "three": "astronaut", "four": "rocket"}
CODE = re.compile(r"^```\w+\n.*?^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("get-started")
    (folder / "pictures").mkdir()
    for name in ("one", "two", "three"):
        Image.fromarray(photograph(PICTURES[name])).save(folder / f"pictures/{name}.jpg")
    (folder / "clip").mkdir()
    tiny_transformers.write("clip", folder / "clip")
    (job,) = blocks(PAGE, "yaml")
    (folder / "job.yaml").write_text(job.replace("openai/clip-vit-base-patch32", "./clip"))
    return folder


def test_commands_print_the_expected_output(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(directory)
    _, _, *pictures = blocks(PAGE, "bash")
    commands = [line for block in pictures for line in block.splitlines()]
    assert len(commands) == 4
    printed = []
    for number, command in enumerate(commands):
        if number == len(commands) - 1:
            Image.fromarray(photograph(PICTURES["four"])).save("pictures/four.jpg")
            job = Path("job.yaml").read_text()
            Path("job.yaml").write_text(job.replace("./out\n", "./out\n    mode: append\n"))
        program, *arguments = shlex.split(command)
        assert program == "batchinference"
        done = invoke_without_ray(*arguments)
        assert done.exit_code == 0, (command, done)
        printed.append(done.stdout + done.stderr)
    validated, preview, run, again = printed
    assert "my-pictures is valid" in validated
    assert all(f"  {name}: " in preview for name in ("path", "kind", "label"))
    assert "3 read, 3 written" in run
    assert "1 read, 1 written" in again
    assert invoke_without_ray("verify", "out").exit_code == 0
    assert (directory / "out/_batchinference/report.html").exists()


def test_python_code_of_the_page_runs(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(directory)
    assert (directory / "out").exists(), "the commands run first"
    (code,) = blocks(PAGE, "py")
    found: dict[str, pd.DataFrame] = {}
    exec(code, found)
    assert found["pictures"]["label"].notna().all()


def test_first_page_is_short() -> None:
    assert len((ROOT / PAGE).read_text(encoding="utf-8").split()) <= 900


@pytest.mark.parametrize(
    ("english", "chinese"),
    [(PAGE, CHINESE), ("README.md", "README.zh-CN.md")],
    ids=["get-started", "README"],
)
def test_translation_has_the_same_code(english: str, chinese: str) -> None:
    assert code_of(chinese) == code_of(english)


def code_of(page: str) -> list[str]:
    """Return the code blocks of a page, without comments."""
    found = CODE.findall((ROOT / page).read_text(encoding="utf-8"))
    return [re.sub(r" *# .*", "", block) for block in found]


def test_site_has_each_page() -> None:
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    listed = re.findall(r"[:-] ([\w.-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(pages)
