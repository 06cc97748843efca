"""Inputs of models: long, null and empty texts, batches, templates, and results such as NaN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from traps import models, product
from traps.case import Case, Cases, Outcome, Refused, Right, Row
from traps.recordings import sine, sound
from traps.verdict import same

CASES = Cases("inference")
OWN_FUNCTION = "the model is your own function"
NO_PEERS = dict.fromkeys(("ray", "daft", "datasets", "pandas"), OWN_FUNCTION)
LONG = " ".join(models.WORDS[number % 50] for number in range(100))
FITS = " ".join(LONG.split()[:30])
"""The longest beginning of LONG that fits into 32 tokens."""


def step(task: str, model: str, **fields: Any) -> Row:
    """Return a step with a model over the column t."""
    return _step("transformers", source=models.source(model), task=task, **fields)


def embedder(model: str = "embedder", **fields: Any) -> Row:
    """Return a step of the runtime sentenceTransformers."""
    return _step("sentenceTransformers", source=models.source(model), **fields)


def _step(runtime: str, **fields: Any) -> Row:
    described = {"runtime": runtime, "inputs": {"text": "t"}, "output": "o", **fields}
    return {"name": "m", "model": described, "batchSize": 8}


def items(*texts: Any) -> dict[str, Any]:
    return {
        "format": "items",
        "items": [{"n": number, "t": text} for number, text in enumerate(texts)],
    }


def results(rows: Sequence[Row]) -> list[Any]:
    """Return the results in the order of the items."""
    return [row["o"] for row in sorted(rows, key=lambda row: row["n"])]


def as_beginning(rows: Sequence[Row]) -> bool:
    """Return whether the result of the long text equals that of its beginning."""
    value = results(rows)
    return len(value) == 3 and same(value[1], value[2], 1e-4) and not same(value[0], value[1], 1e-6)


def daft_embeddings(*texts: Any, model: str = "embedder") -> Any:
    """Return how a user of Daft embeds texts."""

    def read(directory: Path) -> list[Row]:
        import daft
        from daft.functions import embed_text

        frame = daft.from_pydict({"n": list(range(len(texts))), "t": list(texts)})
        folder = str(directory / "models" / model)
        result = frame.with_column(
            "o", embed_text(daft.col("t"), provider="transformers", model=folder)
        )
        return [
            {**row, "o": None if row["o"] is None else np.asarray(row["o"]).tolist()}
            for row in result.to_pylist()
        ]

    return read


CUT = {"TextCut": 1}
NOTICE = "long|cut|truncat"
THREE = ("w1", LONG, FITS)
long = CASES.kind("R02", "texts that are longer than the model", read=items(*THREE), peers=NO_PEERS)
CUT_RIGHT = Right(holds=as_beginning, warnings=CUT, notice=NOTICE)
long("a label", CUT_RIGHT, steps=[step("text-classification", "classifier")])
long(
    "an embedding",
    CUT_RIGHT,
    steps=[step("feature-extraction", "embedder")],
    peers={"daft": daft_embeddings(*THREE)},
)
long(
    "an embedding of sentence-transformers",
    CUT_RIGHT,
    steps=[embedder()],
    peers={"daft": daft_embeddings(*THREE)},
)
long(
    "a text that fits exactly, and one with a word more",
    Right(holds=lambda rows: same(results(rows)[0], results(rows)[1], 1e-4), warnings=CUT),
    read=items(FITS, f"{FITS} w49"),
    steps=[step("feature-extraction", "embedder")],
)


NULL = {"NullInput": 1}
EMPTY = {"EmptyInput": 1}


def outputs(*expected: bool) -> Any:
    """Return whether each row has a result or null, as named."""
    return lambda rows: [value is not None for value in results(rows)] == [*expected]


null = CASES.kind("R05", "inputs of models that are null or empty", peers=NO_PEERS)
classify = [step("text-classification", "classifier")]
null(
    "a null, an empty text and a good one",
    Right(holds=outputs(True, False, False), warnings={**NULL, **EMPTY}),
    read=items("w1", None, ""),
    steps=classify,
)
null(
    "white space only",
    Right(holds=outputs(True, False, False), warnings={"EmptyInput": 2}),
    read=items("w1", " ", "\n\t"),
    steps=classify,
)
null(
    "an embedding of null",
    Right(holds=outputs(True, False), warnings=NULL, notice="null"),
    Right(holds=outputs(True, False)),
    read=items("w1", None),
    steps=[step("feature-extraction", "embedder")],
    peers={"daft": daft_embeddings("w1", None)},
)
null(
    "an embedding of sentence-transformers of null and empty",
    Right(holds=outputs(True, False, False), warnings={**NULL, **EMPTY}),
    read=items("w1", None, ""),
    steps=[embedder()],
    peers={"daft": daft_embeddings("w1", None, "")},
)

NOT_FINITE = {"NonFinite": 2}


def all_nan(rows: Sequence[Row]) -> bool:
    return len(rows) == 2 and all(
        not np.isfinite(np.asarray(value, dtype=float)).any() for value in results(rows)
    )


def torch_step(function: str, **fields: Any) -> Row:
    return _step("torch", factory=f"traps.steps:{function}", inputs={"x": "x"}, **fields)


NUMBERS = {
    "format": "items",
    "items": [{"n": number, "x": value} for number, value in enumerate([4.0, -1.0, 0.0])],
}
finite = CASES.kind("R09", "results that are NaN or infinite", peers=NO_PEERS)
finite(
    "an embedding with NaN",
    Right(holds=all_nan, warnings=NOT_FINITE),
    read=items("w1", "w2"),
    steps=[step("feature-extraction", "nan")],
    peers={"daft": daft_embeddings("w1", "w2", model="nan")},
)
finite(
    "the same with sentence-transformers, normalized",
    Right(holds=lambda rows: not rows, failed=2, says="NaN|finite"),
    read=items("w1", "w2"),
    steps=[embedder("nan", normalize=True)],
)
finite(
    "a square root of one negative number",
    Right(
        holds=lambda rows: results(rows)[0] == 2.0 and np.isnan(results(rows)[1]),
        warnings={"NonFinite": 1},
    ),
    read=NUMBERS,
    steps=[torch_step("root")],
)
finite(
    "the same, to fail",
    Right(holds=lambda rows: results(rows) == [2.0, 0.0], failed=1, says="NaN|finite"),
    read=NUMBERS,
    steps=[torch_step("root", nonFinite="fail")],
)
finite(
    "NaN that is written as JSON",
    Right(holds=lambda rows: len(rows) == 3, warnings={"NonFinite": 1, "WrittenAsNull": 1}),
    read=NUMBERS,
    steps=[torch_step("root")],
    output={"format": "json"},
)


def alone_and_together(*sizes: int) -> Any:
    """Return a function that runs a case with each batch size, and compares the results."""

    def runs(case: Case, directory: Path, run: product.Run) -> Outcome:
        result = []
        for size in sizes:
            *others, last = case.steps
            out = {**case.output, "path": f"out-{size}"}
            done = product.run_job(
                case, directory, run, steps=[*others, {**last, "batchSize": size}], write=out
            )
            if done.error or done.failed:
                return done
            result.append(done)
        equal = all(same(results(result[0].rows), results(done.rows), 1e-4) for done in result[1:])
        return replace(result[0], rows=[{"equal": equal, "rows": len(result[0].rows)}])

    return runs


def equal(rows: int, **warnings: int) -> Right:
    return Right([{"equal": True, "rows": rows}], warnings=warnings)


SOME = [" ".join(models.WORDS[(n + m) % 50] for m in range(1 + n % 25)) for n in range(30)]
padded = CASES.kind("R10", "models without a padding token", read=items(*SOME), peers=NO_PEERS)
SIZES = (1, 3, 64)
PADDING = Refused("pad")
padded(
    "labels of a GPT",
    equal(30),
    PADDING,
    steps=[step("text-classification", "gpt-classifier")],
    runs=alone_and_together(*SIZES),
)
padded(
    "embeddings of a GPT",
    equal(30),
    PADDING,
    steps=[step("feature-extraction", "gpt-embedder")],
    runs=alone_and_together(*SIZES),
)
padded(
    "entities of a GPT",
    equal(30),
    PADDING,
    steps=[step("token-classification", "gpt-tagger")],
    runs=alone_and_together(*SIZES),
)
padded(
    "texts of a GPT",
    equal(30),
    PADDING,
    steps=[step("text-generation", "gpt", sampling={"max_new_tokens": 4})],
    runs=alone_and_together(*SIZES),
)
padded(
    "embeddings of a GPT with sentence-transformers",
    equal(30),
    PADDING,
    steps=[embedder("gpt-embedder")],
    runs=alone_and_together(*SIZES),
)

unlimited = CASES.kind(
    "R12", "tokenizers that name no or a wrong maximum length", read=items(*THREE), peers=NO_PEERS
)
unlimited(
    "an embedding",
    CUT_RIGHT,
    steps=[step("feature-extraction", "unlimited-embedder")],
    peers={"daft": daft_embeddings(*THREE, model="unlimited-embedder")},
)
unlimited(
    "a maximum of 512 for a model with 32 positions",
    CUT_RIGHT,
    steps=[step("feature-extraction", "wrong-limit")],
    peers={"daft": daft_embeddings(*THREE, model="wrong-limit")},
)
unlimited(
    "positions that begin behind the padding token",
    CUT_RIGHT,
    steps=[step("feature-extraction", "roberta")],
)
unlimited(
    "sentence-transformers",
    CUT_RIGHT,
    steps=[embedder("unlimited-embedder")],
    peers={"daft": daft_embeddings(*THREE, model="unlimited-embedder")},
)
unlimited(
    "sentence-transformers with 512 for 32 positions",
    CUT_RIGHT,
    steps=[embedder("wrong-limit")],
    peers={"daft": daft_embeddings(*THREE, model="wrong-limit")},
)

GENERATE = {"sampling": {"max_new_tokens": 4}}


def chat(model: str, **fields: Any) -> list[Row]:
    return [step("text-generation", model, **{"prompt": "{text}", **GENERATE, **fields})]


TEMPLATE = Refused("template")
template = CASES.kind(
    "R28",
    "chat templates that cannot render the messages of a job",
    read=items("w1", "w2"),
    peers=NO_PEERS,
)
template(
    "a system text for a template without that role",
    TEMPLATE,
    steps=chat("no-system", system="be brief"),
)
template(
    "two messages of the user for a template that alternates",
    TEMPLATE,
    steps=chat("alternating", messages=[{"role": "user", "content": "w3"}]),
)
template("a template that is no valid template", TEMPLATE, steps=chat("broken"))
template(
    "messages in a column, of which one begins with a system text",
    Right(holds=lambda rows: [row["n"] for row in rows] == [0], failed=1, says="template|system"),
    read={
        "format": "items",
        "items": [
            {"n": 0, "t": [{"role": "user", "content": "w1"}]},
            {"n": 1, "t": [{"role": "system", "content": "w1"}, {"role": "user", "content": "w1"}]},
        ],
    },
    steps=[step("text-generation", "no-system", **GENERATE)],
)

fit = CASES.kind("R37", "prompts that are longer than the context", peers=NO_PEERS)
SHORT = "w1 w2"
LONG_FAILS = "token|position|long"
fit(
    "a prompt of 100 tokens beside a short one",
    Right(holds=lambda rows: [row["n"] for row in rows] == [0], failed=1, says=LONG_FAILS),
    read=items(SHORT, LONG),
    steps=[step("text-generation", "gpt", **GENERATE)],
)
fit(
    "the end of the prompt",
    Right(holds=as_beginning, warnings=CUT),
    read=items(SHORT, LONG, " ".join(LONG.split()[-28:])),
    steps=[step("text-generation", "gpt", tooLong="truncateLeft", **GENERATE)],
)
fit(
    "a prompt that fits exactly, and one with a word more",
    Right(holds=lambda rows: [row["n"] for row in rows] == [0], failed=1, says=LONG_FAILS),
    read=items(" ".join(LONG.split()[:28]), " ".join(LONG.split()[:29])),
    steps=[step("text-generation", "gpt", **GENERATE)],
)
fit(
    "the beginning of the prompt",
    Right(holds=as_beginning, warnings=CUT),
    read=items(SHORT, LONG, " ".join(LONG.split()[:28])),
    steps=[step("text-generation", "gpt", tooLong="truncate", **GENERATE)],
)

batches = CASES.kind("R36", "results that depend on the batch", read=items(*SOME), peers=NO_PEERS)
batches(
    "texts of a language model",
    equal(30),
    steps=[step("text-generation", "gpt", **GENERATE)],
    runs=alone_and_together(*SIZES),
)
batches(
    "embeddings",
    equal(30),
    steps=[step("feature-extraction", "embedder")],
    runs=alone_and_together(*SIZES),
)
batches(
    "embeddings of sentence-transformers",
    equal(30),
    steps=[embedder()],
    runs=alone_and_together(*SIZES),
)
batches(
    "labels, beside null and a text that is too long",
    equal(32, NullInput=1, TextCut=1),
    read=items(*SOME, None, LONG),
    steps=[step("text-classification", "classifier")],
    runs=alone_and_together(*SIZES),
)
batches(
    "texts of an encoder and decoder",
    equal(30),
    steps=[step("text-generation", "encoder_decoder", **GENERATE)],
    runs=alone_and_together(*SIZES),
)


def tones(rate: int = 16000, channels: int = 1) -> dict[str, Any]:
    seconds = (0.01, 0.5, 0.99, 1.1, 3.2)
    return {
        f"{number}.wav": sound(sine(length, rate, channels) * (0.3 + number / 10), rate)
        for number, length in enumerate(seconds)
    }


def heard(task: str, model: str, **fields: Any) -> list[Row]:
    inputs = {"audio": "amplitude", "sampling_rate": "sample_rate"}
    return [
        {"name": "key", "addColumns": {"n": "path"}},
        {"name": "slim", "selectColumns": ["n", "amplitude", "sample_rate"]},
        step(task, model, inputs=inputs, **fields),
    ]


SOUND = {"format": "audio", "options": {"includePaths": True}}
SPEECH = ("automatic-speech-recognition", "whisper")
speech = CASES.kind(
    "R34",
    "recordings below and above the window of a model in one batch (30 s scaled to 1 s)",
    read=SOUND,
    files=tones(),
    peers=NO_PEERS,
)
speech("a model such as Whisper", equal(5), steps=heard(*SPEECH), runs=alone_and_together(1, 6))
speech(
    "a model for speech without windows",
    equal(5),
    steps=heard("automatic-speech-recognition", "speech_recognizer"),
    runs=alone_and_together(1, 6),
)
speech(
    "a model that classifies sounds",
    equal(5),
    steps=heard("audio-classification", "audio_classifier"),
    runs=alone_and_together(1, 6),
)
speech(
    "an empty recording among them",
    Right(
        holds=lambda rows: len(rows) == 6 and sum(row["o"] is None for row in rows) == 1,
        warnings=EMPTY,
    ),
    files={**tones(), "9.wav": sound(sine(0), 16000)},
    steps=heard(*SPEECH),
)
