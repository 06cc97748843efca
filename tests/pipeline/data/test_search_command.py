"""`batchinference search` over a finished output: its output and exit codes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from click.testing import Result

from support.documents.minimal import document
from support.outputs.builders import embedded, finished_output, vectors
from support.program import run_program

ROWS = vectors(12, 4)


def search(*arguments: str) -> Result:
    return run_program("search", *arguments)


def hits(*arguments: str) -> list[dict[str, Any]]:
    result = search(*arguments, "-o", "json")
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> str:
    columns = {
        "name": [f"[b]name {n}[/b]" for n in range(12)],
        "size": [float(n) if n else math.nan for n in range(12)],
        "bytes": [b"\xff"] * 12,
        "pixels": [[[1, 2]]] * 12,
    }
    return finished_output(tmp_path_factory.mktemp("out") / "out", embedded(ROWS, **columns))


def test_data_has_an_object_per_row(out: str) -> None:
    assert len(hits(out, "--row", "0")) == 5, "the default"
    found = hits(out, "--row", "0", "-k", "3")
    assert [hit["rank"] for hit in found] == [1, 2, 3]
    assert found[0]["row"] == 0
    assert found[0]["similarity"] == pytest.approx(1, abs=1e-6)
    assert found[0]["columns"] == {"name": "[b]name 0[/b]", "size": None, "bytes": "/w=="}
    assert found[0]["similarity"] > found[1]["similarity"] > found[2]["similarity"]


def test_table_shows_all_columns_except_tensors(out: str) -> None:
    shown = search(out, "--row", "7", "-k", "2").stdout.splitlines()
    assert shown[0].split() == ["RANK", "SIMILARITY", "ROW", "name", "size", "bytes"]
    assert shown[1].split() == ["1", "1.0000", "7", "[b]name", "7[/b]", "7.0", "b'\\xff'"]
    assert len(shown) == 3


def test_where_selects_rows(out: str) -> None:
    found = hits(out, "--row", "5", "--where", "size > 8", "-k", "10")
    assert sorted(hit["row"] for hit in found) == [9, 10, 11]
    assert hits(out, "--row", "5", "--where", "size > 100") == []
    assert search(out, "--row", "5", "--where", "size > 100").stdout.split() == [
        *("RANK", "SIMILARITY", "ROW")
    ]


def test_invalid_query_exits_with_2(out: str) -> None:
    for arguments, reason in (
        (["--row", "12"], ""),
        (["--row", "0", "--column", "name"], ""),
        (["--text", "a"], ""),
        (["--row", "5", "--where", "sise > 8"],
         "--where reads column 'sise', but the columns here are name, size"),
        (["--row", "5", "--where", "name > 8"],
         "--where: the filter cannot be computed: name > 8"),
        (["--row", "5", "--where", "size + 1"],
         "--where: the filter gives double, not true or false: size + 1"),
    ):  # fmt: skip
        result = search(out, *arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith(f"search: {reason}")
        assert reason or len(result.stderr.splitlines()) == 1


def test_rows_without_embedding_are_counted_on_stderr(tmp_path: Path) -> None:
    lists = pa.array([[1.0, 2.0], None, [0.0, 0.0]], pa.list_(pa.float32()))
    out = finished_output(tmp_path / "out", pa.table({"embedding": lists}))
    result = search(out, "--row", "0")
    assert result.exit_code == 0
    assert result.stderr == "search: 2 row(s) have no embedding\n"
    assert len(result.stdout.splitlines()) == 2


def test_damaged_output_exits_with_2_and_missing_model_with_1(tmp_path: Path) -> None:
    model = {
        **{"runtime": "transformers", "task": "feature-extraction", "source": "/nowhere/model"},
        **{"inputs": {"text": "text"}, "output": "embedding"},
    }
    steps = [{"name": "embed", "model": model}]
    out = finished_output(tmp_path / "out", embedded(ROWS), steps=steps)
    result = search(out, "--text", "a cat", "--trust-output")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "model '/nowhere/model' not found" in result.stderr
    (Path(out) / "part-0000.parquet").write_bytes(b"nonsense")
    result = search(out, "--row", "0")
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"'{out}' cannot be read" in result.stderr


def test_model_of_an_output_is_not_loaded_unless_trusted(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    model = {"runtime": "torch", "factory": "os:system", "inputs": {"text": "text"}}
    steps = [{"name": "embed", "model": {**model, "output": "embedding"}}]
    out = finished_output(tmp_path / "out", embedded(ROWS), steps=steps)
    state = tmp_path / "out" / "_batchinference" / "spec.json"
    spec = json.loads(state.read_text())
    spec["steps"][0]["model"]["factoryArgs"] = {"command": f"touch {marker}"}
    state.write_text(json.dumps(spec))
    result = search(out, "--text", "a cat")
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"a model that '{out}' names" in result.stderr
    assert "--trust-output" in result.stderr
    assert not marker.exists()
    result = search(out, "--text", "a cat", "--trust-output")
    assert marker.exists()
    loaded = {"runtime": "torch", "factory": "os:system"}
    loaded["factoryArgs"] = spec["steps"][0]["model"]["factoryArgs"]
    assert result.stderr.startswith(f"search: '{out}' is trusted: loading {json.dumps(loaded)}\n")


def test_own_job_file_embeds_the_query(tmp_path: Path, bert: str) -> None:
    model = {"runtime": "transformers", "task": "feature-extraction", "output": "embedding"}
    own = {**model, "source": bert, "inputs": {"text": "text"}}
    hostile = {**own, "source": "/nowhere/model"}
    out = finished_output(
        tmp_path / "out", embedded(vectors(4, 32)), steps=[{"name": "embed", "model": hostile}]
    )
    job = document(write={"format": "parquet", "path": out}, steps=[{"name": "e", "model": own}])
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    found = search(out, "--text", "a cat", "--model", str(tmp_path / "job.yaml"), "-o", "json")
    assert found.exit_code == 0, found.output
    (tmp_path / "job.yaml").write_text("{")
    found = search(out, "--text", "a cat", "--model", str(tmp_path / "job.yaml"))
    assert found.exit_code == 2
    assert found.stderr.startswith(f"search: --model '{tmp_path / 'job.yaml'}'")
