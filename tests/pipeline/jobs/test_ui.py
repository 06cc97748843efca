"""The page of `batchinference ui` over real outputs."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from batchinference.api.output_status import failed_row
from batchinference.api.targets import Target
from batchinference.cli.show_ui import show_ui
from batchinference.ui import server
from batchinference.ui.observed_jobs import GivenJobs
from batchinference.ui.site import POLICY, REPORT_POLICY, Site
from support.jobs.on_ray import job_document, write_lines
from support.jobs.without_ray import invoke_without_ray, run_without_ray
from support.outputs.builders import begin_job

LINES = ["fine", "bad 1", "bad 22", "fine too"]


def site_of(*outputs: Path) -> Site:
    return Site(GivenJobs([Target(str(output)) for output in outputs]))


def page(site: Site, path: str) -> str:
    answer = site.answer(path)
    assert answer.status == 200
    return answer.content.decode()


@pytest.fixture
def failed_rows(tmp_path: Path, own_code: Path) -> Path:
    """Return the output of a finished job with two failed rows."""
    write_lines(tmp_path / "in", {"a.txt": LINES})
    run(tmp_path)
    return tmp_path / "out"


def run(tmp_path: Path, **fields: Any) -> None:
    steps = [{"name": "own", "python": {"callable": "own_code:refuse_bad"}}]
    job = job_document("demo", tmp_path / "in", tmp_path / "out", steps=steps,
                       errors={"maxRows": 2, "values": True}, **fields)  # fmt: skip
    assert run_without_ray(job).state == "succeeded"


def rows_of(shown: str) -> list[str]:
    """Return the addresses of the failed rows on the page of a job."""
    return [f"jobs/{unquote(link)}" for link in re.findall(r'href="(0/rows/[^"]+)"', shown)]


def test_list_shows_all_given_outputs(tmp_path: Path, failed_rows: Path) -> None:
    shown = page(site_of(failed_rows, tmp_path / "absent"), "")
    assert "complete" in shown
    assert "4 of 4" in shown
    assert "does not exist" in shown


def test_page_of_a_job_groups_its_failed_rows(failed_rows: Path) -> None:
    shown = page(site_of(failed_rows), "jobs/0")
    assert "ValueError: cannot do bad ..." in shown
    assert "row 1 of" in shown
    assert 'href="0/report"' in shown
    assert len(rows_of(shown)) == 2
    assert "<h1>demo</h1>" in shown


def test_page_of_a_failed_row_has_its_values_error_and_traceback(failed_rows: Path) -> None:
    site = site_of(failed_rows)
    shown = page(site, rows_of(page(site, "jobs/0"))[0])
    for part in ("Row 1 of", "a.txt", "cannot do bad 1", "Traceback", "own", "bad 1</td>"):
        assert part in shown


def test_rows_of_different_additions_are_not_mixed(tmp_path: Path, own_code: Path) -> None:
    for name in ("a.txt", "b.txt"):  # in both, the id of the row is 0:1
        write_lines(tmp_path / "in", {name: ["fine", f"bad {name}"]})
        run(tmp_path, write={"mode": "append"})
    site = site_of(tmp_path / "out")
    texts = [page(site, path) for path in rows_of(page(site, "jobs/0"))]
    for name in ("a.txt", "b.txt"):
        assert sum(f"bad {name}" in text for text in texts) == 1


def test_page_of_a_row_has_a_limited_number_of_records(failed_rows: Path) -> None:
    key = rows_of(page(site_of(failed_rows), "jobs/0"))[0].rpartition("/")[2]
    numbers = [len(failed_row(str(failed_rows), key, limit)) for limit in (0, 1)]
    assert numbers == [0, 1]


def test_stored_report_is_shown_without_scripts_in_an_origin_of_its_own(failed_rows: Path) -> None:
    (report,) = failed_rows.glob("_batchinference/report.html")
    report.write_text("<script>steal()</script>")
    answer = site_of(failed_rows).answer("jobs/0/report")
    assert answer.policy == REPORT_POLICY != POLICY
    assert answer.policy.startswith("sandbox;")
    report.unlink()
    assert site_of(failed_rows).answer("jobs/0/report").status == 404


def test_running_job_is_updated(tmp_path: Path) -> None:
    write_lines(tmp_path / "in", {"a.txt": LINES})
    begin_job(job_document("demo", tmp_path / "in", tmp_path / "out"))
    shown = page(site_of(tmp_path / "out"), "jobs/0")
    assert "running" in shown
    assert "data-refresh" in shown


@pytest.mark.parametrize(
    "path", ["jobs/7", "jobs/0/other", "jobs/0/rows/0:0", "jobs/0/rows/x", "../etc/passwd"]
)
def test_unknown_page_is_not_found(failed_rows: Path, path: str) -> None:
    assert site_of(failed_rows).answer(path).status == 404


def test_port_in_use_is_refused(failed_rows: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        done = invoke_without_ray("ui", str(failed_rows), "--port", str(port))
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"ui: --port: port {port} cannot be used" in done.stderr


def test_the_first_free_port_is_used(
    failed_rows: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(server.ThreadingHTTPServer, "serve_forever", interrupted)
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        for ports, code in (([port, 0], 0), ([port, port], 2)):
            assert show_ui([str(failed_rows)], None, None, ports, browser=False) == code
            assert f":{port}/" not in capsys.readouterr().out
