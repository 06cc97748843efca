"""Models behind an HTTP endpoint with an OpenAI-compatible API or any other JSON API."""

from __future__ import annotations

import re
from itertools import chain
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field
from pydantic.alias_generators import to_camel

from batchinference.credentials import is_credential
from batchinference.spec.address_credentials import OF_SERVERS, refuse
from batchinference.spec.arguments import Arguments, fields_in, names_in, texts_in
from batchinference.spec.base import (
    HTTP_URL,
    ColumnName,
    Variable,
    invalid,
    required,
)
from batchinference.spec.column_types import ColumnType
from batchinference.spec.durations import Duration, seconds_of
from batchinference.spec.models.base import Inputs
from batchinference.spec.models.generation import RequestModel
from batchinference.spec.models.prompts import (
    Images,
    Messages,
    Template,
    check_body,
    check_prompt,
    check_template,
    columns_of_prompt,
)
from batchinference.spec.models.sampling import check_openai
from batchinference.spec.quantities import Quantity
from batchinference.spec.resources import Resources
from batchinference.spec.uri_fields import check_port

PATHS = {
    "chat": "/chat/completions",
    "completions": "/completions",
    "embeddings": "/embeddings",
    "json": "",
}
"""The path that each API adds to `url`."""
_FIELDS = {
    "name": ("chat", "completions", "embeddings"),
    "prompt": ("chat", "completions", "embeddings"),
    "system": ("chat",),
    "messages": ("chat",),
    "images": ("chat", "json"),
    "sampling": ("chat", "completions", "embeddings"),
    "body": ("json",),
    "result_path": ("json",),
    "result_type": ("json",),
    "max_input_tokens": ("embeddings",),
    "request": ("chat", "completions", "embeddings"),
}
"""The APIs that have a field, for each field that not all APIs have."""
_NO_KEY = (
    "a key does not belong in the file. Store it in a Secret, pass it in cluster.env and name the "
    "variable in apiKeyEnv or headersFrom"
)
_NO_LIMIT = "'tooLong' needs 'maxInputTokens': only the endpoint knows the tokens of a text"
_CUT_BY_ENDPOINT = "tooLong: only the endpoint can cut texts. Use truncate to count them, or fail"
_CREDENTIAL_NAMES = re.compile(
    r"(api|access|auth|subscription)[-_]?(key|token)|authorization|password|secret|sig", re.I
)
"""Names of fields that usually contain credentials. Only the parser searches them: the API server
has no rules for objects whose values have any type, such as `body`."""


_CONSTANT = re.compile(r"[^\s{]{8,}")
"""A text that may be a credential, unlike `low` or the template `{column}`."""


def _credential_in(fields: dict[str, Any]) -> str | None:
    """Return the name of a field of a request that usually contains a credential, or probably does:
    its name is like that of a credential, and its value is one long word in all requests."""
    usual = filter(_CREDENTIAL_NAMES.fullmatch, names_in(fields))
    texts = ((name, value) for name, value in fields_in(fields) if isinstance(value, str))
    constants = (name for name, text in texts if _CONSTANT.fullmatch(text))
    return next(chain(usual, filter(is_credential, constants)), None)


Url = Annotated[
    str,
    Field(pattern=HTTP_URL, max_length=1024),
    *refuse(OF_SERVERS, _NO_KEY),
    AfterValidator(check_port),
]
Timeout = Annotated[
    Duration, required(lambda duration: seconds_of(duration) <= 3600, "expected at most 1h")
]
HeaderName = Annotated[
    str,
    Field(min_length=1, max_length=128),
    required(
        re.compile("[-A-Za-z0-9_]+").fullmatch,
        "the name of a header has letters, digits, '-' and '_'",
    ),
]


_TYPES: dict[str, ColumnType] = {
    **{"text": "string", "number": "float64", "integer": "int64", "boolean": "bool"},
    "embeddings": ["float32"],
}
"""The types of outputs: for the API `json` by `result_type`, and for other APIs by `api`."""


