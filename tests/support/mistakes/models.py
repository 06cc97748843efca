"""Mistakes in models: their folders, tasks, inputs and prompts."""

from __future__ import annotations

import json

from support.mistakes import Mistake

SOURCE = "source: ./model"
TASK = "task: feature-extraction"
FIELDS = f"runtime: transformers\n      {TASK}\n      {SOURCE}\n      inputs: {{text: text}}"
ZERO_SHOT = FIELDS.replace(TASK, "task: zero-shot-classification")
WEIGHTS = {"m/model.safetensors": "", "m/tokenizer.json": "{}"}
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 12\n"


def _config(architecture: str, kind: str = "bert") -> str:
    return json.dumps({"model_type": kind, "architectures": [architecture]})


def _source(wrong: str, says: str, files: dict[str, str] | None = None) -> Mistake:
    return Mistake(f"source: {wrong}", SOURCE, says=says, files=files or {})


def _task(wrong: str, right: str) -> Mistake:
    """Return a mistake in the name of a task of texts."""
    config = {"model/config.json": '{"model_type": "bert"}'}
    return Mistake(f"task: {wrong}", f"task: {right}", TASK, config, says=f"'{right}'")


def _prompt(wrong: str, right: str, says: str) -> Mistake:
    """Return a mistake in a model that generates text."""
    fields = f"{FIELDS.replace(TASK, 'task: text-generation')}\n      prompt: "
    config = {"model/config.json": _config("LlamaForCausalLM", "llama")}
    return Mistake(fields + wrong, fields + right, FIELDS, config, says=says)


def _http(wrong: str, right: str, says: str) -> Mistake:
    """Return a mistake in a model behind an address."""
    fields = "runtime: http\n      inputs: {text: text}\n      "
    return Mistake(fields + wrong, fields + right, FIELDS, says=says)


