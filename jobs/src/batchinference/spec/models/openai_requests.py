"""The fields `request` and `requestUrl`: rows that are complete requests of the OpenAI API."""

from __future__ import annotations

from batchinference.spec.base import ColumnName, invalid
from batchinference.spec.models.base import Inputs
from batchinference.spec.models.generation import GeneratingModel

_REPLACED = (
    *("prompt", "system", "messages", "images", "sampling", "details", "answer_schema", "repair"),
    *("top_k", "adapter", "too_long", "max_input_tokens", "return_full_text", "candidate_labels"),
)
"""The fields that cannot be set with `request`, because the request has these values."""


class RequestModel(GeneratingModel):
    """Base class of models that answer requests of the OpenAI API."""

    inputs: Inputs
    request: ColumnName | None = None
    """The input that is a complete request, such as the `body` in a line of a batch file: a JSON
    object as text. It replaces the fields of the prompt and `sampling`, but the model is that of
    this step. The output is the body of the response as JSON text, with `choices` or `data`, and
    `usage`. If a request is refused, its row is a failed row. Responses are not streamed."""
    request_url: ColumnName | None = None
    """The input with the URL of each request: `/v1/chat/completions`, `/v1/completions` or
    `/v1/embeddings`, or one of them without `/v1`. By default, all requests have the URL of the
    model's `api` or `task`."""

    @property
    def parameter_inputs(self) -> tuple[str, ...]:
        return () if self.request_url is None else (self.request_url,)

    def check_request(self) -> None:
        """Raise a validation error if a field does not fit `request`."""
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
