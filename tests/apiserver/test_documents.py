"""Documents that the API server and the parser accept or refuse, with the server's messages."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import yaml

from batchinference.spec import SpecError, parse
from batchinference.spec.accelerators import CASE_RULE
from batchinference.spec.causes import Cause
from batchinference.spec.cluster import RAY_START_OPTIONS
from batchinference.spec.models.transformers_tasks import ZERO_SHOT, rules_of_inputs
from batchinference.spec.steps import Step, to_alias
from support.cluster.deployment import CHART, ROOT
from support.documents.http_models import URL, chat, json_endpoint
from support.documents.minimal import document, model_step
from support.documents.refusals import SOURCES, valid_documents, writing
from support.documents.runtimes import full_model
from support.documents.variations import (
    REMOVED,
    changed,
    full_document,
    place_of,
)
from support.documents.vllm_models import vllm_step
from support.servers.api_server import Namespace, refusal

Document = dict[str, Any]

FULL = full_document()
IMMUTABLE = "for other rows, create a new BatchInference"
ONE_KIND = f"a step holds exactly one of {', '.join(map(to_alias, Step.kinds()))}"
POOLED = "batchSize, replicas and resources do not apply to this step. Remove them"
NAME = "metadata.name: at most 40 lower-case letters, digits and '-', beginning with a letter"
KEY = {"name": "object", "key": "key"}
NEEDS_PATHS = "a labelFromPath step needs read.options.includePaths: true"
NO_DEVICE = "'acceleratorType' is the type of the devices: request devices with gpu or custom"
NO_EXECUTE = "'tolerationSeconds' is for effect NoExecute"
ONE_REFERENCE = "give exactly one of secretKeyRef and configMapKeyRef"
ONE_SOURCE = "give exactly one of persistentVolumeClaim, hostPath, configMap and secret"
RESERVED = "is reserved for Ray, KubeRay and the operator"
RESERVED_NAME = (
    "this variable is reserved for Ray, KubeRay, device plugins and the operator: remove it"
)
RESOURCE_NAME = "expected letters, digits, '-', '_' and '.', a letter or digit at both ends"
LABEL_KEY = "expected a label key such as pool or example.com/pool"
SCHEME = "use a path, or an address with file://, s3://, gs://, az://"
EXAMPLES = sorted((ROOT / "examples").glob("*/job.yaml"))


def read(kind: str, **options: Any) -> Document:
    return document(read={"format": kind, "paths": ["s3://in/"], "options": options})


def test_server_and_parser_accept_valid_documents(module_namespace: Namespace) -> None:
    """The defaults that the server fills in are also the parser's defaults."""
    for name, body in valid_documents().items():
        named = {**body, "metadata": {**body["metadata"], "generateName": "valid-"}}
        del named["metadata"]["name"]
        assert refusal(module_namespace, body) is None, name
        stored = module_namespace.create(named)
        assert parse(stored).spec == parse(body).spec, name


def test_server_and_parser_accept_the_examples(module_namespace: Namespace) -> None:
    for file in EXAMPLES:
        body = yaml.safe_load(file.read_text().replace("./", "s3://bucket/"))
        assert refusal(module_namespace, body) is None, file
        parse(body)


def test_null_field_is_dropped_by_the_server(namespace: Namespace) -> None:
    for field in ("read.options", "steps", "errors", "cluster", "write.mode"):
        name = f"without-{field.replace('.', '-')}"
        stored = namespace.create(changed(document(name), place_of(f"spec.{field}"), None))
        assert parse(stored).spec == parse(document()).spec