_URL = "api: chat\n      url: http://localhost:8000/v1\n      name: m"
MISTAKES = {
    "a misspelled folder": _source("./modle", "/model'?"),
    "a folder without a model": _source("./m", "no config.json", {"m/notes.txt": ""}),
    "the folder above the model": _source("./m", "/m/bert'", {"m/bert/config.json": "{}"}),
    "a table as the model": _source("./reviews.csv", "folder of a model"),
    "the weights as the model": _source("./model/model.safetensors", "/work/model"),
    "no weights": _source("./m", "model.safetensors", {"m/config.json": "{}"}),
    "weights that Git LFS has not fetched": _source(
        "./m", "git lfs pull", {**WEIGHTS, "m/config.json": "{}", "m/model.safetensors": LFS}
    ),
    "no tokenizer": _source(
        "./m", "Copy its tokenizer",
        {"m/config.json": _config("BertModel"), "m/model.safetensors": ""},
    ),
    "an incomplete config": _source(
        "./m", "Copy the file again", {**WEIGHTS, "m/config.json": "{"}
    ),
    "an address of the Hub": _source("https://huggingface.co/me/bert", "Write me/bert"),
    "a Windows path": _source("'C:\\models\\bert'", "a path with '/'"),
    "a variable of the shell": _source("$HOME/model", "Write ~ instead of $HOME"),
    "another variable of the shell": _source("${MODELS}/bert", "Write {{ params.models }}"),
    "no source": Mistake("", f"      {SOURCE}\n", says="source: ./model"),
    "revision of a folder": Mistake(f"{SOURCE}\n      revision: main", SOURCE, says="Remove it"),
    "a classifier that is to generate": Mistake(
        "task: text-generation", "task: text-classification", TASK,
        {"model/config.json": _config("BertForSequenceClassification")},
        says="to text-classification or zero-shot-classification",
    ),
    "a model of images for texts": Mistake(
        "task: text-classification", TASK, says="with inputs: {image: COLUMN}",
        files={"model/config.json": _config("ViTForImageClassification", "vit")},
    ),
    "sentiment-analysis": _task("sentiment-analysis", "text-classification"),
    "ner": _task("ner", "token-classification"),
    "embedding": _task("embedding", "feature-extraction"),
    "text_classification": _task("text_classification", "text-classification"),
    "huggingface": Mistake("runtime: huggingface", "runtime: transformers", says="'transformers'"),
    "sentence-transformers": Mistake(
        f"runtime: sentence-transformers\n      {SOURCE}",
        f"runtime: sentenceTransformers\n      {SOURCE}",
        f"runtime: transformers\n      {TASK}\n      {SOURCE}", says="'sentenceTransformers'",
    ),
    "sklearn": Mistake("runtime: sklearn", "runtime: transformers", says="python step"),
    "max_length": Mistake(f"{SOURCE}\n      max_length: 9", SOURCE, says="options: {...} of"),
    "8 bits": Mistake(f"{SOURCE}\n      load_in_8bit: true", SOURCE, says="are quantized"),
    "a folder without an ONNX file": Mistake(
        f"runtime: onnx\n      {SOURCE}\n      inputs: {{n: n}}", FIELDS, says="Name the file"),
    "fp16": Mistake(f"{SOURCE}\n      dtype: fp16", f"{SOURCE}\n      dtype: float16", SOURCE,
                    says="'float16'"),
    "a misspelled column": Mistake("{text: txt}", "{text: text}", says="'text'"),
    "a misspelled input in the prompt": _prompt("'Rate {txt}'", "'Rate {text}'", "'text'"),
    "doubled braces": _prompt("'Rate {{text}}'", "'Rate {text}'", "is the text '{text}'"),
    "a file as the prompt": _prompt("./prompt.txt", "'Rate {text}'", "with {text} for the input"),
    "a prompt without a name": _prompt("'Rate {}'", "'Rate {text}'", "{name} for an input"),
    "a format in the prompt": _prompt("'Rate {text:.2f}'", "'Rate {text}'", "addColumns"),
    "no input in the prompt": _prompt("Rate it", "'Rate {text}'", "Write {text}"),
    "JSON in the prompt": _prompt(
        "'Like {\"a\": 1}: {text}'", "'Like {{\"a\": 1}}: {text}'", "double a literal brace"
    ),
    "temperature beside the task": _prompt(
        "'{text}'\n      temperature: 0", "'{text}'\n      sampling: {temperature: 0}", "sampling"
    ),
    "a column that is no input": _prompt("'{text} {n}'", "'{text}'",
                                         "Write inputs: {text: text, n: n}"),
    "yes and no as labels": Mistake(
        f"{ZERO_SHOT}\n      candidateLabels: [yes, no]",
        f"{ZERO_SHOT}\n      candidateLabels: ['yes', 'no']", FIELDS, says="such as 'yes'",
        files={"model/config.json": _config("BertForSequenceClassification")},
    ),
    "no address": _http("api: chat\n      name: m", _URL, "url: ADDRESS"),
    "an address without http": _http(_URL.replace("http://", ""), _URL, "begins with http://"),
    "a key in the file": _http(f"{_URL}\n      apiKey: sk-abcdefghijklmnop",
                               f"{_URL}\n      apiKeyEnv: HOME", "does not belong in the file"),
    "a key as the name of a variable": _http(
        f"{_URL}\n      apiKeyEnv: sk-abcdefghijklmnop", f"{_URL}\n      apiKeyEnv: HOME",
        "OPENAI_API_KEY",
    ),
    "headers": _http(f"{_URL}\n      headers: {{X: HOME}}",
                     f"{_URL}\n      headersFrom: {{X: HOME}}", "headersFrom: {HEADER:"),
    "a timeout without a unit": _http(f"{_URL}\n      timeout: 30", f"{_URL}\n      timeout: 30s",
                                      "30s"),
    "openai as the API": _http(_URL.replace("chat", "openai"), _URL, "'chat'"),
}  # fmt: skip
