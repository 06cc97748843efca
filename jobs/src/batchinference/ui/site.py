"""Answers the requests for pages. The module `server` handles HTTP."""

from dataclasses import dataclass
from http import HTTPStatus

from batchinference.api.output_status import report_page
from batchinference.ui import pages
from batchinference.ui.observed_jobs import Jobs, ObservedJob, Unreadable, readable

HTML, SCRIPT = "text/html; charset=utf-8", "text/javascript; charset=utf-8"
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
REPORT_POLICY = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""The policy for stored reports. They are untrusted, so they are isolated, without scripts."""


@dataclass(frozen=True)
class Answer:
    """The answer to a request."""

    content: bytes
    status: HTTPStatus = HTTPStatus.OK
    kind: str = HTML
    policy: str = POLICY


class Site:
    """All pages of the server. Safe for concurrent requests."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    def answer(self, path: str) -> Answer:
        """Return the answer to a request. `path` has no leading slash."""
        try:
            return self._answer(path)
        except Unreadable as problem:
            return _problem("The job cannot be read", str(problem), HTTPStatus.BAD_GATEWAY)

    def _answer(self, path: str) -> Answer:
        match path.split("/"):
            case [""]:
                return _page(pages.jobs_page(self._jobs.entries(), self._jobs.title))
            case ["live.js"]:
                return Answer(pages.script().encode(), kind=SCRIPT)
            case ["jobs", key, *below] if job := self._jobs.find(key):
                match below:
                    case []:
                        return _page(pages.job_page(job.details()))
                    case ["report"]:
                        return _report(job)
                    case ["rows", row] if records := job.failed_row(row):
                        return _page(pages.row_page(job.entry(), records))
        return _problem("Not found", "There is no such page.", HTTPStatus.NOT_FOUND)


def _page(text: str) -> Answer:
    return Answer(text.encode())


def _problem(title: str, message: str, status: HTTPStatus) -> Answer:
    return Answer(pages.problem_page(title, message).encode(), status)


def _report(job: ObservedJob) -> Answer:
    output = job.output()
    with readable():
        page = report_page(output)
        if page is None:
            return _problem("No report", "The job has no report yet.", HTTPStatus.NOT_FOUND)
        return Answer(page.read(), policy=REPORT_POLICY)
