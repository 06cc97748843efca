"""The HTML report in a real browser: accessible, readable at each width, and without requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchinference.pipeline.html_report.page import render
from batchinference.pipeline.html_report.sample_rows import cell
from batchinference.pipeline.output.error_groups import ErrorGroup
from support.browser import DESKTOP, PHONE, opened
from support.documents.report_pages import page_data

LONG = "s3://bucket/" + "a-very-long-directory-name/" * 8
FAILED = {"state": "failed", "reason": "TooManyErrors", "message": f"9 rows failed: {LONG}"}
RECORD = {"path": LONG, "row": 7, "error": "OSError: " + "x" * 400, "traceback": "File " + LONG}
SHOWN = [("light", DESKTOP), ("dark", DESKTOP), ("light", PHONE), ("dark", PHONE)]


@pytest.fixture(scope="module", params=["succeeded", "failed"])
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a page with all of its sections and with long values."""
    row = {
        "image": np.full((64, 64, 3), 90, np.uint8),
        "text": "word " * 90,
        "path": LONG,
        "n": 1.5,
    }
    data = page_data(
        FAILED if request.param == "failed" else {"notes": [LONG], "output": LONG},
        errors=[
            ErrorGroup("decode", "", 41, [RECORD, RECORD]),
            ErrorGroup("classify", "", 1, [RECORD]),
        ],
        sample=[{name: cell(name, value) for name, value in row.items()}] * 3,
    )
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render(data))
    return path


@pytest.mark.parametrize(("scheme", "size"), SHOWN)
def test_page_has_no_accessibility_violations(
    browser: Any, axe: str, file: Path, scheme: str, size: dict[str, int]
) -> None:
    with opened(browser, file, scheme, size) as page:
        page.eval_on_selector_all("details", "all => all.forEach(each => each.open = true)")
        page.evaluate(axe)
        report = page.evaluate("axe.run()")
        assert [(one["id"], one["nodes"][0]["html"]) for one in report["violations"]] == []
        assert len(report["passes"]) > 20


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_page_fits_the_window(browser: Any, file: Path, width: int) -> None:
    with opened(browser, file, "light", {"width": width, "height": 800}) as page:
        page.eval_on_selector_all("details", "all => all.forEach(each => each.open = true)")
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_page_requests_nothing_and_runs_no_script(browser: Any, file: Path) -> None:
    injected = file.with_name("injected.html")
    injected.write_text(
        file.read_text().replace("</main>", "<script>document.title = 'ran'</script>")
    )
    with opened(browser, injected, "light", DESKTOP) as page:
        assert page.title() != "ran"
        sent = [url for url in page.requested if not url.startswith("data:")]
        assert sent == [injected.as_uri()]


def test_colors_follow_the_scheme(browser: Any, file: Path) -> None:
    colors = set()
    for scheme in ("light", "dark"):
        with opened(browser, file, scheme, DESKTOP) as page:
            colors.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(colors) == 2
