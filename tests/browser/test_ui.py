"""The page of `batchinference ui` in a real browser: accessible, and updated while a job runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from batchinference.api.jobs_on_cluster import Workers
from batchinference.api.observation import Observation
from batchinference.pipeline.output.error_groups import ErrorGroup
from batchinference.spec.progress import Counts, Progress, RowsOverTime
from batchinference.ui import pages
from batchinference.ui.pages import JobDetails, JobEntry
from batchinference.ui.site import SCRIPT, Answer
from support.browser import DESKTOP, PHONE, served_ui

LONG = "s3://bucket/" + "a-very-long-directory-name/" * 8
PATHS = ["", "jobs/0"]
MAX_LABEL = 63
"""Maximum number of characters of a label of Kubernetes, such as the name of a worker group."""


class GrowingJob:
    """Serves the pages of one job, which has 10 more rows at each request, and ends at 40.

    As on a cluster, another worker becomes ready at each request, and the job ends without workers.
    """

    def __init__(self) -> None:
        self.rows = 0

    def answer(self, path: str) -> Answer:
        if path == "live.js":
            return Answer(pages.script().encode(), kind=SCRIPT)
        self.rows = min(40, self.rows + 10)
        ended = self.rows == 40
        state = "complete" if ended else "running"
        ready = self.rows // 10
        workers = [] if ended else [Workers("cpu", ready, 3), Workers("g" * MAX_LABEL, 0, 1)]
        progress = Progress.of(self.rows, 40, rate=10.0)
        counts = Counts(read=self.rows, written=self.rows - 2, failed=2)
        seen = Observation(("output", LONG), state, progress, counts, ended, message=LONG,
                           workers=workers, facts=[("log", LONG)])  # fmt: skip
        return Answer(self._page(path, JobEntry("0", LONG, seen)).encode())

    def _page(self, path: str, entry: JobEntry) -> str:
        history = RowsOverTime(seconds=[0, 2, 4], rows=[0, 10, 20])
        group = ErrorGroup("own", "ValueError: " + LONG, 2, [{"path": LONG, "row": 1}])
        if not path:
            return pages.jobs_page([entry, JobEntry("1", "./b", problem=LONG)], LONG)
        return pages.job_page(JobDetails(entry, history, [group], LONG, True))


@pytest.fixture
def address() -> Iterator[str]:
    with served_ui(GrowingJob()) as address:
        yield address


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("size", [DESKTOP, PHONE])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_is_accessible_and_fits_the_window(
    browser: Any, axe: str, address: str, path: str, size: dict[str, int], scheme: str
) -> None:
    context = browser.new_context(viewport=size, color_scheme=scheme, bypass_csp=True)
    page = context.new_page()
    page.goto(address + path)
    page.evaluate(axe)
    report = page.evaluate("axe.run()")
    assert [(one["id"], one["nodes"][0]["html"]) for one in report["violations"]] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    context.close()


def test_page_is_updated_until_the_job_has_ended(browser: Any, address: str) -> None:
    page = browser.new_page()
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.goto(address + "jobs/0")
    assert "10 of 40" in page.inner_text("main")
    assert "cpu 1/3 ready" in page.inner_text("main")
    page.wait_for_selector("text=cpu 2/3 ready")
    page.wait_for_selector("text=40 of 40")
    assert "cpu" not in page.inner_text("main")
    assert "does not change any more" in page.inner_text("footer")
    assert all(url.startswith(address) for url in requested)


def test_page_says_when_the_server_has_stopped(browser: Any) -> None:
    with served_ui(GrowingJob()) as address:
        page = browser.new_page()
        page.goto(address + "jobs/0")
    page.wait_for_selector("footer >> text=The figures are old")
