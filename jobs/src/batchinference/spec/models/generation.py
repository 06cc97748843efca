"""Fields that vllm, http and transformers share: for generated text and OpenAI requests."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from batchinference.spec.base import ColumnName, invalid
from batchinference.spec.column_types import ColumnType
from batchinference.spec.models.answer_schema import AnswerSchema
from batchinference.spec.models.base import Inputs, TextModel

_OTHER_CONSTRAINTS = ("structured_outputs", "response_format", "guided_json", "guided_grammar")
"""Parameters of engines and endpoints that constrain answers in another way than `schema`."""


class GeneratingModel(TextModel):
    """Base class of models that generate text in at least some of their tasks or APIs."""

    details: ColumnName | None = None
    """A column for a struct with details of each generated text. Its fields are `prompt_tokens`,
    `cached_tokens` (prompt tokens whose computation was reused), `completion_tokens`, and
    `finish_reason` (`length` if the text was cut). A value that the runtime or the endpoint does
    not know is null. With `sampling.logprobs` of vllm, the struct also has the `logprobs` of the
    tokens. If a row has several texts, the fields about a text are lists."""

    answer_schema: Annotated[AnswerSchema | None, Field(alias="schema")] = None
    """The JSON that the model answers with, if it generates text. `vllm` generates only such JSON,
    `http` asks the endpoint for it (`response_format`), and for `transformers` the prompt must ask
    for it. Each answer is checked, and the output has the type of the schema: a struct of the
    fields. A row whose answer does not fit is a failed row."""
    repair: Annotated[int, Field(ge=0, le=5)] | None = None
    """How many times the model is asked to correct an answer that does not fit `schema`. The new
    request has the answer and its error. 0 by default. Corrected answers are counted as
    AnswerRepaired."""

    @property
    def templates(self) -> list[str]:
        messages = (message.content for message in getattr(self, "messages", ()))
        texts = (getattr(self, name, None) for name in ("prompt", "system"))
        return [text for text in (*texts, *messages) if text is not None]

    @property
    def generates_text(self) -> bool:
        """Return whether the model generates text, and may have `details` and `schema`."""
        raise NotImplementedError

    @property
    def has_several_texts(self) -> bool:
        """Return whether the model generates several texts for a row, as a list."""
        return False

    @property
    def extra_details(self) -> dict[str, ColumnType]:
        """Return additional fields of `details`, which not all runtimes have, by name."""
        return {}

    @property
    def extra_outputs(self) -> dict[str, ColumnType]:
        if self.details is None:
            return super().extra_outputs
        per_text: dict[str, ColumnType] = {
            **{"completion_tokens": "int64", "finish_reason": "string"},
            **self.extra_details,
        }
        if self.has_several_texts:
            per_text = {name: [kind] for name, kind in per_text.items()}
        return {self.details: {"prompt_tokens": "int64", "cached_tokens": "int64", **per_text}}

    @property
    def answer_type(self) -> ColumnType:
        """Return the type of the output if the model generates text."""
        if self.answer_schema is not None:
            return self.answer_schema.column_type
        return ["string"] if self.has_several_texts else "string"

    def check_schema(self, sampling: Mapping[str, Any]) -> None:
        """Raise a validation error if `schema` or `repair` conflicts with other fields."""
        if self.answer_schema is None:
            if self.repair:
                raise invalid(
                    "'repair' is for answers that do not fit a 'schema'. Add one, or remove "
                    "'repair'"
                )
            return
        if not self.generates_text:
            raise invalid("schema is for models that generate text. Remove it")
        if self.has_several_texts:
            raise invalid("schema needs one text per row. Request one text in 'sampling'")
        if getattr(self, "return_full_text", False):
            raise invalid("schema: with returnFullText, the prompt precedes the JSON. Remove one")
        for name in _OTHER_CONSTRAINTS:
            if sampling.get(name) is not None:
                raise invalid(f"sampling.{name}: 'schema' already constrains answers. Remove one")

    def check_details(self) -> None:
        """Raise a validation error if `details` is set, but the model generates no text, or if it
        names the output column."""
        if self.details is None:
            return
        if not self.generates_text:
            raise invalid("details is for models that generate text. Remove it")
        if self.details == getattr(self, "output", None):
            raise invalid("details: this column is the output. Name another one")


_REPLACED = (
    *("prompt", "system", "messages", "images", "sampling", "details", "answer_schema", "repair"),
    *("top_k", "adapter", "too_long", "max_input_tokens", "return_full_text", "candidate_labels"),
)
"""The fields that cannot be set with `request`, because the request replaces them."""


class RequestModel(GeneratingModel):
    """Base class of models that answer requests of the OpenAI API."""

    inputs: Inputs
    request: ColumnName | None = None
    """The input that is a complete request: a JSON object as text, such as `body` in a batch file.
    It replaces the fields of the prompt and `sampling`, but the model is that of this step. The
    output is the body of the response as JSON text, with `choices` or `data`, and `usage`. If a
    request is refused, its row is a failed row. Responses are not streamed."""
    request_url: ColumnName | None = None
    """The input with the URL of each request: `/v1/chat/completions`, `/v1/completions` or
    `/v1/embeddings`, or one of them without `/v1`. By default, all requests have the URL of the
    model's `api` or `task`."""

    @property
    def parameter_inputs(self) -> tuple[str, ...]:
        return () if self.request_url is None else (self.request_url,)

    def check_request(self) -> None:
        """Raise a validation error if `request` is not set, or a field does not fit it."""
        named = [name for name in (self.request, self.request_url) if name is not None]
        if self.request is None:
            raise invalid("'requestUrl' needs 'request'")
        for name in named:
            if name not in self.inputs:
                raise invalid(f"'{name}' is not an input. The inputs are {', '.join(self.inputs)}")
        if unused := [name for name in self.inputs if name not in named]:
            raise invalid(f"input '{unused[0]}' is not used: the request is complete")
        for field in _REPLACED:
            info = type(self).model_fields.get(field)
            if info is not None and getattr(self, field) != info.default:
                raise invalid(f"'{info.alias}' does not fit 'request', which is complete")
