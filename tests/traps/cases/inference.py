"""Inputs of models: long, null and empty texts, batches, templates, and results such as NaN."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from traps import models, product
from traps.case import Cases, Outcome, Refused, Right, Row
from traps.inputs import parquet
from traps.pictures import halves
from traps.recordings import sine, sound
from traps.verdict import same

CASES = Cases("inference")
OWN_FUNCTION = "the model is your own function"
NO_PEERS = dict.fromkeys(("ray", "daft", "datasets", "pandas"), OWN_FUNCTION)
LONG = " ".join(models.WORDS[number % 50] for number in range(100))
FITS = " ".join(LONG.split()[:30])
"""The longest beginning of LONG that fits into 32 tokens."""
LAST = " ".join(LONG.split()[-30:])


def step(task: str, model: str, **fields: Any) -> Row:
    """Return a step with a model over the column t."""
    batch = fields.pop("batch", 8)
    described = {
        "runtime": "transformers",
        "task": task,
        "source": models.source(model),
        "inputs": {"text": "t"},
        "output": "o",
        **fields,
    }
    return {"name": "m", "model": described, "batchSize": batch}


def embedder(model: str = "embedder", **fields: Any) -> Row:
    """Return a step of the runtime sentenceTransformers."""
    described = {
        "runtime": "sentenceTransformers",
        "source": models.source(model),
        "inputs": {"text": "t"},
        "output": "o",
        **fields,
    }
    return {"name": "m", "model": described, "batchSize": 8}


def items(*texts: Any) -> dict[str, Any]:
    return {
        "format": "items",
        "items": [{"n": number, "t": text} for number, text in enumerate(texts)],
    }


def results(rows: Sequence[Row]) -> list[Any]:
    """Return the results in the order of the items."""
    return [row["o"] for row in sorted(rows, key=lambda row: row["n"])]


def as_if(*texts: int) -> Any:
    """Return whether all results exist, and those of items 2 equal those of these items."""

    def holds(rows: Sequence[Row]) -> bool:
        found = results(rows)
        return (
            len(found) == 3
            and same(found[1], found[2], 1e-4)
            and not same(found[0], found[1], 1e-6)
        )

    return holds


def differs(rows: Sequence[Row]) -> bool:
    """Return whether the result of the long text differs from that of its beginning."""
    found = results(rows)
    return len(found) == 3 and not same(found[1], found[2], 1e-4)


def daft_embeddings(*texts: Any, model: str = "embedder") -> Any:
    """Return how a user of Daft embeds texts."""

    def read(directory: Path) -> list[Row]:
        import daft
        from daft.functions import embed_text

        frame = daft.from_pydict({"n": list(range(len(texts))), "t": list(texts)})
        folder = str(directory / "models" / model)
        found = frame.with_column(
            "o", embed_text(daft.col("t"), provider="transformers", model=folder)
        )
        return [
            {**row, "o": None if row["o"] is None else np.asarray(row["o"]).tolist()}
            for row in found.to_pylist()
        ]

    return read


CUT = {"TextCut": 1}
NOTICE = "long|cut|truncat"
THREE = ("w1", LONG, FITS)
long = CASES.kind("R02", "texts that are longer than the model", read=items(*THREE), peers=NO_PEERS)
CUT_RIGHT = Right(holds=as_if(), warnings=CUT, notice=NOTICE)
long(
    "a label",
    CUT_RIGHT,
    steps=[step("text-classification", "classifier")],
    write=models.write("classifier"),
)
long(
    "an embedding",
    CUT_RIGHT,
    steps=[step("feature-extraction", "embedder")],
    write=models.write("embedder"),
    peers={"daft": daft_embeddings(*THREE)},
)
long(
    "the entities of a text",
    Right(
        holds=lambda rows: [len(each) for each in results(rows)] == [1, 30, 30],
        warnings=CUT,
        notice=NOTICE,
    ),
    Right(holds=lambda rows: len(rows) == 3, warnings=CUT, notice=NOTICE),
    steps=[step("token-classification", "tagger", options={"ignore_labels": []})],
    write=models.write("tagger"),
)
long(
    "an embedding of sentence-transformers",
    CUT_RIGHT,
    steps=[embedder()],
    write=models.write("embedder"),
    peers={"daft": daft_embeddings(*THREE)},
)
long(
    "a label of several that are named",
    Right(holds=as_if(), warnings={"TextCut": 2}, notice=NOTICE),
    read=items("a", "a" * 100, "a" * 100),
    steps=[step("zero-shot-classification", "entailment_model", candidateLabels=["a", "b"])],
    write=models.write("entailment_model"),
)
long(
    "the option fail",
    Right(holds=lambda rows: [row["n"] for row in rows] == [0, 2], failed=1, says="token|long"),
    steps=[step("text-classification", "classifier", tooLong="fail")],
    write=models.write("classifier"),
)
long(
    "windows of an embedding",
    Right(holds=differs),
    steps=[step("feature-extraction", "embedder", tooLong="windows")],
    write=models.write("embedder"),
)
long(
    "windows of sentence-transformers",
    Right(holds=differs),
    steps=[embedder(tooLong="windows")],
    write=models.write("embedder"),
)
long(
    "windows of entities, to the end of the text",
    Right(
        holds=lambda rows: max((each["end"] for each in results(rows)[1]), default=0) == len(LONG)
    ),
    steps=[
        step("token-classification", "tagger", tooLong="windows", options={"ignore_labels": []})
    ],
    write=models.write("tagger"),
)
long(
    "the end of a text instead of its beginning",
    CUT_RIGHT,
    read=items("w1", LONG, LAST),
    steps=[step("feature-extraction", "embedder", tooLong="truncateLeft")],
    write=models.write("embedder"),
)
long(
    "a text that fits exactly, and one with a word more",
    Right(holds=lambda rows: same(results(rows)[0], results(rows)[1], 1e-4), warnings=CUT),
    read=items(FITS, f"{FITS} w49"),
    steps=[step("feature-extraction", "embedder")],
    write=models.write("embedder"),
)
long(
    "a pair of texts",
    Right(holds=lambda rows: len(rows) == 2, warnings=CUT, notice=NOTICE),
    read={
        "format": "items",
        "items": [{"n": 0, "t": "w1", "p": "w2"}, {"n": 1, "t": "w1", "p": LONG}],
    },
    steps=[step("text-classification", "classifier", inputs={"text": "t", "text_pair": "p"})],
    write=models.write("classifier"),
)
long(
    "a word of the mask behind the limit",
    Right(holds=lambda rows: [row["n"] for row in rows] == [0], failed=1),
    Right(holds=lambda rows: len(rows) == 2, warnings=CUT),
    read=items("w1 [MASK]", f"{LONG} [MASK]"),
    steps=[step("fill-mask", "filler")],
    write=models.write("filler"),
)


def chunks(unit: str, size: int, **fields: Any) -> Row:
    return {"name": "parts", "chunk": {"column": "t", "size": size, "unit": unit, **fields}}


def joined(rows: Sequence[Row]) -> bool:
    """Return whether the chunks of each text, joined, are the text."""
    ordered = sorted(rows, key=lambda row: (row["n"], row["chunk_index"]))
    texts = ["".join(row["t"] for row in ordered if row["n"] == n) for n in range(len(THREE))]
    return texts == [*THREE] and all(row["o"] for row in rows)


TOKENS = {"tokenizer": models.source("embedder")}
embed = step("feature-extraction", "embedder")
long(
    "a text that is divided into chunks of tokens",
    Right(holds=joined),
    steps=[chunks("tokens", 30, **TOKENS), embed],
    write=models.write("embedder"),
)
long(
    "chunks that are still too long",
    Right(holds=joined, warnings=CUT),
    steps=[chunks("words", 80), embed],
    write=models.write("embedder"),
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
    write=models.write("classifier"),
)
null(
    "white space only",
    Right(holds=outputs(True, False, False), warnings={"EmptyInput": 2}),
    read=items("w1", " ", "\n\t"),
    steps=classify,
    write=models.write("classifier"),
)
null(
    "an embedding of null",
    Right(holds=outputs(True, False), warnings=NULL, notice="null"),
    Right(holds=outputs(True, False)),
    read=items("w1", None),
    steps=[step("feature-extraction", "embedder")],
    write=models.write("embedder"),
    peers={"daft": daft_embeddings("w1", None)},
)
null(
    "an embedding of sentence-transformers of null and empty",
    Right(holds=outputs(True, False, False), warnings={**NULL, **EMPTY}),
    read=items("w1", None, ""),
    steps=[embedder()],
    write=models.write("embedder"),
    peers={"daft": daft_embeddings("w1", None, "")},
)
null(
    "only nulls",
    Right(
        holds=lambda rows: [row.get("o") for row in rows] == [None, None], warnings={"NullInput": 2}
    ),
    read={
        "format": "items",
        "items": [{"n": 0, "t": None, "u": "a"}, {"n": 1, "t": None, "u": "a"}],
    },
    steps=classify,
    write=models.write("classifier"),
)
null(
    "the option fail",
    Right(holds=outputs(True), failed=2, says="null|empty"),
    read=items("w1", None, ""),
    steps=[step("text-classification", "classifier", nullInput="fail", emptyInput="fail")],
    write=models.write("classifier"),
)
null(
    "an empty text that is computed",
    Right(holds=outputs(True, True)),
    read=items("w1", ""),
    steps=[step("text-classification", "classifier", emptyInput="compute")],
    write=models.write("classifier"),
)
null(
    "a prompt of which one input is null",
    Right(holds=outputs(True, False), warnings=NULL),
    read=items("w1", None),
    steps=[step("text-generation", "gpt", prompt="w2 {text}", sampling={"max_new_tokens": 2})],
    write=models.write("gpt"),
)
null(
    "the second of a pair of texts",
    Right(holds=outputs(True, False), warnings=NULL),
    read={
        "format": "items",
        "items": [{"n": 0, "t": "w1", "p": "w2"}, {"n": 1, "t": "w1", "p": None}],
    },
    steps=[step("text-classification", "classifier", inputs={"text": "t", "text_pair": "p"})],
    write=models.write("classifier"),
)
null(
    "a picture that is null",
    Right(holds=outputs(True, False), warnings=NULL),
    read={"format": "parquet"},
    files={"a.parquet": parquet(lambda: {"n": [0, 1], "i": [halves()(), None]})},
    steps=[
        {"name": "decode", "decode": {"column": "i", "format": "image"}},
        {"name": "m", "python": {"callable": "traps.steps:keep"}},
        {
            "name": "n",
            "model": {
                "runtime": "torch",
                "factory": "traps.steps:mean_model",
                "inputs": {"image": "i"},
                "output": "o",
            },
        },
        {"name": "slim", "dropColumns": ["i"]},
    ],
)
null(
    "a recording without samples",
    Right(holds=lambda rows: [row["o"] for row in rows] == [None], warnings=EMPTY),
    Right(holds=lambda rows: not rows, failed=1),
    read={"format": "audio"},
    files={"a.wav": sound(sine(0), 16000)},
    steps=[
        {
            "name": "m",
            "model": {
                "runtime": "transformers",
                "task": "audio-classification",
                "source": models.source("audio_classifier"),
                "inputs": {"audio": "amplitude", "sampling_rate": "sample_rate"},
                "output": "o",
            },
        }
    ],
    write=models.write("audio_classifier"),
)

NOT_FINITE = {"NonFinite": 2}


def all_nan(rows: Sequence[Row]) -> bool:
    return len(rows) == 2 and all(
        not np.isfinite(np.asarray(value, dtype=float)).any() for value in results(rows)
    )


def torch_step(function: str, **fields: Any) -> Row:
    described = {
        "runtime": "torch",
        "factory": f"traps.steps:{function}",
        "inputs": {"x": "x"},
        "output": "o",
        **fields,
    }
    return {"name": "m", "model": described, "batchSize": 8}


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
    write=models.write("nan"),
    peers={"daft": daft_embeddings("w1", "w2", model="nan")},
)
finite(
    "the same, normalized",
    Right(holds=lambda rows: not rows, failed=2, says="NaN|finite"),
    read=items("w1", "w2"),
    steps=[step("feature-extraction", "nan", normalize=True)],
    write=models.write("nan"),
)
finite(
    "the same with sentence-transformers, normalized",
    Right(holds=lambda rows: not rows, failed=2, says="NaN|finite"),
    read=items("w1", "w2"),
    steps=[embedder("nan", normalize=True)],
    write=models.write("nan"),
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
    "an infinite result of one row",
    Right(holds=lambda rows: results(rows)[:2] == [0.25, -1.0], warnings={"NonFinite": 1}),
    read=NUMBERS,
    steps=[torch_step("inverse")],
)
finite(
    "NaN that is written as JSON",
    Right(holds=lambda rows: len(rows) == 3, warnings={"NonFinite": 1, "WrittenAsNull": 1}),
    read=NUMBERS,
    steps=[torch_step("root")],
    output={"format": "json"},
)
finite(
    "a vector of zeros that is normalized",
    Right(
        holds=lambda rows: len(rows) == 2 and np.allclose(np.linalg.norm(results(rows)[0]), 1),
        warnings={"NonFinite": 0},
    ),
    Right(holds=lambda rows: len(rows) == 2),
    read=items("w1", "w2"),
    steps=[step("feature-extraction", "embedder", normalize=True)],
    write=models.write("embedder"),
)


finite(
    "a number that is null",
    Right(holds=lambda rows: results(rows) == [2.0, None], warnings=NULL),
    read={"format": "items", "items": [{"n": 0, "x": 4.0}, {"n": 1, "x": None}]},
    steps=[torch_step("root")],
)
finite(
    "a label whose score is NaN",
    Right(holds=lambda rows: len(rows) == 2, warnings=NOT_FINITE),
    Right(holds=lambda rows: not rows, failed=2, says="NaN|finite"),
    read=items("w1", "w2"),
    steps=[step("text-classification", "nan-classifier")],
    write=models.write("nan-classifier"),
)


def alone_and_together(*sizes: int, **changes: Any) -> Any:
    """Return a function that runs a case with each batch size, and compares the results."""

    def runs(run: product.Run, directory: Path) -> Outcome:
        case = next(case for case in CASES.list if case.runs is runs)
        found = []
        for size in sizes:
            *others, last = case.steps
            out = {**case.output, "path": f"out-{size}"}
            done = product.run_job(
                case, directory, run, steps=[*others, {**last, "batchSize": size}], write=out
            )
            if done.error or done.failed:
                return done
            found.append(done)
        equal = all(same(results(found[0].rows), results(done.rows), 1e-4) for done in found[1:])
        return Outcome(
            [{"equal": equal, "rows": len(found[0].rows)}],
            warnings=found[0].warnings,
            problems=found[0].problems,
        )

    return runs


def equal(rows: int, **warnings: int) -> Right:
    return Right([{"equal": True, "rows": rows}], warnings=warnings)


SOME = [" ".join(models.WORDS[(n + m) % 50] for m in range(1 + n % 25)) for n in range(30)]
padded = CASES.kind(
    "R10", "models without a padding token", read=items(*SOME), runs=None, peers=NO_PEERS
)
SIZES = (1, 3, 64)
PADDING = Refused("pad")
padded(
    "labels of a GPT",
    equal(30),
    PADDING,
    steps=[step("text-classification", "gpt-classifier")],
    write=models.write("gpt-classifier"),
    runs=alone_and_together(*SIZES),
)
padded(
    "embeddings of a GPT",
    equal(30),
    PADDING,
    steps=[step("feature-extraction", "gpt-embedder")],
    write=models.write("gpt-embedder"),
    runs=alone_and_together(*SIZES),
)
padded(
    "entities of a GPT",
    equal(30),
    PADDING,
    steps=[step("token-classification", "gpt-tagger")],
    write=models.write("gpt-tagger"),
    runs=alone_and_together(*SIZES),
)
padded(
    "texts of a GPT",
    equal(30),
    PADDING,
    steps=[step("text-generation", "gpt", sampling={"max_new_tokens": 4})],
    write=models.write("gpt"),
    runs=alone_and_together(*SIZES),
)
padded(
    "embeddings of a GPT with sentence-transformers",
    equal(30),
    PADDING,
    steps=[embedder("gpt-embedder")],
    write=models.write("gpt-embedder"),
    runs=alone_and_together(*SIZES),
)

unlimited = CASES.kind(
    "R12", "tokenizers that name no or a wrong maximum length", read=items(*THREE), peers=NO_PEERS
)
unlimited(
    "a label",
    CUT_RIGHT,
    steps=[step("text-classification", "unlimited-classifier")],
    write=models.write("unlimited-classifier"),
)
unlimited(
    "an embedding",
    CUT_RIGHT,
    steps=[step("feature-extraction", "unlimited-embedder")],
    write=models.write("unlimited-embedder"),
    peers={"daft": daft_embeddings(*THREE, model="unlimited-embedder")},
)
unlimited(
    "entities",
    Right(holds=lambda rows: len(rows) == 3, warnings=CUT),
    steps=[step("token-classification", "unlimited-tagger")],
    write=models.write("unlimited-tagger"),
)
unlimited(
    "a maximum of 512 for a model with 32 positions",
    CUT_RIGHT,
    steps=[step("feature-extraction", "wrong-limit")],
    write=models.write("wrong-limit"),
    peers={"daft": daft_embeddings(*THREE, model="wrong-limit")},
)
unlimited(
    "positions that begin behind the padding token",
    CUT_RIGHT,
    steps=[step("feature-extraction", "roberta")],
    write=models.write("roberta"),
)
unlimited(
    "sentence-transformers",
    CUT_RIGHT,
    steps=[embedder("unlimited-embedder")],
    write=models.write("unlimited-embedder"),
    peers={"daft": daft_embeddings(*THREE, model="unlimited-embedder")},
)
unlimited(
    "sentence-transformers, with windows",
    Right(holds=differs),
    steps=[embedder("unlimited-embedder", tooLong="windows")],
    write=models.write("unlimited-embedder"),
)
unlimited(
    "sentence-transformers with 512 for 32 positions",
    CUT_RIGHT,
    steps=[embedder("wrong-limit")],
    write=models.write("wrong-limit"),
    peers={"daft": daft_embeddings(*THREE, model="wrong-limit")},
)

GENERATE = {"sampling": {"max_new_tokens": 4}}


def chat(model: str, **fields: Any) -> dict[str, Any]:
    return {
        "steps": [step("text-generation", model, **{"prompt": "{text}", **GENERATE, **fields})],
        "write": models.write(model),
    }


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
    **chat("no-system", system="be brief"),
)
template(
    "two messages of the user for a template that alternates",
    TEMPLATE,
    **chat("alternating", messages=[{"role": "user", "content": "w3"}]),
)
template("a template that is no valid template", TEMPLATE, **chat("broken"))
template(
    "the same template without a system text",
    Right(holds=lambda rows: len(rows) == 2),
    **chat("no-system"),
)
template(
    "a row that the template refuses",
    Right(holds=lambda rows: [row["n"] for row in rows] == [0], failed=1, says="template|content"),
    Right(holds=outputs(True, False), warnings=EMPTY),
    read=items("w1", ""),
    **chat("no-empty"),
)
template(
    "messages for a model without a template",
    Refused("template|messages"),
    **chat("gpt", messages=[{"role": "user", "content": "w3"}]),
)
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
    write=models.write("no-system"),
)

fit = CASES.kind("R37", "prompts that are longer than the context", peers=NO_PEERS)
SHORT = "w1 w2"
LONG_FAILS = "token|position|long"
fit(
    "a prompt of 100 tokens beside a short one",
    Right(holds=lambda rows: [row["n"] for row in rows] == [0], failed=1, says=LONG_FAILS),
    read=items(SHORT, LONG),
    steps=[step("text-generation", "gpt", **GENERATE)],
    write=models.write("gpt"),
)
fit(
    "the end of the prompt",
    Right(holds=as_if(), warnings=CUT),
    read=items(SHORT, LONG, " ".join(LONG.split()[-28:])),
    steps=[step("text-generation", "gpt", tooLong="truncateLeft", **GENERATE)],
    write=models.write("gpt"),
)
fit(
    "a prompt that fits exactly, and one with a word more",
    Right(holds=lambda rows: [row["n"] for row in rows] == [0], failed=1, says=LONG_FAILS),
    read=items(" ".join(LONG.split()[:28]), " ".join(LONG.split()[:29])),
    steps=[step("text-generation", "gpt", **GENERATE)],
    write=models.write("gpt"),
)
fit(
    "a chat that is too long",
    Right(holds=lambda rows: [row["n"] for row in rows] == [0], failed=1, says=LONG_FAILS),
    read=items(SHORT, LONG),
    **chat("chat", system="w9"),
)
fit(
    "an empty prompt",
    Right(holds=outputs(True, False), warnings=EMPTY),
    Right(holds=lambda rows: [row["n"] for row in rows] == [0], failed=1),
    read=items(SHORT, ""),
    steps=[step("text-generation", "gpt", **GENERATE)],
    write=models.write("gpt"),
)
fit(
    "the beginning of the prompt",
    Right(holds=as_if(), warnings=CUT),
    read=items(SHORT, LONG, " ".join(LONG.split()[:28])),
    steps=[step("text-generation", "gpt", tooLong="truncate", **GENERATE)],
    write=models.write("gpt"),
)
fit(
    "more new tokens than positions",
    Right(holds=lambda rows: not rows, failed=1, says=LONG_FAILS),
    Refused(LONG_FAILS),
    read=items(SHORT),
    steps=[step("text-generation", "gpt", sampling={"max_new_tokens": 40})],
    write=models.write("gpt"),
)

batches = CASES.kind("R36", "results that depend on the batch", read=items(*SOME), peers=NO_PEERS)
batches(
    "texts of a language model",
    equal(30),
    steps=[step("text-generation", "gpt", **GENERATE)],
    write=models.write("gpt"),
    runs=alone_and_together(*SIZES),
)
batches(
    "the same, limited by tokens",
    equal(30),
    steps=[step("text-generation", "gpt", maxTokensPerBatch=60, **GENERATE)],
    write=models.write("gpt"),
    runs=alone_and_together(*SIZES),
)
batches(
    "embeddings",
    equal(30),
    steps=[step("feature-extraction", "embedder")],
    write=models.write("embedder"),
    runs=alone_and_together(*SIZES),
)
batches(
    "embeddings of sentence-transformers",
    equal(30),
    steps=[embedder()],
    write=models.write("embedder"),
    runs=alone_and_together(*SIZES),
)
batches(
    "windows",
    equal(3),
    read=items(*THREE),
    steps=[step("feature-extraction", "embedder", tooLong="windows")],
    write=models.write("embedder"),
    runs=alone_and_together(*SIZES),
)
batches(
    "labels, beside null and a text that is too long",
    equal(32, NullInput=1, TextCut=1),
    read=items(*SOME, None, LONG),
    steps=[step("text-classification", "classifier")],
    write=models.write("classifier"),
    runs=alone_and_together(*SIZES),
)
batches(
    "texts of an encoder and decoder",
    equal(30),
    steps=[step("text-generation", "encoder_decoder", **GENERATE)],
    write=models.write("encoder_decoder"),
    runs=alone_and_together(*SIZES),
)


def tones(rate: int = 16000, channels: int = 1) -> dict[str, Any]:
    seconds = (0.01, 0.5, 0.99, 1.1, 3.2)
    return {
        f"{number}.wav": sound(sine(length, rate, channels) * (0.3 + number / 10), rate)
        for number, length in enumerate(seconds)
    }


def heard(task: str, model: str, **fields: Any) -> list[Row]:
    described = {
        "runtime": "transformers",
        "task": task,
        "source": models.source(model),
        "inputs": {"audio": "amplitude", "sampling_rate": "sample_rate"},
        "output": "o",
        **fields,
    }
    return [
        {"name": "key", "addColumns": {"n": "path"}},
        {"name": "slim", "selectColumns": ["n", "amplitude", "sample_rate"]},
        {"name": "m", "model": described},
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
speech(
    "a model such as Whisper",
    equal(5),
    steps=heard(*SPEECH),
    write=models.write("whisper"),
    runs=alone_and_together(1, 6),
)
speech(
    "the same with timestamps",
    equal(5),
    steps=heard(*SPEECH, options={"return_timestamps": True}),
    write=models.write("whisper"),
    runs=alone_and_together(1, 6),
)
speech(
    "the same with stereo of 8 kHz",
    equal(5),
    files=tones(8000, 2),
    steps=heard(*SPEECH),
    write=models.write("whisper"),
    runs=alone_and_together(1, 6),
)
speech(
    "a model for speech without windows",
    equal(5),
    steps=heard("automatic-speech-recognition", "speech_recognizer"),
    write=models.write("speech_recognizer"),
    runs=alone_and_together(1, 6),
)
speech(
    "a model that classifies sounds",
    equal(5),
    steps=heard("audio-classification", "audio_classifier"),
    write=models.write("audio_classifier"),
    runs=alone_and_together(1, 6),
)
speech(
    "an empty recording among them",
    Right(
        holds=lambda rows: len(rows) == 6 and sum(row["o"] is None for row in rows) == 1,
        warnings=EMPTY,
    ),
    Right(holds=lambda rows: len(rows) == 5, failed=1),
    files={**tones(), "9.wav": sound(sine(0), 16000)},
    steps=heard(*SPEECH),
    write=models.write("whisper"),
)
