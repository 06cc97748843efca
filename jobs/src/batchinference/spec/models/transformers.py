"""Models of the transformers library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from pydantic.alias_generators import to_camel

from batchinference.spec.arguments import Arguments
from batchinference.spec.base import ColumnName, invalid
from batchinference.spec.column_types import ColumnType
from batchinference.spec.models import transformers_tasks as tasks
from batchinference.spec.models.base import (
    LABELED,
    Inputs,
    Label,
    LabelModel,
    Revision,
    Source,
    TopK,
    WindowedModel,
    check_revision,
)
from batchinference.spec.models.generation import RequestModel
from batchinference.spec.models.prompts import Images, Messages, Template, check_prompt
from batchinference.spec.models.sampling import TRANSFORMERS_LOST, check_bounds, check_lost
from batchinference.spec.storage import FROM_ENVIRONMENT, Storage


class TransformersModel(RequestModel, WindowedModel, LabelModel):
    """A model of the transformers library."""

    MEDIA: ClassVar[Mapping[str, str]] = {
        "image": "pixels: read.format images or a step decode",
        "audio": "samples: read.format audio or a step decode",
        "video": "bytes: read.format binary",
    }
    HUB_FILES: ClassVar[tuple[str, ...]] = ("config.json", "adapter_config.json")

    runtime: Literal["transformers"]
    """The library that runs the model."""
    task: tasks.Task
    """The transformers name of the task. For models with encoders for text and images, such as
    CLIP, feature-extraction and image-feature-extraction use one vector space."""
    source: Source
    """A model id of the Hub, the path of a folder that `save_pretrained` wrote, or an object store
    prefix with such a folder."""
    revision: Revision | None = None
    """The branch, tag or commit of a model of the Hub."""
    storage: Storage = FROM_ENVIRONMENT
    """How to access the object store of `source`."""
    inputs: Inputs
    """The columns for the inputs of the task: `text: COLUMN`, `image: COLUMN`, `audio: COLUMN` or
    others. For tasks that generate text, any names, which `prompt` and `images` use."""
    output: ColumnName
    """The column for the result. Depending on the task, it is an embedding, a struct of `label` and
    `score`, a text, or a list of structs."""
    pooling: Literal["mean", "cls"] | None = None
    """How the embeddings of tokens, or of patches of an image, are combined: `mean` for their mean,
    or `cls` for the first one. For the two feature-extraction tasks. `mean` by default. Models such
    as CLIP have their own pooling."""
    normalize: bool | None = None
    """Whether to scale each embedding to length 1. For the two feature-extraction tasks."""
    top_k: TopK | None = None
    """Return a list of at most this many of the most likely labels, the most likely first. For the
    classification tasks. By default, only the most likely label."""
    candidate_labels: Annotated[list[Label], Field(max_length=1000)] = []
    """The labels to choose from. For the zero-shot tasks. With `feature-extraction`, the result is
    the label whose embedding is the most similar to that of the text. `score` is their cosine
    similarity."""
    prompt: Template | None = None
    """The prompt template, with `{name}` for an input. `{{` and `}}` are literal braces. For a
    model with a chat template, it is the message of the user. Without `prompt`, `system` and
    `messages`, the only input is the text to continue, or a list of messages with `role` and
    `content`. If all inputs are images, the model describes them."""
    return_full_text: bool = False
    """Whether each generated text begins with its prompt, like the pipeline option of the same
    name. For text-generation with a model that continues its prompt."""
    system: Template | None = None
    """The template of the system message, which is the first message of the chat."""
    messages: Messages = []
    """Messages of the chat between `system` and `prompt`, such as examples."""
    images: Images = []
    """The inputs that are images. An image replaces its `{name}` in `prompt`, or precedes it."""
    sampling: Arguments = {}
    """The GenerationConfig of transformers, such as `max_new_tokens`, `do_sample`, `temperature`,
    `top_p` or `num_return_sequences`. The default of `max_new_tokens` is that of the model. If the
    model has none, it is 256 for a model with a table of positions. For other models, it is 4096,
    or the length of a shorter context. With `seed`, random numbers depend only on the prompt and
    the seed. `max_length` and `min_length` need a model with an encoder: otherwise, they count
    padding."""
    max_tokens_per_batch: Annotated[int, Field(ge=1, le=100000000)] | None = None
    """Maximum number of tokens, including padding, that are computed together. The rows of a batch
    are divided into groups of similar length. For tasks with texts."""
    dtype: Literal["auto", "float32", "float16", "bfloat16"] | None = None
    """The data type of the model. `auto` is the data type of its files."""
    attention: Literal["sdpa", "eager", "flash_attention_2"] | None = None
    """The implementation of attention. The library chooses it by default."""
    device_map: Literal["auto", "balanced", "balanced_low_0", "sequential"] | None = None
    """How accelerate distributes the model over the devices of a replica. `auto` by default if a
    replica has several devices. With one device, parts that do not fit stay in CPU memory."""
    options: Arguments = {}
    """Keyword arguments of the tokenizer or processor, such as `max_length`, or of the pipeline
    that runs the task, such as `threshold`. `backend` is the implementation of an image processor:
    `torchvision` or `pil`. For `image-classification` and `image-feature-extraction`, `device: cpu`
    prepares images on the CPU instead of the GPU."""

    @property
    def padded_texts(self) -> tuple[str, ...]:
        is_padded = self.task in tasks.PADDED_TEXTS and self.request is None
        return tuple(self.inputs.values()) if is_padded else ()

    @property
    def tokenized_inputs(self) -> tuple[str, ...]:
        if (
            self.task not in tasks.TOKENIZED
            or self.too_long == "windows"
            or self.request is not None
        ):
            return ()
        return tuple(name for name in ("text", "text_pair") if name in self.inputs)

    @property
    def generates_text(self) -> bool:
        return self.task in tasks.GENERATION

    @property
    def has_times(self) -> bool:
        """Return whether the result is the text of speech with the times of its parts."""
        is_speech = self.task == "automatic-speech-recognition"
        return is_speech and bool(self.options.get("return_timestamps"))

    @property
    def has_labels(self) -> bool:
        """Return whether the result is a label, or the best labels."""
        by_embedding = self.task in tasks.EMBEDDING and bool(self.candidate_labels)
        return self.task in tasks.CLASSIFICATION or by_embedding

    @property
    def classifies(self) -> bool:
        return self.has_labels and self.top_k is None

    @property
    def has_several_texts(self) -> bool:
        return bool(self.sampling.get("num_return_sequences", 1) != 1)

    @property
    def uses_texts(self) -> bool:
        return self.generates_text or self.request is not None

    @property
    def needs_finite(self) -> bool:
        return super().needs_finite and self.request is None

    @property
    def output_type(self) -> ColumnType | None:
        if self.request is not None:
            return "string"
        if self.has_labels:
            return "string" if self.score_output else self.result_type
        return self.answer_type if self.generates_text else self.result_type

    @property
    def result_type(self) -> ColumnType:
        """Return the type of the result for a row, for tasks that do not generate text."""
        if self.has_labels:
            return [LABELED] if self.top_k else LABELED
        return tasks.TIMED if self.has_times else tasks.TYPES[self.task]

    def _check(self) -> None:
        for field, suited in tasks.FIELDS.items():
            is_set = getattr(self, field) != type(self).model_fields[field].default
            if is_set and self.task not in suited:
                wrong = f"{tasks.describe_tasks(suited)}, not for '{self.task}'"
                raise invalid(f"'{to_camel(field)}' is for {wrong}. Remove it, or change task")
        if self.request is not None or self.request_url is not None:
            self._check_request()
        elif self.task in tasks.GENERATION:
            self._check_prompt()
        else:
            self._check_inputs()
        if self.task in tasks.ZERO_SHOT and not self.candidate_labels:
            raise invalid(f"task '{self.task}' needs 'candidateLabels'")
        self.check_details()
        self.check_score()
        self.check_schema(self.sampling)
        self.check_overlap()
        if self.too_long == "windows" and self.task not in tasks.WINDOWED:
            raise invalid(f"'tooLong: windows' is for task {', '.join(tasks.WINDOWED)}")
        check_revision(self.source, self.revision)
        if self.attention == "flash_attention_2" and self.dtype == "float32":
            raise invalid(
                "'attention: flash_attention_2' computes with float16 or bfloat16. Set 'dtype' to "
                "one of them"
            )

    def _check_request(self) -> None:
        if self.task not in tasks.ANSWERING:
            suited = tasks.describe_tasks(tasks.ANSWERING)
            raise invalid(f"'request' is for {suited}, not for '{self.task}'")
        self.check_request()

    def _check_inputs(self) -> None:
        known = tasks.INPUTS[self.task]
        if known[0] not in self.inputs or not self.inputs.keys() <= set(known):
            described = tasks.describe_inputs(self.task, self.inputs)
            raise invalid(f"inputs: task '{self.task}' takes {described}")

    def _check_prompt(self) -> None:
        check_lost(self.sampling, TRANSFORMERS_LOST)
        check_bounds(self.sampling)
        check_prompt(self, images_suffice=True)
        if self.task == "image-text-to-text" and not self.images:
            raise invalid(f"task '{self.task}' needs 'images': which of the inputs are images")
        if "seed" in self.sampling and self.sampling.get("num_beams", 1) != 1:
            raise invalid("sampling: 'seed' cannot be used with 'num_beams'. Remove one")
