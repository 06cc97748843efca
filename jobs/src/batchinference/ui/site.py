"""Answers the requests of the page, independently of HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus

from batchinference.api.search import Hit, OutputSearch, SearchQuery, query_problem
from batchinference.pipeline.query import LoadedModels
from batchinference.ui import pages
from batchinference.ui.jobs import (
    Jobs,
    ObservedJob,
    Unreadable,
    memory_lock,
    readable,
    report_page,
)
from batchinference.ui.pictures import cell_with_picture

HTML, SCRIPT = "text/html; charset=utf-8", "text/javascript; charset=utf-8"
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
REPORT_POLICY = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""Somebody else may have replaced a stored report. It gets no scripts and an origin of its own."""
FOUND_ROWS = 24
_FIELDS = ("text", "image", "row", "where")
"""The fields of the search form."""


@dataclass(frozen=True)
class Answer:
    """The answer to a request."""

    content: bytes
    status: HTTPStatus = HTTPStatus.OK
    kind: str = HTML
    policy: str = POLICY


@dataclass(frozen=True)
class SearchTrust:
    """Whose model may embed a query: the one of the user's `job` file, or that of a `trusted`
    output."""

    job: str | None = None
    trusted: bool = False


class Site:
    """All pages. Safe for concurrent requests."""

    def __init__(self, jobs: Jobs, trust: SearchTrust) -> None:
        self._jobs, self._trust = jobs, trust
        self._models = LoadedModels()

    def answer(self, path: str, query: Mapping[str, str]) -> Answer:
        """Return the answer to a request. `path` has no leading slash."""
        try:
            return self._answer(path, query)
        except Unreadable as problem:
            return _problem("The job cannot be read", str(problem), HTTPStatus.BAD_GATEWAY)

    def _answer(self, path: str, query: Mapping[str, str]) -> Answer:
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
                    case ["search"]:
                        return _page(pages.search_page(self._search(job, query)))
        return _problem("Not found", "There is no such page.", HTTPStatus.NOT_FOUND)

    def _search(self, job: ObservedJob, query: Mapping[str, str]) -> pages.SearchPage:
        text, image, row, where = (query.get(name, "").strip() for name in _FIELDS)
        page = pages.SearchPage(job.entry(), text, image, row, where)
        if not (text or image or row):
            return page
        wanted = SearchQuery(text or None, image or None, row or None, FOUND_ROWS, where or None)
        try:
            return replace(page, rows=self._found(job, wanted))
        except Unreadable as problem:
            return replace(page, problem=str(problem))

    def _found(self, job: ObservedJob, wanted: SearchQuery) -> list[pages.FoundRow]:
        output = job.output()
        if problem := query_problem(output, wanted):
            raise Unreadable(problem)
        with readable(), memory_lock:
            search = OutputSearch(
                output, job=self._trust.job, trusted=self._trust.trusted, models=self._models
            )
            hits, spec = search.find(wanted).hits, search.trusted_spec()
        inputs = getattr(spec.read, "paths", []) if spec is not None else []
        return [_found_row(hit, inputs) for hit in hits]


def _found_row(hit: Hit, inputs: Sequence[str]) -> pages.FoundRow:
    cells = {name: cell_with_picture(name, value, inputs) for name, value in hit.columns.items()}
    return pages.FoundRow(hit.row, hit.similarity, cells)


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
