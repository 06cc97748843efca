"""`status`, `list`, `errors` and `logs` of an output on this machine."""

from __future__ import annotations

import json
import re
import time
import webbrowser
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from batchinference.api.output_status import MAX_VALUE
from batchinference.pipeline.execution import cost
from batchinference.pipeline.ray_compat import NodeLifetime
from batchinference.plan.groups import GROUP_LABEL
from batchinference.spec.progress import STARTING
from batchinference.spec.report import PRICES_VARIABLE
from plugins.messages import Messages
from support.jobs.on_ray import job_document, write_lines
from support.jobs.without_ray import invoke_without_ray
from support.outputs.builders import begin_job

LINES = ["fine", "bad 1", "bad 22", "fine too"]


@pytest.fixture
def output(tmp_path: Path, own_code: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the output of a finished job with two failed rows."""
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "in", {"a.txt": LINES})
    steps = [{"name": "own", "python": {"callable": "own_code:refuse_bad"}}]
    job = job_document("demo", "in", "out", steps=steps, errors={"maxRows": 2, "values": True})
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    assert invoke_without_ray("run", "job.yaml").exit_code == 0
    return "./out"


def test_errors_are_grouped_by_step_and_cause(output: str, tmp_path: Path) -> None:
    shown = invoke_without_ray("errors", output)
    assert (shown.exit_code, shown.stderr) == (0, "")
    first, _, group, *example = shown.stdout.splitlines()
    assert first == "2 failed rows, 1 cause"
    assert group.startswith("2 rows, step 'own': ValueError: cannot do bad ... (own_code.py:")
    assert example[0] == f"  for example row 1 of {tmp_path}/in/a.txt:"
    assert example[1].startswith("  ValueError: cannot do bad 1 (own_code.py:")
    assert example[2] == '  values: {"text": "bad 1"}'
    (data,) = json.loads(invoke_without_ray("errors", output, "-o", "json").stdout)
    assert (data["step"], data["rows"], data["example"]["row"]) == ("own", 2, 1)
    assert yaml.safe_load(invoke_without_ray("errors", output, "-o", "yaml").stdout) == [data]


def test_damaged_error_records_are_named(output: str) -> None:
    for records in Path("out/_batchinference/errors").glob("*.parquet"):
        records.write_bytes(b"PAR1 is all that is left")
    shown = invoke_without_ray("errors", output)
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert "/_batchinference/errors/" in shown.stderr
    assert "' is damaged: " in shown.stderr


def test_length_of_values_is_limited(output: str) -> None:
    for records in Path("out/_batchinference/errors").glob("*.parquet"):
        table = pq.read_table(records)
        rows = [row | {"values": "x" * 60_000} for row in table.to_pylist()]
        pq.write_table(pa.Table.from_pylist(rows, table.schema), records)
    (group,) = json.loads(invoke_without_ray("errors", output, "-o", "json").stdout)
    assert group["example"]["values"] == "x" * MAX_VALUE + "..."


def test_status_of_a_complete_output(output: str) -> None:
    shown = invoke_without_ray("status", output)
    assert (shown.exit_code, shown.stderr) == (0, "")
    state, last_run = shown.stdout.split("\nlast run\n")
    lines = dict(re.split(" {2,}", line, maxsplit=1) for line in state.splitlines())
    assert lines["state"] == "complete"
    assert lines["rows"] == "4 of 4 (100 %)"
    assert (lines["failed rows"], lines["written"]) == ("2", "2")
    assert "_batchinference/logs/" in state
    assert "rows    4 read, 2 written, 2 failed" in last_run
    (data,) = json.loads(invoke_without_ray("status", output, "-o", "json").stdout)
    assert (data["state"], data["rows"], data["percent"]) == ("complete", 4, 100)
    counts = {"read": 4, "written": 2, "failed": 2, "filtered": 0, "warned": 0}
    assert data["report"]["counts"] == counts
    watched = invoke_without_ray("status", output, "--watch")
    assert (watched.exit_code, watched.stdout) == (0, "complete, 4 rows, 100 %, 2 failed\n")


def test_status_of_a_failed_job_has_its_error(output: str, tmp_path: Path) -> None:
    job = yaml.safe_load((tmp_path / "job.yaml").read_text())
    job["spec"] |= {"errors": {"maxRows": 1}, "write": {**job["spec"]["write"], "path": "new"}}
    (tmp_path / "failed.yaml").write_text(yaml.safe_dump(job))
    assert invoke_without_ray("run", "failed.yaml").exit_code == 1
    shown = invoke_without_ray("status", "./new")
    assert "TooManyErrors: 2 rows failed, limit: errors.maxRows (1)" in shown.stdout
    watched = invoke_without_ray("status", "./new", "--watch")
    assert (watched.exit_code, "unfinished" in watched.stdout) == (1, True)


def test_status_of_a_running_job_shows_its_heartbeat(tmp_path: Path) -> None:
    write_lines(tmp_path / "in", {"a.txt": LINES})
    run = begin_job(job_document("demo", tmp_path / "in", tmp_path / "out"))
    (run.job_pass.directory / "heartbeat").write(b"1")
    shown = invoke_without_ray("status", str(tmp_path / "out"))
    assert f"state      {STARTING}" in shown.stdout
    assert "heartbeat" in shown.stdout


def test_log_of_the_last_run(output: str) -> None:
    log = invoke_without_ray("logs", output).stdout
    assert "demo: succeeded" in log
    assert invoke_without_ray("logs", output, "--follow").stdout == log
    (log,) = invoke_without_ray("logs", output, "--list").stdout.split()
    assert Path(log).is_file()


@pytest.mark.parametrize(("limit", "code"), [(2, 0), (1, 1)], ids=["succeeded", "failed"])
def test_report_of_a_run_with_prices_has_its_cost(
    output: str, monkeypatch: pytest.MonkeyPatch, limit: int, code: int
) -> None:
    prices = {"currency": "EUR", "perHour": {"cpu": 2.0}, "before": 1.5}
    monkeypatch.setenv(PRICES_VARIABLE, json.dumps(prices))
    hour = NodeLifetime({GROUP_LABEL: "cpu"}, time.time() - 3600, None)
    monkeypatch.setattr(cost, "node_lifetimes", lambda: [hour])
    job = yaml.safe_load(Path("job.yaml").read_text())
    job["spec"] |= {"errors": {"maxRows": limit}, "write": {**job["spec"]["write"], "path": "new"}}
    Path("priced.yaml").write_text(yaml.safe_dump(job))
    assert invoke_without_ray("run", "priced.yaml").exit_code == code
    shown = "3.50 EUR (2.00 in this run, 1.50 in earlier attempts)"
    assert f"cost    {shown}\n" in invoke_without_ray("status", "./new").stdout
    page = Path("new/_batchinference/report.html").read_text()
    assert f"<dd>{shown}</dd>" in page
    assert "<dt>Estimated cost</dt><dd>3.50 EUR</dd>" in page
    without = Path(output, "_batchinference/report.html").read_text()
    assert "Estimated cost" not in without


def test_report_of_an_output_is_opened(output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    shown = invoke_without_ray("status", output, "--open")
    page = Path("out/_batchinference/report.html").absolute()
    assert opened == [page.as_uri()]
    assert shown.stdout.splitlines()[-1].endswith("out/_batchinference/report.html")
    page.unlink()
    assert invoke_without_ray("status", output, "--open").exit_code == 2


def test_outputs_below_a_directory_are_listed(output: str, messages: Messages) -> None:
    Path("deep/er").mkdir(parents=True)
    Path("out").rename("deep/er/out")
    shown = invoke_without_ray("list")
    header, line = shown.stdout.splitlines()
    assert header.split()[:3] == ["output", "state", "rows"]
    assert re.split(" {2,}", line)[1:3] == ["complete", "4 rows, 100 %"]
    (data,) = json.loads(invoke_without_ray("list", "deep", "-o", "json").stdout)
    assert (data["state"], data["rows"], data["failed"]) == ("complete", 4, 2)
    assert Path(data["output"]) == Path("deep/er/out").absolute()
    messages.check(invoke_without_ray("list", "in").stdout)
    for command in ("list", "ui"):
        missing = invoke_without_ray(command, "nowhere/")
        assert missing.exit_code == 2
        messages.check(missing.stderr)


def test_damaged_output_does_not_hide_the_others_of_a_list(output: str, tmp_path: Path) -> None:
    for damaged in ("a", "z"):
        (tmp_path / damaged / "_batchinference").mkdir(parents=True)
        (tmp_path / damaged / "_batchinference/job.json").write_text("[]")
    shown = invoke_without_ray("list", ".")
    assert (shown.exit_code, len(shown.stdout.splitlines())) == (2, 2)
    assert shown.stderr.count("job.json' is damaged") == 2


def test_report_is_opened_after_the_last_update(
    output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    assert invoke_without_ray("status", output, "--watch", "--open").exit_code == 0
    assert len(opened) == 1


def test_run_prints_its_report_as_data(output: str) -> None:
    done = invoke_without_ray("run", "job.yaml", "--restart", "--quiet", "-o", "json")
    assert (done.exit_code, done.stderr) == (0, "")
    assert json.loads(done.stdout)["counts"]["failed"] == 2
    sampled = invoke_without_ray("run", "job.yaml", "--quiet", "--sample", "1")
    assert ("fine" in sampled.stderr, "result" in sampled.stderr) == (True, False)
    failed = invoke_without_ray("run", "nowhere.yaml", "--quiet")
    assert (failed.exit_code, failed.stdout) == (2, "")


@pytest.mark.parametrize("command", ["status", "errors", "logs", "ui"])
def test_a_path_without_an_output_is_refused(
    output: str, tmp_path: Path, command: str, messages: Messages
) -> None:
    named = [output] if command == "ui" else []
    done = invoke_without_ray(command, *named, str(tmp_path / "in"))
    assert (done.exit_code, done.stdout) == (2, "")
    messages.check(done.stderr)
