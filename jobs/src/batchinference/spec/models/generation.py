"""The fields of models that generate text: what the runtimes vllm, http and transformers share."""

from __future__ import annotations

from pydantic_core import PydanticCustomError

from batchinference.spec.base import ColumnName
from batchinference.spec.column_types import ColumnType
from batchinference.spec.models.texts import TextModel

_NO_TEXT = "details is for models that generate text. Remove it"
_SAME_COLUMN = "details: this column is the output. Name another one"


class GeneratingModel(TextModel):
    """Base class of the models that generate text, with some of their tasks or APIs."""

    details: ColumnName | None = None
    """A column for a struct about each text, if the model generates text: `prompt_tokens`,
    `cached_tokens` of them whose computation was reused, `completion_tokens`, and `finish_reason`
    (`length` if the text was cut). A value that the runtime or the endpoint does not know is null.
    With `sampling.logprobs` of vllm, it also has the `logprobs` of the tokens. If a row has several
    texts, a list has the value of each text."""

    @property
    def generates(self) -> bool:
        """Return whether the model generates text."""
        raise NotImplementedError

    @property
    def has_several_texts(self) -> bool:
        """Return whether a row has a list of texts."""
        return False

    @property
    def other_details(self) -> dict[str, ColumnType]:
        """Return more fields of `details` about each text, and their types."""
        return {}

    @property
    def other_outputs(self) -> dict[str, ColumnType]:
        if self.details is None:
            return {}
        of_text: dict[str, ColumnType] = {
            **{"completion_tokens": "int64", "finish_reason": "string"},
            **self.other_details,
        }
        if self.has_several_texts:
            of_text = {name: [kind] for name, kind in of_text.items()}
        return {self.details: {"prompt_tokens": "int64", "cached_tokens": "int64", **of_text}}

    def check_details(self) -> None:
        """Raise PydanticCustomError if there are no details, or if they would replace the
        output."""
        if self.details is None:
            return
        if not self.generates:
            raise PydanticCustomError("details", _NO_TEXT, {})
        if self.details == getattr(self, "output", None):
            raise PydanticCustomError("details", _SAME_COLUMN, {})
