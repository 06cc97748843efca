"""The report of a job as an HTML page: its content, that untrusted values are safe, and that what
limits the job follows from the measured times."""

from __future__ import annotations

import base64
import io
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from batchinference.credentials import MASK
from batchinference.pipeline import html_report
from batchinference.pipeline.html_report.page import MAX_JOB, render
from batchinference.pipeline.html_report.performance_advice import advice, bottleneck
from batchinference.pipeline.html_report.sample_rows import Cell, cell
from batchinference.pipeline.html_report.thumbnails import THUMBNAIL
from batchinference.pipeline.output.error_groups import ErrorGroup, fields_of
from batchinference.spec import parse
from batchinference.spec.causes import Cause
from batchinference.spec.report import JobState
from plugins.messages import Messages
from support.documents.http_models import chat
from support.documents.minimal import document
from support.documents.refusals import short
from support.documents.report_pages import STEPS, SUCCEEDED, Page, cut_on_a_phone, page_data
from support.jobs.without_ray import run_without_ray, small_job, write_input

HOSTILE = (
    "</title></style></pre><script>alert(1)</script>\"'><img src=x onerror=alert(1)>\x1b[31m\u202e&"
)
ALLOWED = {
    *("html", "head", "meta", "title", "style", "body", "header", "main", "footer", "section"),
    *("h1", "h2", "h3", "p", "strong", "dl", "div", "dt", "dd", "ul", "li", "span", "time", "pre"),
    *("figure", "figcaption", "details", "summary", "img", "svg", "desc", "line", "text", "path"),
    *("circle", "table", "thead", "tbody", "tr", "th", "td", "a", "br"),
}
TRUNCATED = {
    "path": "a.jpg",
    "row": 0,
    "error": "OSError: truncated",
    "traceback": "File steps.py",
    "values": '{"n": 1}',
}
ERRORS = [
    ErrorGroup("decode", "OSError: truncated", 57, [TRUNCATED]),
    ErrorGroup(
        "classify", "ValueError: no", 3, [{"path": "b.jpg", "row": 4, "error": "ValueError: no"}]
    ),
]


def shown(report: dict[str, Any] | None = None, **given: Any) -> Page:
    return Page(render(page_data(report, **given)))


def pixels(height: int = 200, width: int = 300) -> np.ndarray:
    return np.full((height, width, 3), 200, np.uint8)


def encoded(file_format: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels()).save(buffer, file_format)
    return buffer.getvalue()


def test_page_of_a_succeeded_job(messages: Messages) -> None:
    page = shown(errors=ERRORS, sample=[{"label": Cell("pug")}, {"label": Cell("corgi")}])
    messages.check([text for path, text in page.texts if path[-1] in ("h1", "h2")])  # fmt: skip
    text = page.text()
    for part in (
        *("succeeded", "1,000 rows in 1m11s", "Read 1,000", "Failed 60", "Filtered 40", "1.5 GiB"),
        *("preparing 9.0 s", "decode slowest", "86 %", "steps:decode", "len(text) > 3"),
        *("57 decode OSError: truncated", "Row 0 of a.jpg", "File steps.py", "Value n 1 File"),
        *(
            "label pug corgi",
            "python 3.11.16, ray 2.60.0",
            "apiVersion: batchinference.dev/v1beta1",
        ),
    ):
        assert part in text
    assert "1,000 rows finished after 1m00s" in page.text("desc")


def test_page_of_a_failed_job_states_the_cause_and_the_remedy() -> None:
    failed = {"state": "failed", "reason": "BadInput", "message": "there is no 'in'", "seconds": {},
              "counts": None, "progress": None, "steps": {}, "rowsOverTime": None}  # fmt: skip
    text = shown(failed).text()
    assert "Why it failed BadInput : the input is missing, empty or unreadable." in text
    assert "there is no 'in'" in text
    assert f"What to do: {Cause.BAD_INPUT.remedy.replace('`', '')}" in text
    assert "Time" not in text


def test_page_has_the_waiting_of_pools_and_the_cpus_only_if_they_are_known() -> None:
    times = {"computeSeconds": 5, "waitSeconds": 3.0, "blockedSeconds": 2}
    steps = {**STEPS, "classify": {**STEPS["classify"], **times}}
    text = shown({"steps": steps, "capacity": {"cpus": 4, "writers": 2}}).text()
    assert "computed 50 %, waited for rows 30 %, waited for the write 20 % 198.0" in text
    assert "CPUs for tasks 4" in text
    assert not re.search("Replicas|computed|CPUs for tasks", shown().text())


