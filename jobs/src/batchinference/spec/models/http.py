"""Models behind an HTTP endpoint: OpenAI-compatible, or any that takes and gives JSON."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal
from urllib.parse import parse_qsl, urlsplit

from pydantic import AfterValidator, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from batchinference.credentials import names_credential
from batchinference.spec.arguments import Arguments, names_in, texts_in
from batchinference.spec.base import HTTP_URL, VARIABLE, ColumnName, rules
from batchinference.spec.models.base import Inputs, RuntimeModel, only_for
from batchinference.spec.models.prompts import (
    Images,
    Messages,
    Template,
    check_body,
    check_prompt,
    check_template,
)
from batchinference.spec.resources import Resources

PATHS = {
    "chat": "/chat/completions",
    "completions": "/completions",
    "embeddings": "/embeddings",
    "json": "",
}
"""Where below the url each API is."""
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
}
"""The APIs that have a field, for those that not all have."""
_RULED = ("name", "prompt", "system", "messages", "images", "result_path")
"""Those of them that CEL can tell from their defaults."""
_KEYS = re.compile(
    r"(api|access|auth|subscription)[-_]?(key|token)|authorization|password|secret|sig", re.I
)
"""Names under which people send their keys."""


def _without_key(url: str) -> str:
    parts = urlsplit(url)
    names = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
    if "@" in parts.netloc or any(map(names_credential, names)):
        raise _key_error()
    return url


def _key_error() -> PydanticCustomError:
    return PydanticCustomError(
        "http_key",
        "a key does not belong into the file: keep it in a Secret, hand it over in cluster.env and "
        "name the variable in apiKeyEnv or headersFrom",
        {},
    )


def _error(message: str) -> PydanticCustomError:
    return PydanticCustomError("http", "{message}", {"message": message})


def _header(name: str) -> str:
    # no pattern of the schema, where the keys of a map can have none
    if not re.fullmatch("[-A-Za-z0-9_]+", name):
        raise _error("the name of a header has letters, digits, '-' and '_'")
    return name


Url = Annotated[str, Field(pattern=HTTP_URL, max_length=1024), AfterValidator(_without_key)]
Variable = Annotated[str, Field(pattern=VARIABLE, max_length=128)]
HeaderName = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(_header)]


class HttpModel(RuntimeModel):
    """A model behind an HTTP endpoint, with one request per row."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            *only_for(
                "api",
                {field: _FIELDS[field] for field in _RULED},
                lists=("messages", "images"),
            ),
            (
                "self.api == 'json' || has(self.name)",
                "name is required for api chat, completions, embeddings",
            ),
            ("self.api != 'json' || has(self.body)", "body is required for api json"),
        )
    )

    IN_PROCESS: ClassVar[bool] = False

    runtime: Literal["http"]
    """The library that runs the model."""
    api: Literal["chat", "completions", "embeddings", "json"]
    """The API of the endpoint: one of OpenAI, or any other JSON."""
    url: Url
    """The base URL for the APIs of OpenAI, such as `https://api.openai.com/v1`. The endpoint itself
    for json."""
    name: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """The name of the model at the endpoint, for the APIs of OpenAI."""
    inputs: Inputs
    """Names of columns, which templates and `images` use."""
    output: ColumnName
    """The column for the result: the text, for embeddings the vector, for json a value of
    `resultType`."""
    prompt: Template | None = None
    """The prompt, with `{name}` for an input. `{{` and `}}` are literal braces. Without it, the
    only input that no other field uses is sent unchanged: a text, or for chat a list of messages
    with `role` and `content`."""
    system: Template | None = None
    """The system message, the first of the chat."""
    messages: Messages = []
    """Messages of the chat between `system` and `prompt`, such as examples."""
    images: Images = []
    """The inputs that are images. Pixels and the bytes of files are sent as data URIs. Addresses
    (http://, https:// or data URIs) are sent unchanged, and the endpoint fetches them. For chat, an
    image is at the place of its `{name}` in `prompt`, otherwise before the prompt. For json, it is
    where `body` names it."""
    sampling: Arguments = {}
    """Further fields of each request: `temperature`, `max_tokens`, `seed`, `dimensions`..."""
    body: Arguments = {}
    """The request for json: any structure, with `{name}` in its texts. A text that is only `{name}`
    is replaced by the value with its type. Bytes become base64."""
    result_path: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """The position of the result in the response for json: keys and positions, such as
    `outputs.0.score`. The whole response by default."""
    result_type: Literal["text", "number", "integer", "boolean", "numbers"] = "text"
    """The type of the result for json. `numbers` are nested lists of one shape. As `text`, other
    values are written as JSON."""
    concurrency: Annotated[int, Field(ge=1, le=1024)] = 16
    """Maximum number of concurrent requests of each replica."""
    requests_per_second: Annotated[float, Field(gt=0, le=100000)] | None = None
    """Maximum number of requests that each replica starts per second. Unlimited by default."""
    timeout_seconds: Annotated[float, Field(gt=0, le=3600)] = 300
    """Timeout of one request."""
    retries: Annotated[int, Field(ge=0, le=100)] = 8
    """Maximum number of retries after a transient error: status 408, 409, 425, 429 or 5xx, a broken
    connection, a timeout, or a response that is not JSON. The backoff doubles from half a second to
    a minute, and is as long as Retry-After requests."""
    api_key_env: Variable | None = None
    """The environment variable that holds the key, sent as `Authorization: Bearer`. On a cluster
    `cluster.env` fills it from a Secret."""
    headers_from: Annotated[dict[HeaderName, Variable], Field(max_length=16)] = {}
    """Further headers, and the environment variables that hold their values."""

    @property
    def endpoint(self) -> str:
        """The address that requests go to."""
        return self.url if self.api == "json" else self.url.rstrip("/") + PATHS[self.api]

    @property
    def default_batch_size(self) -> int:
        """Several rows for each request in flight: a batch lasts as long as its slowest row."""
        return 8 * self.concurrency

    def check_pool(self, resources: Resources, batch_size: int | str | None) -> None:
        """Raise when the step asks for devices."""
        if resources.gpu or resources.custom:
            raise _error("the endpoint computes elsewhere: leave out resources.gpu and custom")

    @model_validator(mode="after")
    def _check(self) -> HttpModel:
        for field, apis in _FIELDS.items():
            # an API server writes defaults into the object, so that only other values tell
            given = getattr(self, field) != type(self).model_fields[field].default
            if given and self.api not in apis:
                raise _error(f"'{to_camel(field)}' is for {', '.join(apis)}, not for {self.api}")
        if any(map(_KEYS.fullmatch, [*names_in(self.body), *names_in(self.sampling)])):
            raise _key_error()
        if self.api == "json":
            self._check_body()
        else:
            self._check_openai()
        return self

    def _check_body(self) -> None:
        if not self.body:
            raise _error("json needs a 'body'")
        texts = [check_template(text) for text in texts_in(self.body)]
        check_body(self.inputs, texts, self.images)

    def _check_openai(self) -> None:
        if self.name is None:
            raise _error(f"{self.api} needs a 'name': the model as the endpoint names it")
        if self.url.rstrip("/").endswith(tuple(filter(None, PATHS.values()))):
            raise _error("'url' is the base of the API: leave out what comes behind /v1")
        check_prompt(self)
