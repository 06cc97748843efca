"""Similarity search in the output of a finished job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from batchinference.api.files import load_job
from batchinference.spec import SpecError
from batchinference.spec.addresses import scheme_of
from batchinference.spec.expression import columns_of, parse_condition
from batchinference.spec.nearest import MAX_FOUND
from batchinference.spec.uris import Uri

if TYPE_CHECKING:
    import numpy as np

    from batchinference.pipeline.query import LoadedModels
    from batchinference.pipeline.search.index import Index
    from batchinference.pipeline.search.search import RowFilter
    from batchinference.spec.job import BatchInferenceSpec


@dataclass(frozen=True)
class SearchQuery:
    """What to search for: exactly one of `text`, `image` (an address) and `row`."""

    text: str | None = None
    image: str | None = None
    row: str | None = None
    count: int = 5
    where: str | None = None


@dataclass(frozen=True)
class Hit:
    """A row that was found. `columns` has its values, without embeddings and tensors."""

    rank: int
    similarity: float
    row: int
    columns: dict[str, Any]


@dataclass(frozen=True)
class SearchResult:
    """The rows that were found, best first. `skipped` rows have no embedding."""

    hits: list[Hit]
    skipped: int


def query_problem(output: str, query: SearchQuery) -> str | None:
    """Return what is wrong with a query, before anything is read; None if it is valid."""
    values = {"--text": query.text, "--image": query.image, "--row": query.row}
    given = [name for name, value in values.items() if value is not None]
    if len(given) != 1:
        got = " and ".join(given) or "none"
        return f"give exactly one of --text, --image and --row, got {got}"
    if query.count > MAX_FOUND:
        return f"-k: at most {MAX_FOUND} rows, got {query.count}"
    if query.image is not None and scheme_of(query.image) in ("http", "https"):
        return (
            f"--image: pictures are not fetched from the web ('{query.image}'), because a search "
            "reads only files and object stores. Download it first, and give its path"
        )
    addresses = [address for address in (output, query.image) if address is not None]
    try:
        TypeAdapter(list[Uri]).validate_python(addresses)
        if query.where is not None:
            parse_condition(query.where)
    except ValidationError as error:
        (wrong, *_) = error.errors()
        return f"'{wrong['input']}': {wrong['msg']}"
    except ValueError as error:
        return f"--where: {error}"
    return None


class OutputSearch:
    """Searches the output of a finished job.

    A model of the output is loaded only if it is trusted, because loading it may run code of the
    output's author, or send credentials to their endpoint. `job` is the user's own job file, whose
    model is used instead. `notify` is called before a model of the output is loaded. `models` keeps
    loaded models for the next search.
    """

    def __init__(
        self,
        output: str,
        column: str | None = None,
        *,
        job: str | None = None,
        trusted: bool = False,
        notify: Callable[[str], None] = lambda _: None,
        models: LoadedModels | None = None,
    ) -> None:
        """Raises JobFailure if there is no such output or column."""
        from batchinference.pipeline.search.index import open_index
        from batchinference.pipeline.storage.location import Location

        self._index = open_index(Location(output), column)
        self._job, self._trusted, self._notify = job, trusted, notify
        self._models = models

    def find(self, query: SearchQuery) -> SearchResult:
        """Return the rows whose embeddings are nearest to a query. Raises JobFailure."""
        from batchinference.pipeline.search.index import is_for_machines
        from batchinference.pipeline.search.search import search

        index = self._index
        choice = _choice(index, query.where)
        found = search(index, self._embedded(query), query.count, choice)
        similarities, rows = found.of(0)
        shown = [field.name for field in index.schema if not is_for_machines(field.type)]
        columns = index.take(rows, shown).to_pylist() if shown else [{}] * len(rows)
        hits = zip(similarities.tolist(), rows.tolist(), columns, strict=True)
        return SearchResult(
            [Hit(rank, *hit) for rank, hit in enumerate(hits, start=1)], found.skipped
        )

    def trusted_spec(self) -> BatchInferenceSpec | None:
        """Return the user's own job, or the job of a trusted output; else None. Raises BadInput."""
        if self._job is not None:
            return _own_spec(self._job)
        return self._index.spec if self._trusted else None

    def _embedded(self, query: SearchQuery) -> np.ndarray:
        from batchinference.pipeline import query as queries
        from batchinference.pipeline.storage.location import Location

        if query.text is not None:
            return queries.of_text(self._with_model(), query.text, self._models)
        if query.image is not None:
            return queries.of_image(self._with_model(), Location(query.image), self._models)
        return queries.of_row(self._index, query.row or "")

    def _with_model(self) -> Index:
        """Return the index with a specification whose model may be loaded. Raises BadInput."""
        from batchinference.pipeline.errors import BadInput
        from batchinference.pipeline.query import named_model

        uri = self._index.output.uri
        spec = self.trusted_spec()
        if spec is None:
            raise BadInput(
                f"a text or an image is embedded by a model that '{uri}' names, and a model can "
                "run code and receive credentials. Pass --model JOB.yaml with the job that wrote "
                "the output, or --trust-output if you trust everyone who can write to it"
            )
        if self._job is None:
            self._notify(f"'{uri}' is trusted: loading {named_model(self._index)}")
        return replace(self._index, spec=spec)


def _own_spec(job: str) -> BatchInferenceSpec:
    from batchinference.pipeline.errors import BadInput

    try:
        return load_job(job).spec
    except SpecError as error:
        raise BadInput(f"--model '{job}': {error}") from None


def _choice(index: Index, where: str | None) -> RowFilter | None:
    if where is None:
        return None
    from batchinference.pipeline.errors import BadInput, JobFailure
    from batchinference.pipeline.search.search import RowFilter
    from batchinference.pipeline.steps.relational import Filter

    rows = Filter("--where", where)
    try:
        rows.mask(index.schema.empty_table())  # reports a wrong filter before rows are read
    except JobFailure as failure:
        raise BadInput(failure.message.replace("step '--where'", "--where")) from None
    return RowFilter(sorted(columns_of(parse_condition(where))), rows.mask)
