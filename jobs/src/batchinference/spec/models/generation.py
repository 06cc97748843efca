"""The fields of models that generate text: what the runtimes vllm, http and transformers share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from batchinference.spec.base import ColumnName, refusal
from batchinference.spec.column_types import ColumnType
from batchinference.spec.models.answers import AnswerSchema
from batchinference.spec.models.texts import TextModel

_NO_SCHEMA = "repair asks again for answers that do not fit a 'schema'. Add one, or remove 'repair'"
_WITH_PROMPT = "schema: with returnFullText, an answer begins with its prompt. Remove one"
_OTHER_CONSTRAINTS = ("structured_outputs", "response_format", "guided_json", "guided_grammar")
"""Parameters of engines and endpoints that constrain answers."""


class GeneratingModel(TextModel):
    """Base class of the models that generate text, with some of their tasks or APIs."""

    details: ColumnName | None = None
    """A column for a struct about each text, if the model generates text: `prompt_tokens`,
    `cached_tokens` of them whose computation was reused, `completion_tokens`, and `finish_reason`
    (`length` if the text was cut). A value that the runtime or the endpoint does not know is null.
    With `sampling.logprobs` of vllm, it also has the `logprobs` of the tokens. If a row has several
    texts, a list has the value of each text."""

    answer_schema: Annotated[AnswerSchema | None, Field(alias="schema")] = None
    """The JSON that the model answers with, if it generates text. `vllm` generates only such JSON,
    `http` asks the endpoint for it (`response_format`), and for `transformers` the prompt must ask
    for it. Each answer is checked, and the output has the type of the schema: a struct of the
    fields. A row whose answer does not fit is a failed row."""
    repair: Annotated[int, Field(ge=0, le=5)] | None = None
    """How often the model is asked again for an answer that does not fit `schema`, with the answer
    and what is wrong with it. 0 by default. The rows are counted as AnswerRepaired."""

    @property
    def templates(self) -> list[str]:
        messages = (message.content for message in getattr(self, "messages", ()))
        texts = (getattr(self, name, None) for name in ("prompt", "system"))
        return [text for text in (*texts, *messages) if text is not None]

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
            return super().other_outputs
        of_text: dict[str, ColumnType] = {
            **{"completion_tokens": "int64", "finish_reason": "string"},
            **self.other_details,
        }
        if self.has_several_texts:
            of_text = {name: [kind] for name, kind in of_text.items()}
        return {self.details: {"prompt_tokens": "int64", "cached_tokens": "int64", **of_text}}

    @property
    def answer_type(self) -> ColumnType:
        """Return the type of the output if the model generates text."""
        if self.answer_schema is not None:
            return self.answer_schema.column_type
        return ["string"] if self.has_several_texts else "string"

    def check_answers(self, sampling: Mapping[str, Any]) -> None:
        """Raise a refusal if there is a schema, and answers cannot be checked with it."""
        if self.answer_schema is None:
            if self.repair:
                raise refusal(_NO_SCHEMA)
            return
        if not self.generates:
            raise refusal("schema is for models that generate text. Remove it")
        if self.has_several_texts:
            raise refusal("schema: a row has one answer. Request one text in 'sampling'")
        if getattr(self, "return_full_text", False):
            raise refusal(_WITH_PROMPT)
        for name in _OTHER_CONSTRAINTS:
            if sampling.get(name) is not None:
                raise refusal(f"sampling.{name}: the 'schema' is the constraint. Remove one")

    def check_details(self) -> None:
        """Raise a refusal if there are no details, or if they would replace the
        output."""
        if self.details is None:
            return
        if not self.generates:
            raise refusal("details is for models that generate text. Remove it")
        if self.details == getattr(self, "output", None):
            raise refusal("details: this column is the output. Name another one")
