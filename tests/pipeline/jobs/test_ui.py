"""The page of `batchinference ui` over real outputs."""

from __future__ import annotations

import re
import shutil
import socket
from pathlib import Path

import pytest
import yaml

from batchinference.api.targets import Target
from batchinference.cli import show_ui
from batchinference.ui import server
from batchinference.ui.jobs import GivenJobs
from batchinference.ui.site import POLICY, REPORT_POLICY, SearchTrust, Site
from support.documents.minimal import Document, document
from support.inputs.formats import pictures, png
from support.jobs.on_ray import job_document, write_lines
from support.jobs.without_ray import invoke_without_ray, run_without_ray
from support.outputs.builders import begin_job, embedded, finished_output, vectors

LINES = ["fine", "bad 1", "bad 22", "fine too"]


def site_of(*outputs: Path | str, trust: SearchTrust | None = None) -> Site:
    return Site(GivenJobs([Target(str(output)) for output in outputs]), trust or SearchTrust())


def page(site: Site, path: str, **query: str) -> str:
    answer = site.answer(path, query)
    assert answer.status == 200
    return answer.content.decode()


@pytest.fixture
def failed_rows(tmp_path: Path, own_code: Path) -> Path:
    """Return the output of a finished job with two failed rows."""
    write_lines(tmp_path / "in", {"a.txt": LINES})
    steps = [{"name": "own", "python": {"callable": "own_code:refuse_bad"}}]
    job = job_document("demo", tmp_path / "in", tmp_path / "out", steps=steps,
                       errors={"maxRows": 2})  # fmt: skip
    assert run_without_ray(job).state == "succeeded"
    return tmp_path / "out"


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
    assert "search" not in shown


def test_stored_report_is_shown_without_scripts_in_an_origin_of_its_own(failed_rows: Path) -> None:
    (report,) = failed_rows.glob("_batchinference/report.html")
    report.write_text("<script>steal()</script>")
    answer = site_of(failed_rows).answer("jobs/0/report", {})
    assert answer.policy == REPORT_POLICY != POLICY
    assert answer.policy.startswith("sandbox;")
    report.unlink()
    assert site_of(failed_rows).answer("jobs/0/report", {}).status == 404


def test_running_job_is_updated(tmp_path: Path) -> None:
    write_lines(tmp_path / "in", {"a.txt": LINES})
    begin_job(job_document("demo", tmp_path / "in", tmp_path / "out"))
    shown = page(site_of(tmp_path / "out"), "jobs/0")
    assert "running" in shown
    assert "data-refresh" in shown


@pytest.mark.parametrize("path", ["jobs/7", "jobs/0/other", "jobs/0/report/more", "../etc/passwd"])
def test_unknown_page_is_not_found(failed_rows: Path, path: str) -> None:
    assert site_of(failed_rows).answer(path, {}).status == 404


def test_page_of_an_output_with_embeddings_links_to_the_search(
    tmp_path: Path, own_code: Path
) -> None:
    write_lines(tmp_path / "in", {"a.txt": ["a dog", "a cat"]})
    steps = [{"name": "own", "python": {"callable": "own_code:VectorsOfDogs"}}]
    job = job_document("demo", tmp_path / "in", tmp_path / "out", steps=steps,
                       write={"format": "parquet"})  # fmt: skip
    assert run_without_ray(job).state == "succeeded"
    site = site_of(tmp_path / "out")
    assert 'href="0/search"' in page(site, "jobs/0")
    assert "a dog" in page(site, "jobs/0/search", row="0")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Return a directory of three images."""
    (tmp_path / "photos").mkdir()
    for number, pixels in enumerate(pictures(3)):
        (tmp_path / "photos" / f"{number}.png").write_bytes(png(pixels))
    return tmp_path / "photos"


def searchable(directory: Path, photos: Path, *paths: str) -> str:
    """Return an output with embeddings, whose rows have these paths."""
    read: Document = {"format": "images", "paths": [str(photos)]}
    table = embedded(vectors(len(paths), 4), path=list(paths))
    return finished_output(directory / "out", table, read=read)


def images_on(shown: str) -> int:
    return len(re.findall(r'<img src="data:image/jpeg;base64,[^"]{100,}"', shown))


def test_search_shows_pictures_of_a_trusted_output(tmp_path: Path, photos: Path) -> None:
    outside = tmp_path / "private.png"
    outside.write_bytes((photos / "0.png").read_bytes())
    output = searchable(tmp_path, photos, *sorted(map(str, photos.iterdir())), str(outside))
    site = site_of(output, trust=SearchTrust(trusted=True))
    shown = page(site, "jobs/0/search", row="1")
    assert "<strong>1.0000</strong> row 1" in shown
    assert "4 rows" in shown
    assert images_on(shown) == 3  # not of the address outside of the input


def test_search_reads_no_address_of_an_output_that_is_not_trusted(
    tmp_path: Path, photos: Path
) -> None:
    output = searchable(tmp_path, photos, *map(str, photos.iterdir()))
    shown = page(site_of(output), "jobs/0/search", row="1")
    assert "3 rows" in shown
    assert images_on(shown) == 0
    refused = page(site_of(output), "jobs/0/search", text="a cat")
    assert "Pass --model JOB.yaml" in refused


def test_search_with_the_users_job_shows_pictures_of_its_input(
    tmp_path: Path, photos: Path
) -> None:
    output = searchable(tmp_path, photos, *map(str, photos.iterdir()))
    job = document(read={"format": "images", "paths": ["./photos"]})
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    site = site_of(output, trust=SearchTrust(job=str(tmp_path / "job.yaml")))
    assert images_on(page(site, "jobs/0/search", row="1")) == 3


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ({"row": "9"}, "there is no row 9"),
        ({"row": "1", "text": "a"}, "give exactly one of"),
        ({"row": "1", "where": "exec('n')"}, "unknown function"),
        ({"row": "1", "where": "absent == 1"}, "absent"),
    ],
)
def test_wrong_query_is_explained(
    tmp_path: Path, photos: Path, query: dict[str, str], problem: str
) -> None:
    output = searchable(tmp_path, photos, *map(str, photos.iterdir()))
    shown = page(site_of(output), "jobs/0/search", **query)
    assert 'role="alert"' in shown
    assert problem in shown


def test_port_in_use_is_refused(failed_rows: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        done = invoke_without_ray("ui", str(failed_rows), "--port", str(port))
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"ui: --port: port {port} cannot be used" in done.stderr


def test_the_first_free_port_is_taken_by_default(
    failed_rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(server.ThreadingHTTPServer, "serve_forever", interrupted)
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        monkeypatch.setattr(show_ui, "DEFAULT_PORTS", [port, 0])
        done = invoke_without_ray("ui", str(failed_rows), "--no-browser")
        assert done.exit_code == 0
        assert f":{port}/" not in done.stdout
        monkeypatch.setattr(show_ui, "DEFAULT_PORTS", [port, port])
        assert invoke_without_ray("ui", str(failed_rows), "--no-browser").exit_code == 2


def test_search_sees_an_output_that_was_replaced(tmp_path: Path, photos: Path) -> None:
    paths = list(map(str, photos.iterdir()))
    output = searchable(tmp_path, photos, *paths)
    site = site_of(output)
    assert "3 rows" in page(site, "jobs/0/search", row="1")
    shutil.rmtree(output)
    searchable(tmp_path, photos, *paths[:2])
    assert "2 rows" in page(site, "jobs/0/search", row="1")