INVALID = [
    ("spec.deadlines.total", 3600, "must be of type string"),
    ("spec.bogus", 1, 'unknown field "spec.bogus"'),
    ("spec.read.bogus", 1, 'unknown field "spec.read.bogus"'),
    ("spec.read.options.bogus", 1, 'unknown field "spec.read.options.bogus"'),
    ("spec.steps.1.batchsize", 1, 'unknown field "spec.steps[1].batchsize"'),
    ("spec.steps.1.model.bogus", 1, 'unknown field "spec.steps[1].model.bogus"'),
    ("spec.cluster.volumes.0.bogus", 1, 'unknown field "spec.cluster.volumes[0].bogus"'),
    ("spec", REMOVED, "spec: Required value"),
    ("spec.read", REMOVED, "spec.read: Required value"),
    ("spec.write", REMOVED, "spec.write: Required value"),
    ("spec.read.format", REMOVED, "spec.read.format: Required value"),
    ("spec.read.format", "orc", "spec.read.format: Unsupported value"),
    ("spec.read.paths", REMOVED, "paths is required for format images"),
    ("spec.read.paths", ["s3://in/"] * 257, "spec.read.paths: Too many"),
    ("spec.read.options.mode", "CMYK", "spec.read.options.mode: Unsupported value"),
    ("spec.steps.1.name", REMOVED, "spec.steps[1].name: Required value"),
    ("spec.steps.1.name", "label", "spec.steps[1]: Duplicate value"),
    ("spec.steps.1.model.source", REMOVED, "source is required for runtime transformers"),
    ("spec.steps.1.model.task", REMOVED, "task is required for runtime transformers"),
    ("spec.steps.1.model.task", "translation", "spec.steps[1].model.task: Unsupported value"),
    ("spec.steps.1.model.inputs", REMOVED, "spec.steps[1].model.inputs: Required value"),
    ("spec.steps.1.model.output", REMOVED, "spec.steps[1].model.output: Required value"),
    ("spec.steps.1.model.runtime", "caffe", "spec.steps[1].model.runtime: Unsupported value"),
    ("spec.steps.1.model.pooling", "max", "spec.steps[1].model.pooling: Unsupported value"),
    ("spec.steps.1.model.factory", "m:f", "factory is for runtime "),
    ("spec.steps.1.model.factoryArgs", {"a": 1}, "factoryArgs is for runtime "),
    ("spec.steps.2.model.task", "feature-extraction", "task is for runtime "),
    ("spec.steps.2.model.pooling", "mean", "pooling is for runtime transformers only"),
    ("spec.steps.2.model.normalize", True, "normalize is for runtime "),
    ("spec.steps.2.model.options", {"a": 1}, "options is for runtime "),
    ("spec.steps.1.filter", "a > 1", f"spec.steps[1]: Invalid value: {ONE_KIND}"),
    ("spec.steps.0.labelFromPath", REMOVED, f"spec.steps[0]: Invalid value: {ONE_KIND}"),
    ("spec.steps.0.batchSize", 8, POOLED),
    ("spec.steps.4.replicas", {"max": 2}, POOLED),
    ("spec.steps.9.resources", {"cpu": 2}, POOLED),
    ("spec.steps.1.batchSize", 0, "a number from 1 to 1000000, or 'auto'"),
    ("spec.steps.1.batchSize", "most", "a number from 1 to 1000000, or 'auto'"),
    ("spec.write.format", "orc", "spec.write.format: Unsupported value"),
    ("spec.write.format", "json", "compression for format json is one of gzip, none"),
    ("spec.write.mode", "upsert", "spec.write.mode: Unsupported value"),
    ("spec.write.path", REMOVED, "spec.write.path: Required value"),
    ("spec.write.compression", "brotli", "spec.write.compression: Unsupported value"),
    ("spec.retry.onCause.Oom", "fail", f"there is no such cause, only {', '.join(Cause)}"),
    ("spec.cluster.imagePullPolicy", "Often", "spec.cluster.imagePullPolicy: Unsupported value"),
    ("spec.read.options.includePaths", False, NEEDS_PATHS),
    ("spec.steps.1.replicas", {"min": 2}, "min is above max; either is 1 when absent"),
    ("spec.steps.1.resources", {"acceleratorType": "T4"}, NO_DEVICE),
    *(
        (
            "spec.steps.2.resources.custom",
            {name: 1},
            f"'{name}' is not a custom resource: use the field '{field}'",
        )
        for name, field in (
            *(("CPU", "cpu"), ("GPU", "gpu"), ("memory", "memory")),
            ("object_store_memory", "memory"),
        )
    ),
    ("spec.cluster.workers", {"min": 3, "max": 2}, "min is above max"),
    ("spec.cluster.env.0.name", "RAY_AUTH_MODE", RESERVED_NAME),
    ("spec.cluster.profiles.XPU.env.0.name", "RAY_AUTH_TOKEN", RESERVED_NAME),
    (
        "spec.cluster.env.0.valueFrom",
        {"secretKeyRef": KEY},
        "give exactly one of value and valueFrom",
    ),
    ("spec.cluster.env.0.value", REMOVED, "give exactly one of value and valueFrom"),
    ("spec.cluster.env.1.valueFrom", {}, ONE_REFERENCE),
    ("spec.cluster.env.1.name", "AWS_REGION", "two variables have one name"),
    ("spec.cluster.volumes.1.name", "data", "two volumes have one name"),
    ("spec.cluster.volumes.1.mountPath", "/data", "two volumes have one mountPath"),
    ("spec.cluster.volumes.0.name", "ray-logs", f"this volume name {RESERVED}"),
    ("spec.cluster.volumes.0.mountPath", "/tmp/ray", f"this mountPath {RESERVED}"),
    ("spec.cluster.volumes.0.mountPath", "/a/../tmp", "spec.cluster.volumes[0].mountPath"),
    ("spec.cluster.volumes.0.configMap", {"name": "c"}, ONE_SOURCE),
    ("spec.cluster.volumes.1.hostPath.path", "/a/../b", "spec.cluster.volumes[1].hostPath.path"),
    ("spec.cluster.tolerations.0", {"value": "a"}, "without a key, operator must be Exists"),
    ("spec.cluster.tolerations.0.value", "a", "'value' is for operator Equal"),
    ("spec.cluster.tolerations.0.effect", "NoSchedule", NO_EXECUTE),
    *(
        (f"spec.{place}", "0s", "a length of time above zero, such as 90s or 1h30m")
        for place in ("deadlines.active", "ttl.rayJob", "retry.backoff.max")
    ),
    ("spec.steps.1.name", "read", "this name of a step is reserved: choose another"),
    ("spec.steps.1.resources.acceleratorType", "t4", CASE_RULE[1]),
    ("spec.steps.2.resources.custom", {"a b": 1}, RESOURCE_NAME),
    ("spec.cluster.profiles", {"a b": {}}, RESOURCE_NAME),
    ("spec.cluster.nodeSelector", {"a b": "c"}, LABEL_KEY),
    ("spec.cluster.patches.0.pod.metadata.annotations", {"a b": "c"}, LABEL_KEY),
    ("spec.cluster.terminationGracePeriod", "1m1s", "at most 60s"),
    (
        "spec.cluster.rayStartParams.cpu",
        {"port": "1"},
        f"rayStartParams: a job may only set {', '.join(RAY_START_OPTIONS)}",
    ),
    ("spec.cluster.workers.memory", "511Mi", "expected at least 512Mi of memory"),
    ("spec.cluster.head.memory", "1023Mi", "expected at least 1Gi of memory"),
    ("spec.cluster.requests.memory", "512", "expected at least 1Mi of memory"),
    ("spec.write.columns", ["score", "class", "score"], "a name is listed twice"),
    ("spec.write.path", "s3:out/", SCHEME),
    ("spec.write.path", "http://out/", SCHEME),
    ("spec.write.path", "S3://me@out/", "an address must not contain credentials"),
    ("spec.write.path", "s3:///out", "an address with a scheme needs a bucket"),
    ("spec.write.path", "file://", "a file:// address needs a path"),
    ("spec.write.path", "/out\a", "an address must not contain control characters"),
    (
        "spec.parameters.0.value",
        "{{ params.x }}",
        "a value contains no reference. Write the value itself",
    ),
    (
        "spec.parameters.0",
        {"name": "n", "type": "number", "value": "many"},
        "the value of a number is digits such as 16 or 0.5",
    ),
    ("metadata.name", "9lives", NAME),
    ("metadata.name", "with.dots", NAME),
    ("metadata.name", "a" * 41, NAME),
]