class HttpModel(RequestModel):
    """A model behind an HTTP endpoint, with one request per row."""

    IN_PROCESS: ClassVar[bool] = False
    REMOTE: ClassVar[bool] = True

    runtime: Literal["http"]
    """The library that runs the model."""
    api: Literal["chat", "completions", "embeddings", "json"]
    """The API of the endpoint: an OpenAI API, or `json` for any other JSON API."""
    url: Url
    """The base URL of an OpenAI API, such as `https://api.openai.com/v1`, or for json the URL."""
    name: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """The name of the model at the endpoint, for the OpenAI APIs. If it is set, it also replaces
    the name in each `request`."""
    inputs: Inputs
    """Names for columns. Templates and `images` use these names."""
    output: ColumnName
    """The column for the result: a text, a vector for embeddings, or for json a `resultType`."""
    prompt: Template | None = None
    """The prompt template, with `{name}` for an input. `{{` and `}}` are literal braces. Without
    `prompt`, the input that no other field uses is sent unchanged. It is a text, or for chat a list
    of messages with `role` and `content`."""
    system: Template | None = None
    """The template of the system message, which is the first message of the chat."""
    messages: Messages = []
    """Messages of the chat between `system` and `prompt`, such as examples."""
    images: Images = []
    """The inputs that are images. Pixels and the bytes of files are sent as data URIs. Addresses
    (http://, https:// or data URIs) are sent unchanged. For chat, an image replaces its `{name}` in
    `prompt`, or precedes the prompt. For json, an image replaces its `{name}` in `body`."""
    sampling: Arguments = {}
    """Additional fields of each request, such as `temperature`, `max_tokens` or `dimensions`."""
    body: Arguments = {}
    """The request body for json: any structure, with `{name}` for an input in its strings. A string
    that is only `{name}` is replaced by the value with its type. Bytes become base64."""
    result_path: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """The path of the result in the response for json: keys and indexes, such as `outputs.0.score`.
    The whole response by default."""
    result_type: Literal["text", "number", "integer", "boolean", "numbers"] = "text"
    """The type of the result for json. `numbers` are nested lists of the same shape in all rows.
    For `text`, a result that is not a string is written as JSON."""
    concurrency: Annotated[int, Field(ge=1, le=1024)] = 16
    """Maximum number of concurrent requests of each replica. A replica starts with at most 16, and
    raises the number. It halves the number after status 429, 503 or 504, or a timeout."""
    requests_per_second: Annotated[float, Field(gt=0, le=100000), *Quantity] | None = None
    """Maximum number of requests that each replica starts per second. Unlimited by default."""
    timeout: Timeout = "5m"
    """Timeout of one request, at most 1h."""
    retries: Annotated[int, Field(ge=0, le=100)] = 8
    """Maximum number of retries after a transient error. Such errors are status 408, 409, 425, 429
    or 5xx, a broken connection, a timeout, and a response that is not JSON. The backoff doubles
    from half a second to a minute, and is at least as long as Retry-After says."""
    api_key_env: Variable | None = None
    """The environment variable with the API key, which is sent as `Authorization: Bearer`. On a
    cluster, `cluster.env` can set it from a Secret."""
    headers_from: Annotated[dict[HeaderName, Variable], Field(max_length=16)] = {}
    """Additional headers, and the environment variables with their values."""
    null_input: Literal["null", "fail", "compute"] | None = None  # type: ignore[assignment]
    """As for the other runtimes. `compute` sends null to an endpoint with `api: json`."""
    max_input_tokens: Annotated[int, Field(ge=1, le=100000000)] | None = None
    """For embeddings: the maximum number of tokens that the model of the endpoint takes. Some
    endpoints cut longer texts without an error. If `usage` in a response has this number, the text
    may have been cut. The row is then counted as TextCut, or fails with `tooLong: fail`."""

    @property
    def endpoint(self) -> str:
        """Return the URL of the requests."""
        return self.url if self.api == "json" else self.url.rstrip("/") + PATHS[self.api]

    @property
    def output_type(self) -> ColumnType | None:
        if self.request is not None:
            return "string"
        if self.generates_text:
            return self.answer_type
        return _TYPES.get(self.result_type if self.api == "json" else self.api)

    @property
    def templates(self) -> list[str]:
        return [*super().templates, *(texts_in(self.body) if self.api == "json" else ())]

    @property
    def generates_text(self) -> bool:
        return self.api in ("chat", "completions")

    @property
    def uses_texts(self) -> bool:
        return True

    @property
    def secret_variables(self) -> list[str | None]:
        return [self.api_key_env, *self.headers_from.values()]

    @property
    def needs_finite(self) -> bool:
        return self.api == "embeddings" and self.request is None

    @property
    def prefix_columns(self) -> tuple[str, ...]:
        return columns_of_prompt(self) if self.generates_text else ()

    @property
    def default_batch_size(self) -> int:
        """Return a small number: a killed process loses the answers of its unfinished batch."""
        return 16

    def check_pool(self, resources: Resources, batch_size: int | str | None) -> None:
        """Raise a validation error if the step requests devices."""
        if resources.gpu or resources.custom:
            raise invalid("the endpoint computes elsewhere. Leave out 'gpu' and 'custom'")

    def _check(self) -> None:
        for field, apis in _FIELDS.items():
            # the API server adds defaults to objects, so a default value counts as not set
            is_set = getattr(self, field) != type(self).model_fields[field].default
            if is_set and self.api not in apis:
                raise invalid(f"'{to_camel(field)}' is for {', '.join(apis)}, not for {self.api}")
        for field in ("body", "sampling"):
            if name := _credential_in(getattr(self, field)):
                problem = f"by its name, '{name}' has a secret value, and {_NO_KEY}"
                raise invalid(f"{field}: {problem}")
        self.check_details()
        self.check_schema(self.sampling)
        self._check_inputs()
        if self.api == "json":
            self._check_body()
        else:
            self._check_openai()

    def _check_inputs(self) -> None:
        if self.too_long is not None and self.max_input_tokens is None:
            raise invalid(_NO_LIMIT)
        if self.too_long not in (None, "truncate", "fail"):
            raise invalid(_CUT_BY_ENDPOINT)
        if self.null_input == "compute" and self.api != "json":
            raise invalid("'nullInput: compute' is only for 'api: json'")

    def _check_body(self) -> None:
        if not self.body:
            raise invalid("json needs a 'body'")
        texts = [check_template(text) for text in texts_in(self.body)]
        check_body(self.inputs, texts, self.images)

    def _check_openai(self) -> None:
        if self.name is None and self.request is None:
            raise invalid(f"{self.api} needs a 'name': the model as the endpoint names it")
        if urlsplit(self.url).path.rstrip("/").endswith(tuple(filter(None, PATHS.values()))):
            raise invalid("'url' is the base of the API. Leave out what comes behind /v1")
        if self.request is not None or self.request_url is not None:
            self.check_request()
            return
        check_openai(self.sampling)
        check_prompt(self)
