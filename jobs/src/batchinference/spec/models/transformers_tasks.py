"""The tasks of transformers, with the inputs and the fields of each."""

from collections.abc import Mapping
from typing import Literal

from batchinference.spec.column_types import ColumnType
from batchinference.spec.models.base import LABELED

Task = Literal[
    "feature-extraction",
    "text-classification",
    "image-classification",
    "image-feature-extraction",
    "audio-classification",
    "automatic-speech-recognition",
    "depth-estimation",
    "fill-mask",
    "image-segmentation",
    "image-text-to-text",
    "object-detection",
    "text-generation",
    "token-classification",
    "video-classification",
    "zero-shot-audio-classification",
    "zero-shot-classification",
    "zero-shot-image-classification",
    "zero-shot-object-detection",
]


INPUTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("feature-extraction", "fill-mask", "token-classification", "zero-shot-classification"),
        ("text",),
    ),
    "text-classification": ("text", "text_pair"),
    **dict.fromkeys(
        (
            *("image-classification", "image-feature-extraction", "image-segmentation"),
            *("depth-estimation", "object-detection"),
            *("zero-shot-image-classification", "zero-shot-object-detection"),
        ),
        ("image",),
    ),
    **dict.fromkeys(
        (
            *("audio-classification", "automatic-speech-recognition"),
            "zero-shot-audio-classification",
        ),
        ("audio", "sampling_rate"),
    ),
    "video-classification": ("video",),
}
"""The required input of each task, and its optional input, if any. Tasks that generate text are
absent, because their prompts define their inputs."""


def describe_inputs(task: str, inputs: Mapping[str, str]) -> str:
    """Return the inputs that a task takes, and what to write instead of `inputs`."""
    required, *optional = INPUTS[task]
    rest = f", and may take {optional[0]}" if optional else ""
    (name, column), *others = inputs.items()
    has_other_kind = others or any(name in each for each in INPUTS.values())
    column = "COLUMN" if has_other_kind else column
    return f"{required}{rest}, got {', '.join(inputs)}. Write inputs: {{{required}: {column}}}"


GENERATION = ("text-generation", "image-text-to-text")
EMBEDDING = ("feature-extraction", "image-feature-extraction")
_ZERO_SHOT_CLASSIFICATION = (
    *("zero-shot-classification", "zero-shot-image-classification"),
    "zero-shot-audio-classification",
)
CLASSIFICATION = (
    *("text-classification", "image-classification", "audio-classification"),
    *("video-classification", *_ZERO_SHOT_CLASSIFICATION),
)
ZERO_SHOT = (*_ZERO_SHOT_CLASSIFICATION, "zero-shot-object-detection")
PADDED_TEXTS = ("feature-extraction", "text-classification", "fill-mask", "token-classification")
TOKENIZED = ("feature-extraction", "text-classification")
"""Tasks whose texts can be converted to tokens without the model."""
ANSWERING = ("text-generation", "feature-extraction")
"""Tasks that answer requests of the OpenAI API."""
WINDOWED = (
    *("feature-extraction", "text-classification", "token-classification"),
    "zero-shot-classification",
)
"""Tasks whose results for the windows of a long text can be combined."""
_BOX: ColumnType = {"xmin": "int32", "ymin": "int32", "xmax": "int32", "ymax": "int32"}
_OBJECTS: ColumnType = [{**LABELED, "box": _BOX}]
TYPES: dict[str, ColumnType] = {
    **{task: ["float32"] for task in EMBEDDING},
    "automatic-speech-recognition": "string",
    "depth-estimation": [["float32"]],
    "fill-mask": [
        {
            **{"mask": "int32", "score": "float32", "token": "int64"},
            **{"token_str": "string", "sequence": "string"},
        }
    ],
    "image-segmentation": [{**LABELED, "mask": "binary"}],
    "object-detection": _OBJECTS,
    "zero-shot-object-detection": _OBJECTS,
    "token-classification": [{**LABELED, "word": "string", "start": "int32", "end": "int32"}],
}
"""The types of the results of the tasks that neither classify nor generate text."""
TIMED: ColumnType = {
    "text": "string",
    "chunks": [{"text": "string", "start": "float32", "end": "float32"}],
}
"""The type of the text of speech with the times of the parts of the text."""
_TEXTS = (*WINDOWED, "fill-mask", "text-generation")

FIELDS: dict[str, tuple[str, ...]] = {
    "pooling": EMBEDDING,
    "normalize": EMBEDDING,
    "top_k": CLASSIFICATION,
    "candidate_labels": (*ZERO_SHOT, "feature-extraction"),
    "prompt": GENERATION,
    "return_full_text": ("text-generation",),
    "system": GENERATION,
    "messages": GENERATION,
    "sampling": GENERATION,
    "images": ("image-text-to-text",),
    "max_tokens_per_batch": (*PADDED_TEXTS, "text-generation"),
    "too_long": _TEXTS,
    "window_overlap": WINDOWED,
}
"""The tasks that have a field, for each field that not all tasks have."""
_GROUPS = {EMBEDDING: "the feature-extraction tasks", CLASSIFICATION: "the classification tasks"}


def describe_tasks(tasks: tuple[str, ...]) -> str:
    """Return the names of tasks, or of their group, for a message."""
    if tasks in _GROUPS:
        return _GROUPS[tasks]
    *others, last = tasks
    return f"{', '.join(others)} and {last}" if others else last