def options(kind: str, **options: Any) -> Document:
    body: Document = read(kind, **options)["spec"]["read"]
    return body


OPTIONS_OF_OTHER_FORMATS = [
    (options("text", mode="RGB"), "options.mode is for format images "),
    (options("binary", size=[32, 32]), "options.size is for format images "),
    (options("csv", columns=["a"]), "options.columns is for format parquet "),
    (options("parquet", lines=True), "options.lines is for format json only"),
    (options("json", delimiter=";"), "options.delimiter is for format csv only"),
    (options("images", columnNames=["a"]), "options.columnNames is for format csv only"),
    (options("binary", encoding="utf-8"), "options.encoding is for format csv and text only"),
    (options("csv", dropEmptyLines=True), "options.dropEmptyLines is for format text only"),
]


def models(name: str, **fields: Any) -> list[Document]:
    """Return steps with one model, with some fields replaced or removed."""
    found = {**full_model(name), **fields}
    kept = {field: value for field, value in found.items() if value is not REMOVED}
    return [model_step(model=kept)]


def without(field: str, body: Document) -> Document:
    return {name: value for name, value in body.items() if name != field}


def of_task(task: str) -> Document:
    """Return a model of transformers with an input that its task does not have."""
    model = {"runtime": "transformers", "task": task, "source": "org/model", "output": "y"}
    labels = {"candidateLabels": ["a"]} if task in ZERO_SHOT else {}
    return {**model, "inputs": {"bogus": "text"}, **labels}


