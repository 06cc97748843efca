"""`batchinference preview`: its output and exit codes. It starts no Ray and writes nothing."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result
from PIL import Image

from batchinference.pipeline import preview as module_of_preview
from batchinference.pipeline.preview import MAX_QUERY_ROWS
from plugins.messages import Messages
from support.documents.minimal import Document
from support.documents.vllm_models import vllm_step
from support.jobs.on_ray import job_document, write_lines
from support.jobs.without_ray import invoke_without_ray
from support.program import run_program
from support.servers.openai import save_language_model

FAKES = Path(__file__).parents[2] / "support" / "models" / "fake_vllm"
CODE = """
def show(batch):
    print("batch of", len(batch["text"]))
    return batch

def refuse(row):
    if "bad" in row["text"]:
        raise ValueError("not this one")
    return row

def shape(batch):
    return {**batch, "height": [len(image) for image in batch["image"]]}

def wrong(batch):
    return {}.get("nothing")

class Broken:
    def __init__(self):
        raise RuntimeError("no model")

    def __call__(self, batch):
        return batch

def triple(batch):
    return {**batch, "part": [[1, 2, 3]] * len(batch["text"])}

def leave(batch):
    raise SystemExit(0)

def leak(batch):
    print("password=hunter22\\33[2J", end="")
    return batch

class Upper:
    def predict_batch(self, texts):
        return [text.upper() for text in texts]