@pytest.mark.parametrize(("load", "slowest"), [(3.0, "decode slowest"), (100.0, "models slowest")])
def test_page_has_the_loading_of_models_among_the_times(load: float, slowest: str) -> None:
    steps = {**STEPS, "classify": {**STEPS["classify"], "loadSeconds": load}}
    text = shown({"steps": steps}).text()
    assert "loading models" in text
    assert re.findall(r"\w+ slowest", text) == [slowest]


def test_failed_rows_and_their_groups_lead_to_the_stored_values() -> None:
    page = shown(errors=ERRORS)
    links = [link["href"] for link in page.all("a")]
    assert links == ["#failed-1-1", "#failed-2-1"]
    headings = [result["id"] for result in page.all("h3") if "id" in result]
    assert headings[1:] == ["failed-1-1", "failed-2-1"]
    assert page.text().count("errors.values: true") == 1  # the second row has no values


def test_page_says_what_it_leaves_out() -> None:
    columns = {f"c{number}": "'" + "y" * 2000 + "'" for number in range(MAX_JOB // 2000)}
    steps = [{"name": "long", "addColumns": columns}]
    text = shown(errors=ERRORS[:1], steps=steps, sample=[{"label": Cell("pug")}]).text()
    assert "This page shows 57 rows of 60." in text
    assert "1 row; columns: at most the first 1." in text
    assert re.search(r"\.\.\. [\d,]+ more characters", text)
    assert "This page shows" not in shown(errors=ERRORS).text()


@pytest.mark.parametrize(
    ("values", "fields"),
    [
        ('{"n": 1, "text": "a", "l": [1, null]}', [("n", "1"), ("text", "a"), ("l", "[1, null]")]),
        ("not JSON", [("", "not JSON")]),
        ("[1]", [("", "[1]")]),
        (5, [("", "5")]),
    ],
)  # fmt: skip
def test_stored_values_of_a_row_are_shown_by_column(
    values: Any, fields: list[tuple[str, str]]
) -> None:
    assert fields_of(values) == fields


@pytest.mark.parametrize(
    ("report", "start"),
    [
        ({"seconds": {"preparing": 100}}, ""),
        ({"counts": {"read": 25}, "seconds": {"preparing": 20, "running": 60}}, "45 s"),
        ({"counts": {"read": 25}, "seconds": {"preparing": 1, "running": 40}}, ""),
        ({"counts": {"read": 25}, "steps": {}}, ""),
    ],
    ids=["many rows", "mostly the start", "mostly work", "not measured"],
)  # fmt: skip
def test_speed_of_a_small_job_is_explained_by_its_start(report: dict[str, Any], start: str) -> None:
    assert page_data(report).report.start_text.partition(" for")[0] == start
    assert bool(start) == ("of which" in shown(report).text("header"))


def test_paths_of_the_page_are_normalized() -> None:
    given = document("a", read={"format": "text", "paths": ["/home/me/jobs/../in"]})
    data = page_data({"output": "/home/me/jobs/../out"})
    text = render(replace(data, spec=parse(given).spec))
    assert "/home/me/out" in text
    assert "paths: /home/me/in" in text


def test_smallest_report_is_a_page() -> None:
    only = {name: SUCCEEDED[name] for name in ("name", "state", "output", "version")}
    empty = {name: None for name in SUCCEEDED if name not in only} | {"steps": {}, "seconds": {}}
    times = {name: SUCCEEDED[name] for name in ("startedAt", "updatedAt")}
    page = shown(empty | only | times | {"versions": {}})
    assert page.all("svg") == []


def test_page_is_self_contained_and_accessible(messages: Messages) -> None:
    page = shown(errors=ERRORS, sample=[{"image": cell("image", pixels())}])
    assert {tag for tag, _ in page.elements} <= ALLOWED
    assert page.all("html") == [{"lang": "en"}]
    (policy,) = (meta for meta in page.all("meta") if "http-equiv" in meta)
    messages.check(policy["content"])
    ids = [element["id"] for _, element in page.elements if "id" in element]
    assert len(ids) == len(set(ids))
    named = [value["aria-labelledby"] for _, value in page.elements if "aria-labelledby" in value]
    assert {part for one in named for part in one.split()} <= set(ids)
    assert {link["href"].removeprefix("#") for link in page.all("a")} <= set(ids)
    assert all(result.get("scope") in ("row", "col") for result in page.all("th"))
    assert [svg["role"] for svg in page.all("svg")] == ["img"]
    (image,) = page.all("img")
    assert image["src"].startswith("data:image/jpeg;base64,")
    assert image["alt"] == "image of row 1, 300 x 200 pixels"
    assert "prefers-color-scheme: dark" in page.text("style")


def test_tables_scroll_or_become_cards_on_a_phone() -> None:
    pools = {**STEPS, "classify": {**STEPS["classify"], "waitSeconds": 3.0, "loadSeconds": 2.0}}
    html = render(page_data({"steps": pools}, errors=ERRORS, sample=[{"label": Cell("pug")}]))
    assert cut_on_a_phone(html) == []


def test_hostile_values_are_shown_as_text() -> None:
    record = dict.fromkeys(("path", "row", "step", "error", "traceback", "values"), HOSTILE)
    report = {
        **dict.fromkeys(("name", "reason", "message", "output", "errors", "version"), HOSTILE),
        "state": "failed",
        "notes": [HOSTILE],
        "versions": {HOSTILE: HOSTILE},
        "steps": {HOSTILE: STEPS["decode"]},
        "seconds": {HOSTILE: 3.0},
    }
    html = render(
        page_data(
            report,
            errors=[ErrorGroup(HOSTILE, HOSTILE, 1, [record])],
            sample=[{HOSTILE: Cell(HOSTILE)}],
            steps=[{"name": "f", "filter": "contains(text, '</pre><script>')"}],
        )
    )
    page = Page(html)
    assert {tag for tag, _ in page.elements} <= ALLOWED
    names = {name for _, element in page.elements for name in element}
    assert {name for name in names if name.startswith("on") or name == "action"} == set()
    assert {link["href"] for link in page.all("a")} == {"#failed-1-1"}
    assert page.all("img") == []
    assert "\x1b" not in html
    assert "\u202e" not in html
    assert "<script>alert(1)</script>" in page.text()


def test_secrets_are_masked() -> None:
    step = {
        "name": "own",
        "python": {"callable": "steps:Own", "constructorArgs": {"key": "secret-1"}},
    }
    read = {"format": "text", "paths": ["s3://user:secret-2@store/in"]}
    data = page_data(steps=[step], sample=[{"password": cell("password", "secret-3")}])
    spec = data.spec.model_copy(update={"read": data.spec.read.model_copy(update=read)})
    html = render(type(data)(data.report, spec, data.errors, data.sample))
    assert "secret-" not in html
    assert MASK in html


@pytest.mark.parametrize(
    ("value", "text", "image"),
    [
        (pixels(), "300 x 200 pixels", True),
        (pixels()[:, :, 0], "300 x 200 pixels", True),
        (encoded("png"), "300 x 200 pixels", True),
        ({"bytes": encoded("webp"), "path": "a"}, "300 x 200 pixels", True),
        (encoded("png")[:200], "300 x 200 pixels", False),
        (b"none", "4 bytes", False),
        (pixels(2, 2), "2x2x3 uint8", False),
        (np.zeros(512, np.float32), "512 float32", False),
        ([0.123456789, 1.0, 2.0, 3.0, 4.0], "[0.123457, 1, 2, 3, … (5 values)]", False),
        ({"label": "pug", "score": 0.5}, "label: pug, score: 0.5", False),
        (None, "null", False),
        (True, "true", False),
        ("x" * 1000, "x" * 60 + " ... 880 characters ... " + "x" * 60, False),
    ],
)
def test_value_is_formatted_as_a_cell(value: Any, text: str, image: bool) -> None:
    result = cell("column", value)
    assert (result.text, bool(result.image)) == (text, image)


def test_thumbnail_is_small() -> None:
    content = base64.b64decode(cell("image", pixels()).image.partition(",")[2])
    with Image.open(io.BytesIO(content)) as image:
        assert max(image.size) == THUMBNAIL
    assert len(content) < 4096


@pytest.mark.parametrize(
    ("report", "steps"),
    [
        (
            {"steps": {"ask": STEPS["decode"], "slim": STEPS["classify"]}},
            [{"name": "ask", "model": chat()}],
        ),
        ({"steps": {"decode": STEPS["classify"]}}, None),
        ({"seconds": {"preparing": 90, "running": 30}}, None),
        ({"retries": 2}, None),
        ({"memory": {"peakWorkerBytes": 1, "spilledBytes": 1}}, None),
    ],
    ids=short,
)
def test_report_leads_to_the_expected_advice(
    report: dict[str, Any], steps: Any, messages: Messages
) -> None:
    data = page_data(report, steps=steps)
    messages.check(" ".join(advice(data.report, data.spec)))


def test_short_job_without_failures_has_no_advice() -> None:
    good = {**SUCCEEDED["counts"], "failed": 0}
    few = {name: times | {"rows": 20} for name, times in STEPS.items()}
    for quick in ({"seconds": {"running": 0.5}}, {"steps": few}):
        data = page_data(quick | {"counts": good})
        assert advice(data.report, data.spec) == []


@pytest.mark.parametrize("mode", ["error", "overwrite"])
def test_job_writes_its_page(tmp_path: Path, mode: str) -> None:
    job = small_job(write_input(tmp_path / "in"), tmp_path / "out", mode=mode)
    (tmp_path / "out").mkdir()
    assert run_without_ray(job).state is JobState.SUCCEEDED
    text = Page((tmp_path / "out/_batchinference/report.html").read_text()).text()
    assert "8 rows" in text
    assert "2 half ValueError: negative" in text
    assert "n values half" in text


def test_failed_job_writes_its_page(tmp_path: Path) -> None:
    job = small_job(write_input(tmp_path / "in"), tmp_path / "out")
    job["spec"]["errors"] = {"maxRows": 1}
    assert run_without_ray(job).state is JobState.FAILED
    text = Page((tmp_path / "out/_batchinference/report.html").read_text()).text()
    assert "TooManyErrors : more rows failed, or more warnings occurred, than errors allows" in text
    assert "half ValueError: negative" in text


def test_error_while_writing_the_page_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(html_report, "render", lambda data: 1 / 0)
    job = small_job(write_input(tmp_path / "in"), tmp_path / "out")
    assert run_without_ray(job).state is JobState.SUCCEEDED
    assert not (tmp_path / "out/_batchinference/report.html").exists()


EMBED = {
    "runtime": "transformers",
    "task": "feature-extraction",
    "source": "org/model",
    "inputs": {"text": "text"},
    "output": "vector",
}
ON_GPU = {"name": "embed", "model": EMBED, "resources": {"gpu": 1}}
ASK = {"name": "ask", "model": chat()}
OWN = {"name": "own", "python": {"callable": "steps:Own"}}
SHARE = st.floats(0, 1)
SECONDS = st.floats(1, 1e5)


def times(seconds: float, wait: float | None = None) -> dict[str, Any]:
    result = {"rows": 1000, "rowsPerSecond": 1, "seconds": seconds}
    return {**result, **({} if wait is None else {"waitSeconds": wait})}


def said(
    measured: dict[str, Any],
    steps: list[dict[str, Any]],
    *,
    cpus: float = 4,
    gpus: float = 1,
    running: float = 100,
) -> str | None:
    """Return what limits a job that ran for `running` seconds."""
    capacity = {"cpus": cpus, "gpus": gpus, "writers": max(1, int(cpus / 2))}
    report = {"seconds": {"running": running}, "steps": measured, "capacity": capacity}
    data = page_data(report, steps=steps)
    result = bottleneck(data.report, data.spec)
    assert result is None or result in advice(data.report, data.spec)
    return result


STARVED = {"read": times(300), "embed": times(30, wait=70), "write": times(20)}
MEASURED = times(90, wait=50) | {"computeSeconds": 30, "blockedSeconds": 20}
BLOCKED = times(30, wait=1) | {"blockedSeconds": 69}
FED = {"read": times(100), "embed": times(95, wait=5), "write": times(4)}


@pytest.mark.parametrize(
    ("measured", "steps"),
    [
        (STARVED, [ON_GPU]),
        ({**STARVED, "embed": MEASURED}, [ON_GPU]),
        ({**STARVED, "read": times(100), "embed (preparation)": times(200)}, [ON_GPU]),
        (FED, [ON_GPU]),
        ({"read": times(50), "embed": times(30, wait=70), "write": times(160)}, [ON_GPU]),
        ({"read": times(50), "embed": BLOCKED, "write": times(160)}, [ON_GPU]),
        (
            {"read": times(20), "own": times(95, wait=5), "write": times(1)},
            [{**OWN, "replicas": {"max": 2}, "resources": {"cpu": 2}}],
        ),
        ({"read": times(20), "own": times(190, wait=10), "write": times(1)}, [OWN]),
        ({"read": times(60), "own": times(300), "write": times(10)}, [OWN]),
    ],
    ids=short,
)
def test_limit_of_a_job_is_stated_with_figures(
    measured: dict[str, Any], steps: list[dict[str, Any]], messages: Messages
) -> None:
    messages.check(said(measured, steps) or "")


@pytest.mark.parametrize(
    ("measured", "steps", "changes"),
    [
        ({"embed": times(30, wait=70)}, [ON_GPU], {}),  # reading was not measured
        ({"read": times(300)}, [ON_GPU], {}),  # the model was not measured
        ({**STARVED, "embed": times(30)}, [ON_GPU], {}),  # waiting was not measured
        (STARVED, [ON_GPU], {"gpus": 0}),  # the model ran on the CPU
        (STARVED, [ON_GPU], {"cpus": 16}),  # neither CPUs nor writers nor the GPU are busy
        ({**STARVED, "embed": times(75, wait=25)}, [ON_GPU], {}),  # neither waits nor limits
        (FED, [ON_GPU], {"running": 1000}),  # loading the model took most of the time
        ({"read": times(10), "own": times(20)}, [OWN], {}),  # the CPUs are idle
        ({"read": times(200), "ask": times(190)}, [ASK], {}),  # the step waits for a server
        ({**STARVED, "own": times(9, wait=1)}, [ON_GPU, {**OWN, "replicas": {}}], {}),
    ],
)
def test_nothing_is_said_without_evidence(
    measured: dict[str, Any], steps: list[dict[str, Any]], changes: dict[str, float]
) -> None:
    assert said(measured, steps, **changes) is None


@given(reading=SECONDS, busy=SECONDS, waiting=SECONDS, cpus=st.integers(1, 256))
def test_added_cpus_are_the_least_with_which_the_gpu_never_waits(
    reading: float, busy: float, waiting: float, cpus: int
) -> None:
    measured = {"read": times(reading), "embed": times(busy, wait=waiting)}
    result = said(measured, [ON_GPU], cpus=cpus, running=busy + waiting)
    match = re.search(r"Add (\S+) CPUs? per GPU", result or "")
    if match is None:
        return
    used, added = reading / (busy + waiting), float(match[1].replace(",", ""))
    needed = reading / busy
    assert used >= 0.7 * cpus * (1 - 1e-6)
    assert used + added >= needed * (1 - 1e-6)
    assert used + added - 1 < needed * (1 + 1e-6)


@given(
    shares=st.tuples(SHARE, SHARE, SHARE, SHARE),
    pool=st.booleans(),
    cpus=st.integers(1, 64),
    running=st.floats(1, 1e5),
)
def test_every_percentage_is_a_share(
    *, shares: tuple[float, ...], pool: bool, cpus: int, running: float
) -> None:
    read, busy, wait, write = (share * running for share in shares)
    measured = {"read": times(read * cpus), "write": times(write * cpus)}
    name, step = ("embed", ON_GPU) if pool else ("own", OWN)
    measured[name] = times(busy, wait=wait) if pool else times(busy * cpus)
    result = said(measured, [step], cpus=cpus, running=running) or ""
    assert all(0 <= int(value) <= 100 for value in re.findall(r"(\d+) %", result))
    assert not re.search(r"nan|inf|-\d", result)


@pytest.mark.parametrize("busy", [5e-324, 1e-6, 100])
@pytest.mark.parametrize("reading", [5e-324, 1e-6, 300])
def test_short_times_do_not_overflow(reading: float, busy: float) -> None:
    """The smallest positive number is a valid time of a report."""
    measured = {"read": times(reading), "embed": times(busy, wait=0), "write": times(reading)}
    result = said(measured, [ON_GPU])
    assert (result is not None) == (busy == 100)


@given(own=SHARE, cpus=st.integers(1, 64))
def test_more_cpus_are_advised_only_if_all_are_busy(own: float, cpus: int) -> None:
    measured = {"read": times(0.0), "own": times(100 * own * cpus)}
    result = said(measured, [OWN], cpus=cpus)
    if math.isclose(own, 0.7):
        return
    assert (result is not None) == (own > 0.7)