def asking(**fields: Any) -> list[Document]:
    return [vllm_step(**fields)]


PAIR = {"query": "text", "document": "page"}
IMAGE, ADAPTER = {"image": "image"}, {"question": "text", "style": "class"}
FOR_A_CHAT = "is for a chat: set 'chat' to true"
OF_STEPS = [
    (models("torch", factory=REMOVED, factoryArgs={}, source=REMOVED, trustSource=True),
     "give a 'factory' or a 'source' (or both)"),
    (models("torch", trustSource=True), "trustSource: a state dict runs no code. Leave it out"),
    (models("torch", factory=REMOVED),
     "trustSource: a program can run code of its author when it is loaded. Set it to true if you "
     "trust the file, or name a 'factory' whose weights it is"),
    (models("sentenceTransformers", inputs={"text": "a", "image": "b"}),
     "sentenceTransformers takes exactly one input: inputs: {text: COLUMN} or {image: COLUMN}"),
    (models("sentenceTransformers", prompt="a"), "give 'prompt' or 'promptName', not both"),
    (models("sentenceTransformers", inputs=IMAGE), "a prompt is for texts, not for images"),
    (models("torchvision", inputs={"x": "image"}),
     "torchvision takes exactly one input: inputs: {image: COLUMN}"),
    (models("torchvision", features=True, labels=[]), "'topK' is for classes, not for 'features'"),
    (models("torchvision", features=True, topK=REMOVED),
     "'labels' is for classes, not for 'features'"),
    (models("torchvision", source=REMOVED),
     "'labels' needs a 'source': the weights have their own"),
    (models("transformers texts", attention="flash_attention_2", dtype="float32"),
     "attention flash_attention_2 computes with float16 or bfloat16: set 'dtype' to one of them"),
    (models("transformers text", pooling="mean"), "pooling is for task feature-extraction"),
    (models("transformers labels", candidateLabels=[]), "candidateLabels is required for task "),
    (asking(chat=False, system="a"), f"'system' {FOR_A_CHAT}"),
    (asking(chat=False, chatTemplate="a"), f"'chatTemplate' {FOR_A_CHAT}"),
    (asking(task="embed", messages=[{"role": "user", "content": "a"}]), f"'messages' {FOR_A_CHAT}"),
    (asking(task="embed", inputs=IMAGE, images=["image"]), f"'images' {FOR_A_CHAT}"),
    (asking(allow=["https://intranet.example/"]),
     "'allow' needs 'images': it is about their addresses"),
    (asking(loraPath="/adapters"),
     "'loraPath' and 'loraAdapters' need an 'adapter': the input that names each row's"),
    (asking(inputs=ADAPTER, adapter="style"),
     "'adapter' needs 'loraPath', or 'loraAdapters' with the ids of the Hub that rows may name"),
    (asking(gpu=2), "vllm takes parallelism.tensor x parallelism.pipeline GPUs: set resources.gpu"
     " to this, or to 0 for vLLM's build for CPUs"),
    ([{**vllm_step(), "resources": {"cpu": 2}}], "or to 0 for vLLM's build for CPUs"),
    (asking(topK=2), "topK is for task classify only"),
    (asking(task="embed", details="about"), "details is for task generate only"),
    (asking(details="answer"),
     "details: this column is the output. Name another one"),
    (asking(task="score"), "task score takes inputs: {query: COLUMN, document: COLUMN}"),
    (asking(task="score", inputs=PAIR, prompt="a"),
     "task score takes a query and a document: remove 'prompt' and 'chat'"),
    (asking(task="score", inputs=PAIR, tooLong="truncate"),
     "tooLong: the pairs of task score are not cut. Use fail"),
    ([model_step(model=chat(), resources={"gpu": 1})],
     "the endpoint computes elsewhere: leave out resources.gpu and custom"),
    ([model_step(model=chat(name=None))], "name is required for api chat"),
    ([model_step(model=chat(resultType="number"))], "resultType is for api json only"),
    ([model_step(model=chat(url=f"{URL}/chat/completions/"))],
     "'url' is the base of the API: leave out what comes behind /v1"),
    ([model_step(model=chat(url="https://me:key@llm.example/v1"))],
     "a key does not belong in the file"),
    ([model_step(model=chat(headersFrom={"a b": "KEY"}))],
     "the name of a header has letters, digits, '-' and '_'"),
    ([model_step(model=without("body", json_endpoint()))], "body is required for api json"),
    ([{**vllm_step(), "resources": {"gpu": 1, "custom": {"XPU": 1}}}],
     "vllm takes GPUs: leave out resources.custom"),
    ([vllm_step() | {"batchSize": "auto"}], "vllm makes its batches itself: batchSize is a number"),
    (asking(inputs=ADAPTER, adapter="style", loraPath="adapters"),
     "loraPath: expected an absolute path or an address"),
    (asking(inputs=ADAPTER, adapter="style", loraAdapters=["/poem"]),
     "loraAdapters: without a 'loraPath', each is an id of the Hub"),
    (asking(inputs=ADAPTER, adapter="bogus", loraPath="/adapters"),
     "adapter: the name is not an input"),
    (models("transformers chat", images=["photo", "bogus"]), "images: a name is not an input"),
    (models("transformers chat", images=[], prompt="{title} {photo}"),
     "images is required for task image-text-to-text"),
    (models("transformers texts", source="/models/bert"),
     "'revision' is for models of the Hub, and 'source' is a path or an address"),
    (models("torch", factory=REMOVED, factoryArgs={"a": 1}, trustSource=True),
     "'factoryArgs' needs a 'factory'"),
    (models("torch program", dtype="float16"),
     "an exported program keeps its own types: leave out 'dtype'"),
    (asking(tooLong="windows"),
     "tooLong windows is for the runtimes transformers and sentenceTransformers"),
    (asking(tooLong="truncate", inputs={**IMAGE, "question": "text"}, images=["image"]),
     "tooLong: prompts with images are not cut. Use fail, or remove 'images'"),
    (models("transformers texts", tooLong="truncate", windowOverlap=8),
     "windowOverlap is for tooLong windows only"),
    (models("sentenceTransformers", inputs=IMAGE, promptName=REMOVED, tooLong="fail"),
     "tooLong is for texts, not for images"),
    (models("transformers text", tooLong="windows"), "windows"),
    ([model_step(model=chat(tooLong="fail"))],
     "'tooLong' needs 'maxInputTokens': only the endpoint knows the tokens of a text"),
    ([model_step(model=chat(api="embeddings", tooLong="windows", maxInputTokens=8))],
     "tooLong: the endpoint cuts the text or not. Use truncate to count it, or fail"),
    ([model_step(model=chat(nullInput="compute"))], "is for api json"),
    *(([model_step(model=of_task(rule.split("'")[1]))], message)
      for rule, message in rules_of_inputs()),
]  # fmt: skip
"""Steps that are refused, and the server's messages."""
ICEBERG = writing("iceberg", table="ns.rows")["spec"]["write"]
OF_ICEBERG: list[tuple[Document, str]] = [
    ({"table": "rows"}, "table: Iceberg has namespaces: write namespace.table"),
    ({"catalog": {"properties": {"warehouse": "az://c/w"}}},
     "catalog.properties.warehouse: Iceberg does not know az://: write "
     "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH"),
    ({"catalog": {"properties": {"py-io-impl": "own.Files"}}},
     "a property that names a class to import could run any code"),
    ({"catalog": {"properties": {"token": "x"}}}, "a secret does not belong in the file"),
]  # fmt: skip
TASKS_ONLY = "replicas, gpu, memory and custom are for a model, or a class (a name in CapWords)"
CROSS_FIELDS = [
    *(("spec.steps", steps, expected) for steps, expected in OF_STEPS),
    ("spec.read", options("text", shuffleSeed=1), "'shuffleSeed' needs 'shuffle: files'"),
    ("spec.read", {**SOURCES["sql of a secret"], "url": "sqlite:///a.db"},
     "give exactly one of url and urlEnv"),
    ("spec.read", {**SOURCES["sql of a secret"], "options": {"limit": 5}},
     "options.limit is for format images "),
    ("spec.read", {**SOURCES["sql"], "format": "sql", "url": "postgresql://me:key@db/x"},
     "a password does not belong in the file"),
    ("spec.read", {**SOURCES["sql of a secret"], "options": {"shardKeys": ["id"]}},
     "'shardKeys' and an 'overrideNumBlocks' above 1 need each other"),
    *(("spec.write", {**ICEBERG, **fields}, expected) for fields, expected in OF_ICEBERG),
    ("spec.write.rowNumber", "score",
     "rowNumber: it adds a column that columns names: choose another name"),
    ("spec.write.rowNumber", "class",
     "rowNumber: it adds a column that partitionBy names: choose another name"),
    *(("spec.write.partitionBy", [f"{prefix}class"],
       f"partitionBy: readers leave out directories whose names begin with '{prefix}'. Rename the "
       "column first, with a step renameColumns") for prefix in "_."),
    ("spec", {**writing("delta")["spec"], "errors": {"retryFailedRows": True}},
     "errors.retryFailedRows: the rows of a table are written in one commit, so failed rows cannot "
     "be retried alone. Remove it"),
    ("spec.steps.6.decode.output", "sample_rate",
     "output: the sampling rate would replace the audio (sample_rate). Set output to another name"),
    ("spec.steps.3.python.callable", "own.code:label", TASKS_ONLY),
    ("spec.steps.15.chunk.overlap", 129, "overlap is more than half of size"),
    ("spec.steps.15.chunk.unit", "words",
     "unit tokens needs a 'tokenizer', and other units have none"),
    ("spec.steps.15.chunk.column", "chunk_index",
     "column: the step adds chunk_index, chunk_start and chunk_end. Rename the column first"),
    ("spec.errors.warnings", [{"name": "TextCut"}, {"name": "TextCut"}], "Duplicate value"),
    ("spec.errors.warnings", [{"name": "FilesIgnored", "maxPercent": 1}],
     "maxPercent is for warnings that count rows"),
    ("spec.read.options.range", [5, 1],
     "the first number, for black, must be less than the second one, for white"),
    ("spec.read", options("text", types={"a": "string"}),
     "types: these files define the types of their columns. Remove it, or set partitioning: hive "
     "for the types of partition values"),
    ("spec.read", options("csv", quote=";", delimiter=";"),
     "delimiter, quote, escape and comment: two of them are the same character. A doubled quote is "
     "always a quote, so it needs no escape"),
    ("spec.steps.14.python.method", "map", "'predictBatch' takes batches: leave out 'method'"),
    ("spec.steps.14.python.callable", "old.code:predict",
     "'predictBatch' is for a class, whose name is in CapWords"),
]  # fmt: skip
OF_A_UNION = re.compile("(is for|is required for|for) (format|runtime|task|api) ")
"""Matches generated rules for fields of some formats or runtimes. The unit tests compare all of
these rules with the models. The tests below try a few rules of each kind."""
REFUSED = [
    *INVALID,
    *CROSS_FIELDS,
    *(("spec.read", body, expected) for body, expected in OPTIONS_OF_OTHER_FORMATS),
]


