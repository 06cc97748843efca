"""The chunk step: divides long texts into rows."""

from typing import Annotated, Literal

from pydantic import Field

from batchinference.spec.base import ColumnName, invalid
from batchinference.spec.models.base import Revision, Source, check_revision
from batchinference.spec.step_facts import NamedSource, StepFacts, StepSettings
from batchinference.spec.storage import FROM_ENVIRONMENT, Storage

INDEX, START, END = "chunk_index", "chunk_start", "chunk_end"
_TOO_MUCH = "overlap is more than half of size"
_OWN_COLUMN = f"column: the step adds {INDEX}, {START} and {END}. Rename the column first"


class Chunk(StepSettings):
    """Divides texts into chunks, each in its own row. Joined without their overlaps, the chunks
    give the text again. A chunk ends with a paragraph, a sentence or a word, if possible."""

    column: ColumnName
    """The column with texts, which are replaced by their chunks. The step adds `chunk_index`, the
    number of the chunk in its text from 0. It also adds `chunk_start` and `chunk_end`, the position
    of the chunk in characters. An empty text is one empty chunk. A null stays one row."""
    size: Annotated[int, Field(ge=2, le=10**9)]
    """Maximum size of a chunk in units of `unit`, without special tokens."""
    overlap: Annotated[int, Field(ge=0, le=10**9)] = 0
    """Number of units repeated from the end of the previous chunk. At most half of `size`."""
    unit: Literal["characters", "words", "tokens"] = "characters"
    """What `size` and `overlap` count."""
    tokenizer: Source | None = None
    """The model whose tokenizer counts tokens: an id of the Hub, the path of a folder, or an object
    store prefix. For `unit: tokens`."""
    revision: Revision | None = None
    """The branch, tag or commit of a model of the Hub."""
    storage: Storage = FROM_ENVIRONMENT
    """How to access the object store of `tokenizer`."""

    @property
    def facts(self) -> StepFacts:
        files = [self.tokenizer] if self.tokenizer else []
        return StepFacts(
            reads={self.column},
            adds=dict.fromkeys((INDEX, START, END), "int64"),
            fixed_names=(INDEX, START, END),
            sources={"tokenizer": NamedSource(files[0], may_be_of_hub=True)} if files else {},
            model_files=files,
            storage=self.storage,
        )

    def _check(self) -> None:
        if 2 * self.overlap > self.size:
            raise invalid(f"{_TOO_MUCH} ({self.overlap} of {self.size}). Use at most half")
        has_tokenizer = self.tokenizer is not None
        if has_tokenizer != (self.unit == "tokens") or (self.revision and not has_tokenizer):
            raise invalid("unit tokens needs a 'tokenizer', and other units have none")
        if self.column in (INDEX, START, END):
            raise invalid(_OWN_COLUMN)
        if self.tokenizer is not None:
            check_revision(self.tokenizer, self.revision)
