"""Names and values that users write although the API does not have them, and what to write instead.

They are names of v1alpha1, names of other tools, and synonyms.
"""

from collections.abc import Collection

RENAMED = {
    "limits.gpu": "devices",
    "limits.gpuHours": "deviceHours",
    "limits.priority": "the chart value policy.maxPriority",
    "cluster.queue": "queueName",
    "cluster.queuePriorityClass": "queuePriorityClassName",
    "errors.retry": "retryFailedRows",
    "model.timeoutSeconds": "timeout",
    "spec.startingDeadlineSeconds": "startingDeadline",
}
"""New names of fields of v1alpha1. A change from snake_case to camelCase needs no entry."""
REMOVED = {
    "cluster.patches": "the fields of the pods in docs/devices.md",
    "volumes.mountPath": "cluster.volumeMounts",
    "volumes.readOnly": "readOnly of cluster.volumeMounts",
    "steps.nearest": "LanceDB or DuckDB on the embeddings, as in docs/outputs.md",
    "steps.repartition": "batchSize of the steps that get the rows",
    "model.padToMultipleOf": "options: {padding: max_length}",
    "model.maxConcurrentBatches": "engine: {max_num_seqs: NUMBER}",
    "write.order": "rowNumber, and sort by this column when the rows are read",
    "mode.ignore": "error, with which a job that is complete does nothing and succeeds",
    "format.numpy": "parquet with lists, or webdataset with members such as .npy",
    "runtime.keras": "the runtime onnx, after model.export('model.onnx', format='onnx')",
    "format.tfrecords": "parquet or webdataset",
    "format.images": "webdataset with members such as .png, or parquet",
    "task.any-to-any": "image-text-to-text",
    **dict.fromkeys(
        ("task.decision", "task.document-question-answering", "task.keypoint-matching",
         "task.mask-generation", "task.table-question-answering", "task.text-to-audio"),
        "a python step that calls the pipeline of the library",
    ),
}  # fmt: skip
"""What to use instead of fields (PARENT.FIELD) and values (FIELD.VALUE) of v1alpha1."""
_KEYS_OF_A_STORE = (
    "Keys do not belong in the file. Put them into environment variables or, on a cluster, into a "
    "Secret that cluster.envFrom names"
)
UNSUPPORTED = {
    **dict.fromkeys(("xlsx", "xls", "excel"), "Use csv, which Excel can save and open"),
    **dict.fromkeys(("sklearn", "scikit-learn", "xgboost", "lightgbm", "joblib", "pickle"),
                    "Load the model in a class of a python step"),
    **dict.fromkeys(("steps.sort", "steps.group_by", "steps.join", "steps.sql"),
                    "Do it with the output, for example in DuckDB or pandas"),
    **dict.fromkeys(("steps.limit", "steps.sample"), "Set limit in read.options"),
    "steps.shuffle": "Set shuffle: files in read.options",
    **dict.fromkeys(("model.truncation", "model.max_length", "model.padding", "model.threshold"),
                    "Put it into options: {...} of the runtime transformers"),
    **dict.fromkeys(("model.load_in_8bit", "model.load_in_4bit", "model.quantization_config"),
                    "Choose a model whose files are quantized"),
    **dict.fromkeys(("model.temperature", "model.max_tokens", "model.max_new_tokens",
                     "model.top_p"), "Put it into sampling: {...}"),
    "model.api_key": "A key does not belong in the file. Put it into an environment variable, and "
    "its name, such as OPENAI_API_KEY, into apiKeyEnv",
    **dict.fromkeys(("python.code", "python.inline", "python.source"),
                    "Write callable: 'steps:NAME', with the code in steps.py"),
    "model.method": "All requests are POST. Remove it",
    "cluster.security_context": "Set fsGroup, or ask the platform team for other settings",
    "python.module": "Write callable: 'MODULE:NAME'",
    "python.batch_format": "For tables of pandas, write batch = pd.DataFrame(batch) in the code",
    **dict.fromkeys(("cluster.namespace", "spec.namespace"), "Set metadata.namespace"),
    **dict.fromkeys(("cluster.pip", "spec.pip", "spec.requirements", "cluster.requirements",
                     "spec.runtime_env", "cluster.runtime_env", "python.pip"),
                    "Install packages in the image, and set cluster.image"),
    "model.headers": "Put the values into environment variables, and write their names: "
    "headersFrom: {HEADER: VARIABLE}",
    **dict.fromkeys(("model.max_model_len", "model.quantization", "model.gpu_memory_utilization",
                     "model.trust_remote_code", "model.max_num_seqs", "model.kv_cache_dtype"),
                    "Put it into engine: {...} of the runtime vllm"),
    **dict.fromkeys(("spec.resources", "spec.replicas", "spec.batch_size", "spec.model",
                     "spec.python", "spec.filter"), "Move it into one of steps"),
    "resources.gpu_memory": "Set gpu to a part of a GPU: 0.25 gives a quarter of its memory",
    "model.hf_token": "Set the environment variable HF_TOKEN",
    "model.token": "Set the environment variable HF_TOKEN, or for the runtime http, name a "
    "variable in apiKeyEnv",
    "notifications.url": "Put the address into an environment variable, and its name into urlEnv",
    "read.dataset": "Set name, for the format huggingface",
    "write.options": "Set its fields in write itself, such as compression",
    **dict.fromkeys(("storage.access_key", "storage.secret_key", "storage.access_key_id",
                     "storage.secret_access_key", "storage.secret_name", "storage.key",
                     "storage.aws_access_key_id", "storage.aws_secret_access_key",
                     "storage.secret"), _KEYS_OF_A_STORE),
    **dict.fromkeys(("steps.node_selector", "steps.tolerations", "steps.image", "steps.env"),
                    "Set it in cluster, or for the pods of a device in cluster.profiles"),
    **dict.fromkeys(("steps.env_from", "steps.volumes", "steps.volume_mounts",
                     "steps.service_account_name", "steps.image_pull_secrets"),
                    "Set it in cluster, for all pods"),
    **dict.fromkeys(("spec.containers", "spec.init_containers", "spec.template"),
                    "The operator makes the pods. Set image, env and volumes in cluster"),
    **dict.fromkeys(("spec.command", "spec.args", "spec.entrypoint"),
                    "The operator starts the program. Put code into a python step"),
    "spec.restart_policy": "Set retry: {maxAttempts: 3}",
    **dict.fromkeys(("spec.parallelism", "spec.completions"),
                    "Set replicas: {min: 1, max: 4} in a step"),
    **dict.fromkeys(("resources.limits", "resources.requests"),
                    "Set cpu, memory and gpu themselves, such as {cpu: 2, memory: 4Gi}"),
    **dict.fromkeys(("cluster.gpu", "cluster.gpus", "spec.gpu", "spec.gpus", "spec.device",
                     "cluster.resources", "model.device", "python.num_gpus"),
                    "Set resources: {gpu: 1} in a step"),
    **dict.fromkeys(("options.columns", "options.usecols"),
                    "Add a step with selectColumns: [NAME]"),
    "options.header": "The first line is the header. If there is none, set columnNames",
    "options.parse_dates": "Set types: {COLUMN: timestamp}",
    **dict.fromkeys(("defaults", "policy"), "Write its fields at the top of the file"),
    "resources.npu": "Write custom: {NPU: 1}",
    "steps.cast": "Convert a column in addColumns: {NAME: str(NAME)}",
}  # fmt: skip
"""What to do instead of using fields and values that only other tools have."""
_KIND = (
    "kind",
    "schedule and template are fields of BatchInferenceSchedule, got BatchInference. Write kind: "
    "BatchInferenceSchedule",
)
OF_OTHER_KINDS = {
    **dict.fromkeys(("spec.schedule", "spec.template"), _KIND),
    **{
        f"{path}.{name}": (
            path,
            "read, steps and write are fields of a job. Move them into template: {spec: {...}}",
        )
        for path in ("spec", "spec.template")
        for name in ("read", "steps", "write")
    },
}
"""Path and message of the problem, by field of a schedule in a job, or of a job in a schedule."""
METHODS = {f"steps.{name}": name for name in ("map", "flatMap", "mapBatches")} | {
    "steps.map_batches": "mapBatches",
    "steps.flat_map": "flatMap",
}
"""Methods of Ray Data that users write in place of `python`, and the `method` to set."""
_MEANT = {
    **{"overwrite": "replace truncate w", "append": "a add insert", "merge": "upsert update"},
    **{"error": "errorifexists fail", "http": "openai ollama anthropic api rest endpoint"},
    **{"transformers": "huggingface hf", "generate": "text-generation"},
    **{"embed": "feature-extraction", "classify": "text-classification"},
    "feature-extraction": "embedding embeddings embed sentence-similarity",
    "text-classification": "sentiment sentiment-analysis",
    "token-classification": "ner named-entity-recognition",
    "text-generation": "chat completion generate generation llm summarization translation "
    "text2text-generation question-answering",
    "automatic-speech-recognition": "asr stt speech-to-text speech-recognition transcription",
    "image-text-to-text": "ocr image-to-text image-captioning visual-question-answering",
    **{"json": "jsonl ndjson", "csv": "cvs tsv", "bfloat16": "bf16", "float32": "fp32"},
    **{"images": "jpg jpeg png", "audio": "mp3 wav", "user": "human", "assistant": "ai bot"},
    **{"video": "mp4", "documents": "pdf docx html", "float16": "fp16 half", "gzip": "gz"},
    **{"sql": "postgres postgresql mysql sqlite database jdbc", "parquet": "pq"},
    **{"number": "int integer float", "string": "str text", "chat": "openai"},
    **{"mapBatches": "batch batches", "delimiter": "sep separator", "limit": "nrows n_rows"},
    **{"notifications": "notify webhook", "columnNames": "names", "skipLines": "skiprows"},
    **{"gpu": "gpus device num_gpus nvidia.com/gpu", "cpu": "cpus cores num_cpus"},
    **{"memory": "mem ram", "replicas": "concurrency workers num_workers parallelism"},
    **{"filter": "where", "selectColumns": "select columns", "addColumns": "withColumns assign"},
    **{"python": "udf apply function", "callable": "function code script"},
    "callArgs": "args kwargs fn_kwargs fnkwargs",
    **{"constructorArgs": "fn_constructor_kwargs init_args init_kwargs", "when": "if condition"},
    **{"read": "input source", "write": "output sink", "source": "path name model"},
    **{"name": "model modelname", "fields": "schema", "key": "keys keycolumns primarykey"},
    **{"workers": "nodes", "head": "driver", "value": "default", "retry": "retries"},
    **{"maxAttempts": "max attempts backofflimit", "schedule": "cron", "deadlines": "timeout"},
    **{"total": "activedeadlineseconds timeout max", "afterFinished": "ttlsecondsafterfinished"},
    **{"paths": "glob files file uri uris", "format": "type"},
    "acceleratorType": "gputype gpu_type type accelerator",
    **{"queueName": "queue localqueue kueue", "envFrom": "secrets secretname secretref"},
    **{"persistentVolumeClaim": "pvc", "tensor": "tensor_parallel_size tp"},
    "system": "system_prompt systemprompt",
    **{"secretName": "name", "storage": "storage_options", "content": "text"},
    **{"maxRows": "max maxfailures maxerrors threshold", "count": "ignore warn log"},
    **{"failed": "onfailure", "succeeded": "onsuccess", "fail": "error raise"},
    "sampling": "sampling_params generationconfig generation_config",
    **{"engine": "engine_kwargs engine_args", "min": "minreplicas", "max": "maxreplicas"},
    **{"timeZone": "tz", "trustSource": "trustremotecode"},
    **{"mountPath": "path", "devices": "nvidia.com/gpu"},
    "ephemeralStorage": "disk",
}
"""Names and values of the API, and the words in lower case that users write for them."""


def meant_by(word: str, known: Collection[str]) -> str | None:
    """Return the name in `known` that users mean by this word; None if there is none."""
    word = word.lower()
    names = (name for name, words in _MEANT.items() if word in words.split())
    return next((name for name in names if name in known), None)
