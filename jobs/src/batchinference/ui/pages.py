"""Renders the pages as HTML. The functions read no outputs and no clusters.

All data is untrusted: Jinja escapes every value, and control characters are removed."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from batchinference.api.observation import Observation
from batchinference.pipeline.html_report.page import page_environment, rows_chart
from batchinference.pipeline.output.error_groups import ErrorGroup, Record
from batchinference.spec.progress import RowsOverTime

REFRESH_SECONDS = 2
"""Seconds after which a page of running jobs is updated."""


@dataclass(frozen=True)
class JobEntry:
    """A job in the list. `key` identifies it in URLs. `problem` says why it cannot be read."""

    key: str
    target: str
    seen: Observation | None = None
    problem: str = ""

    @property
    def name(self) -> str:
        """The name of the job, or the text from the command line if the name is unknown."""
        return self.seen.name if self.seen and self.seen.name else self.target

    @property
    def ended(self) -> bool:
        """Whether the job has ended; false if its state cannot be read."""
        return self.seen is not None and self.seen.ended


@dataclass(frozen=True)
class JobDetails:
    """The content of the page of one job."""

    entry: JobEntry
    history: RowsOverTime
    errors: Sequence[ErrorGroup] = ()
    log: str = ""
    """The last lines of the log of the last run."""
    has_report: bool = False
    runs: Sequence[Sequence[str]] = ()
    """The table of the last runs: a header and rows."""


def jobs_page(entries: Sequence[JobEntry], title: str) -> str:
    """Return the list of all jobs."""
    live = any(not each.ended for each in entries)
    return _render("jobs.html.j2", entries=entries, title=title, live=live)


def job_page(details: JobDetails) -> str:
    """Return the page of one job."""
    chart = rows_chart(details.history)
    live = not details.entry.ended
    return _render("job.html.j2", job=details, entry=details.entry, chart=chart, live=live)


def row_page(entry: JobEntry, records: Sequence[Record]) -> str:
    """Return the page of a failed row, which has at least one error record."""
    return _render("row.html.j2", entry=entry, records=records, live=False)


def problem_page(title: str, message: str) -> str:
    """Return a page that explains why a request has failed."""
    return _render("problem.html.j2", title=title, message=message, live=False)


def script() -> str:
    """Return the script that updates pages of running jobs."""
    return (files(__package__) / "live.js").read_text("utf-8")


def _render(template: str, **values: object) -> str:
    page = page_environment("batchinference").get_template(f"ui/{template}")
    return page.render(refresh=REFRESH_SECONDS, **values)