"""
TEXTS = ["one", "two bad", "three", "four bad", "five", "six", "seven"]
JobFile = Callable[..., str]


@pytest.fixture
def module(tmp_path: Path) -> str:
    """Write the module of the user, which no other test has imported, and return its name."""
    name = f"own_{uuid.uuid4().hex[:6]}"
    (tmp_path / f"{name}.py").write_text(CODE)
    return name


@pytest.fixture
def job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobFile:
    """Return a function that writes a job over seven lines of text, and returns its file."""
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "in", {"a.txt": TEXTS[:3], "b.txt": TEXTS[3:]})

    def write(*steps: Document, **spec: Any) -> str:
        job = job_document("few", "in", "out", steps=list(steps), **spec)
        (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
        return "job.yaml"

    return write


def python(name: str, module: str, **fields: Any) -> Document:
    return {"name": name.lower(), "python": {"callable": f"{module}:{name}", **fields}}


def preview(*arguments: str) -> Result:
    return run_program("preview", *arguments)


def files_in(directory: Path) -> dict[str, int]:
    """Return the time of the last change of each file, except for compiled modules."""
    return {
        str(path.relative_to(directory)): path.stat().st_mtime_ns
        for path in directory.rglob("*")
        if "__pycache__" not in path.parts and path.is_file()
    }


def test_a_result_that_replaces_the_input_is_noted(job_file: JobFile, module: str) -> None:
    predict = {"input": "text", "output": "text"}
    done = preview(job_file(python("Upper", module, predictBatch=predict)))
    assert done.exit_code == 0
    assert "step 'upper' replaces column 'text' of the input" in done.stderr
    predict["output"] = "other"
    done = preview(job_file(python("Upper", module, predictBatch=predict)))
    assert (done.exit_code, done.stderr) == (0, "")
    csv = {"format": "csv", "paths": ["numbers.csv"]}
    Path("numbers.csv").write_text("text,other\na,b\n")
    done = preview(job_file(python("Upper", module, predictBatch=predict), read=csv))
    assert "step 'upper' replaces column 'other' of the input" in done.stderr


def test_steps_and_rows_are_printed_in_order(job_file: JobFile, module: str) -> None:
    keep = {"name": "keep", "filter": "len(text) > 4"}
    done = preview(job_file(keep, python("show", module)))
    assert (done.exit_code, done.stderr) == (0, "")
    read, kept, said, shown, *rows = done.stdout.splitlines()
    assert read.startswith("read: 5 returned, 0.")
    assert kept.startswith("keep: 3 returned, 2 filtered, 0.")
    assert said == "batch of 3"
    assert shown.startswith("show: 3 returned, 0.")
    texts = ["two bad", "three", "four bad"]
    lines = zip(rows[::2], rows[1::2], strict=True)
    assert list(lines) == [(f"row {n}:", f"  text: {text}") for n, text in enumerate(texts)]


def test_first_failed_row_is_shown_with_the_line_of_the_code(
    job_file: JobFile, module: str, tmp_path: Path
) -> None:
    done = preview(job_file(python("refuse", module, method="map")), "-n", "7")
    assert done.exit_code == 1
    _, step, error, *rows = done.stdout.splitlines()
    assert step.startswith("refuse: 5 returned, 2 failed, 0.")
    line = f"ValueError: not this one ({module}.py:8 in refuse)"
    assert error == f"  row 1 of {tmp_path}/in/a.txt: {line}"
    assert rows[-1] == "  text: seven"


@pytest.mark.parametrize(
    ("content", "remark"),
    [
        ({"a.csv": "id,text\n1,a\n", "b.csv": "id,n\n2,3\n"},
         "2 files lack columns of others, which are null there: TMP/a.csv has no 'n'\n"),
        ({"a.csv": "id,text\n1,a\n", "b.csv": "id\n2\n"},
         "1 file lacks columns of others, which are null there: TMP/b.csv has no 'text'\n"),
        ({"a.csv": "id\n1\n", "b.csv": "id\n2\n"}, ""),
        ({"a.csv": "id,text\n"}, "the input has no rows\n"),
        ({"a.csv": ""}, "the input has no rows\n"),
    ],
)  # fmt: skip
def test_remarks_on_the_input(
    job_file: JobFile, tmp_path: Path, content: dict[str, str], remark: str
) -> None:
    file = job_file(read={"format": "csv", "paths": ["tables"]})
    (tmp_path / "tables").mkdir()
    for name, text in content.items():
        (tmp_path / "tables" / name).write_text(text)
    expected = remark.replace("TMP", f"{tmp_path}/tables")
    assert preview(file).stderr == expected
    run = invoke_without_ray("run", file)
    assert (run.exit_code, expected.strip() in run.stderr) == (0, True)


def test_steps_without_rows_are_not_run(job_file: JobFile, module: str) -> None:
    nothing = {"name": "nothing", "filter": "len(text) > 100"}
    done = preview(job_file(nothing, python("Broken", module)))
    assert done.exit_code == 0
    assert [line.partition(",")[0] for line in done.stdout.splitlines()] == [
        "read: 5 returned",
        "nothing: 0 returned",
    ]


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_preview_as_data(job_file: JobFile, module: str, tmp_path: Path, form: str) -> None:
    Image.new("RGB", (197, 221)).save(tmp_path / "in" / "a.png")
    read = {"format": "images", "options": {"includePaths": True}}
    file = job_file(python("shape", module), read=read, write={"format": "parquet"})
    done = preview(file, "-o", form)
    assert (done.exit_code, done.stderr) == (0, "2 files ignored: .txt 2\n")
    document = yaml.safe_load(done.stdout)
    names = [(step["name"], step["rows"], step["firstFailed"]) for step in document["steps"]]
    assert names == [("read", 1, ""), ("shape", 1, "")]
    path = str(tmp_path / "in" / "a.png")
    assert document["rows"] == [{"image": "221x197x3 uint8", "path": path, "height": 221}]


def test_output_of_steps_is_not_mixed_with_data(job_file: JobFile, module: str) -> None:
    done = preview(job_file(python("show", module)), "-n", "2", "-o", "json")
    assert [row["text"] for row in json.loads(done.stdout)["rows"]] == TEXTS[:2]
    assert done.stderr == "batch of 2\n"


def test_output_of_steps_has_no_credentials_or_control_characters(
    job_file: JobFile, module: str
) -> None:
    done = preview(job_file(python("leak", module)), "-n", "1")
    line = next(line for line in done.stdout.splitlines() if "password" in line)
    assert "hunter22" not in line
    assert line.isprintable()


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        (
            *("wrong", 1),
            "step 'wrong' must return a dict of column name to array, a pandas DataFrame or an "
            "Arrow table, got NoneType",
        ),
        ("Broken", 1, "cannot be constructed: RuntimeError: no model (MODULE.py:19 in __init__)"),
        ("missing", 2, "MODULE"),
    ],
)
def test_step_that_cannot_run_ends_the_preview(
    job_file: JobFile, module: str, name: str, code: int, message: str
) -> None:
    done = preview(job_file(python(name, module)))
    assert (done.exit_code, "row 0" in done.stdout) == (code, False)
    assert done.stderr.startswith("few: step")
    assert message.replace("MODULE", module) in done.stderr


def test_interrupt_ends_with_130(job_file: JobFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module_of_preview, "open_input", interrupted)
    assert preview(job_file()).exit_code == 130


def test_step_that_exits_is_an_error(job_file: JobFile, module: str) -> None:
    done = preview(job_file(python("leave", module)))
    assert done.exit_code == 1
    assert "few: a step called sys.exit(0)" in done.stderr


def test_printed_rows_are_limited_if_steps_add_rows(job_file: JobFile, module: str) -> None:
    parts = {"name": "parts", "explode": {"column": "part"}}
    done = preview(job_file(python("triple", module), parts), "-n", "2")
    assert done.exit_code == 0, done.output
    assert "parts: 6 returned" in done.stdout
    assert done.stdout.endswith("... and 4 more rows\n")


def test_vllm_runs_in_this_process(
    job_file: JobFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(FAKES))
    save_language_model(tmp_path / "model")
    step = vllm_step(source=str(tmp_path / "model"), chat=False)
    done = preview(job_file(step), "-o", "json")
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["rows"]
    assert [row["answer"] for row in rows] == [row["text"][::-1] for row in rows]


def test_queries_with_few_rows_are_read(
    job_file: JobFile, tmp_path: Path, messages: Messages
) -> None:
    job = job_document("few", "in", "out")
    url = f"sqlite:///{tmp_path / 'numbers.db'}"
    job["spec"]["read"] = {"format": "sql", "query": "SELECT n FROM numbers", "url": url}
    Path("job.yaml").write_text(yaml.safe_dump(job))
    with closing(sqlite3.connect(tmp_path / "numbers.db")) as database:
        database.execute("CREATE TABLE numbers (n INTEGER)")
        insert = "INSERT INTO numbers VALUES (?)"
        database.executemany(insert, ((n,) for n in range(MAX_QUERY_ROWS)))
        database.commit()
        done = preview("job.yaml", "-n", "2")
        assert done.exit_code == 0, done.output
        assert done.stdout.splitlines()[1:] == ["row 0:", "  n: 0", "row 1:", "  n: 1"]
        database.execute(insert, (0,))
        database.commit()
    done = preview("job.yaml")
    assert done.exit_code == 2
    messages.check(done.stderr)


def test_ray_is_not_started_and_nothing_is_written(
    job_file: JobFile, module: str, tmp_path: Path
) -> None:
    file, temporary = job_file(python("show", module)), tmp_path / "temporary"
    temporary.mkdir()
    before = files_in(tmp_path)
    code = f"""
import subprocess, sys
def refuse(*_, **__):
    raise AssertionError("a process was started")
subprocess.Popen.__init__ = refuse
from batchinference.cli.main import app
app(["preview", {file!r}], standalone_mode=False)
import ray
print("unneeded:", *sorted({{"PIL", "huggingface_hub", "torch"}} & sys.modules.keys()))
print("started:", ray.is_initialized())
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert "show: 5 returned" in done.stdout
    assert done.stdout.endswith("unneeded:\nstarted: False\n")
    assert files_in(tmp_path) == before
    assert not (tmp_path / "out").exists()