def test_server_and_parser_refuse_invalid_documents(module_namespace: Namespace) -> None:
    offenders = []
    for place, value, expected in REFUSED:
        body = changed(FULL, place_of(place), value)
        message = refusal(module_namespace, body) or "accepted"
        if expected not in message:
            offenders.append(f"{place} = {value!r:.60}: the server says {message}")
        with contextlib.suppress(SpecError):
            parse(body)
            offenders.append(f"{place} = {value!r:.60}: the parser accepts it")
    assert offenders == []


REFERENCE = "{{ params.day }}"
REFERRING = [
    models("torch program", source=REFERENCE, dtype="float16"),
    models("transformers chat", images=[REFERENCE]),
    models("transformers texts", source=REFERENCE),
    asking(inputs=ADAPTER, adapter=REFERENCE, loraPath=REFERENCE),
    asking(inputs=ADAPTER, adapter="style", loraAdapters=[REFERENCE]),
]
"""Steps whose values are known only after the references are replaced."""


def test_server_accepts_references_that_may_have_valid_values(module_namespace: Namespace) -> None:
    paths = changed(FULL, place_of("spec.read.paths"), [f"{REFERENCE}/a", f"s3://{REFERENCE}/"])
    assert refusal(module_namespace, paths) is None
    for steps in REFERRING:
        assert refusal(module_namespace, document(steps=steps)) is None, steps


def test_every_rule_of_the_definition_has_a_case() -> None:
    crd = yaml.safe_load((CHART / "files" / "crd.yaml").read_text())
    messages = set(rule_messages(crd["spec"]["versions"][0]["schema"]))
    proved = {m for m in messages if any(m in expected for _, _, expected in REFUSED)}
    rest = {message for message in messages - proved if not OF_A_UNION.search(message)}
    assert [message for message in rest if IMMUTABLE not in message] == []  # has its own file


def rule_messages(schema: Any) -> Iterator[str]:
    if isinstance(schema, list):
        for child in schema:
            yield from rule_messages(child)
    elif isinstance(schema, dict):
        yield from (rule["message"] for rule in schema.get("x-kubernetes-validations", []))
        for child in schema.values():
            yield from rule_messages(child)
