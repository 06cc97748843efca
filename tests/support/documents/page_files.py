"""The files, models and modules that the jobs of the documentation use."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import tarfile
from pathlib import Path

import numpy as np
import onnx
import pyarrow as pa
import pyarrow.parquet as pq
import soundfile
import torch
import torchvision
from deltalake import write_deltalake
from onnx import TensorProto, helper
from PIL import Image
from pyiceberg.catalog import load_catalog

from support.documents.page_media import write_media
from support.documents.pages import blocks, code_of_pages
from support.inputs.formats import add_member, write_video
from support.inputs.photographs import photograph
from support.inputs.table_sources import lance_set, saved
from support.models import tiny_transformers

PHOTOGRAPHS = ("astronaut", "chelsea", "coffee")
MODELS = {
    "bert": "masked_model",
    "clip": "clip",
    "chat": "chat_model",
    "names": "token_classifier",
    "seer": "vision_chat",
    "sentiment": "sentiment_model",
}
TEXTS = {
    "sales/may.csv": "item;price\npen;2\nink;7\n",
    "sales/june.csv": "item;price\npaper;4\n",
    "texts/cats/notes.txt": "# cats\ncats sleep for most of the day and hunt in the night\nmeow\n",
    "texts/dogs/notes.txt": "dogs run a lot, and most of them like to swim in the summer\n",
    "letters/a.txt": f"a short line\n{' '.join('abcdefghijklmnopqrstuvwxyz' * 6)}\n",
    "lines/monday.txt": "one\ntwo\nthree\n",
    "events.jsonl": '{"id": 1}\n{"id": \n{"id": 3}\n',
    "listed.csv": "photo,title\nphotos/astronaut.jpg,Astronaut\nphotos/missing.jpg,Nobody\n",
    "pets/kind=cat/a.jsonl": '{"name": "cat 0"}\n{"name": "cat 1"}\n',
    "receipts.json": '[\n  {"id": 1, "items": ["pen"]},\n  {"id": 2, "items": []}\n]\n',
    "camera/notes.txt": "taken in May\n",
    "camera/README": "all pictures\n",
    "measurements.csv": "Station 7\n# calibrated\ntime,celsius\n1,20.5\n# pause\n2,-\n3,21\n",
    "quotations.csv": 'id,text\n1,"say \\"hi\\", please"\n2,\\N\n',
    "dump/0.tsv": '1\t"The" film\\nin two lines\n2\t\\N\n',
    "remarks.csv": 'remark\nfine\n"not closed\ngood\n',
    "customers.csv": "id,zip,since,balance\n7,00501,2026-01-31,1.10\n",
    "prices/may.csv": "sep=;\nArtikel;Preis\nStift;1,50\n",
    "exported/000000_0": "id\n1\n",
    "exported/000001_0": "id\n2\n",
    "orders.jsonl": '{"id": 7, "when": "2026-01-31", "price": 1.10, "note": ["a", {"b": 1}]}\n'
    '{"id": "A12", "when": null, "price": "2.5", "note": "none"}\n',
    "conversations.jsonl": '{"ask": "a text"}\n{"ask": [{"role": "user", "content": "a text"}]}\n',
    "sales-by-year/year=2024/month=07/a.csv": "item\npen\n",
    "sales-by-year/year=2025/month=06/a.csv": "item\nink\n",
    "sales-by-year/year=2025/month=08/a.csv": "item\npaper\n",
    "mails.jsonl": "".join(f'{{"text": "mail {n}"}}\n' for n in range(400)),
    "joined.csv": "id,path,id\n1,a,2\n",
    "pets/kind=dog/b.jsonl": '{"name": "dog 0"}\n{"name": "dog 1"}\n',
}


def write_files(folder: Path) -> None:
    """Write all files below a folder."""
    for name, text in TEXTS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for name in ("photos", "speech", "films", "shards", "labels", "models", "inbox", "visits"):
        (folder / name).mkdir()
    for name in PHOTOGRAPHS:
        Image.fromarray(photograph(name)).save(folder / f"photos/{name}.jpg")
    (folder / "camera/_old").mkdir()
    for name in ("IMG_1.JPG", "scan.jfif", "photo", "_old/a.jpg"):
        shutil.copy(folder / "photos/coffee.jpg", folder / "camera" / name)
    stored = [
        {"name": name, "photo": (folder / f"photos/{name}.jpg").read_bytes(),
         "details": json.dumps({"length": len(name)}).encode()}
        for name in PHOTOGRAPHS
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(stored), folder / "stored.parquet")
    for zone, visitor in ((None, 7), ("UTC", "A12")):
        times = pa.array([1_700_000_000_000_000], pa.timestamp("us", zone))
        visits = pa.table({"at": times, "visitor": [visitor]})
        pq.write_table(visits, folder / f"visits/{visitor}.parquet")
    soundfile.write(folder / "speech/a.flac", np.zeros((44100, 2)), 44100)
    write_video(folder / "films")
    write_media(folder)
    with tarfile.open(folder / "shards/0.tar", "w") as archive:
        for name in PHOTOGRAPHS:
            add_member(archive, f"{name}.jpg", (folder / f"photos/{name}.jpg").read_bytes())
            add_member(archive, f"{name}.json", json.dumps({"name": name}).encode())
    with tarfile.open(folder / "labels/0.tar", "w") as archive:
        for name, text in {"1.txt": "one", "2.txt": "two", "1.cls": "007", "2.cls": "8"}.items():
            add_member(archive, name, text.encode())
    with contextlib.closing(sqlite3.connect(folder / "tickets.db")) as base, base:
        base.execute("CREATE TABLE tickets (id INTEGER, body TEXT, closed INTEGER)")
        rows = [(2, "two", 0), (1, "one", 0), (3, "three", 1)]
        base.executemany("INSERT INTO tickets VALUES (?, ?, ?)", rows)
    saved(folder / "reviews")
    lance_set(folder / "scored.lance", [{"id": n, "score": n / 40} for n in range(40)])
    events = {"id": [1, 2], "text": ["a", "b"], "day": ["2026-11-01", "2026-11-02"]}
    write_deltalake(folder / "events", pa.table(events), partition_by=["day"])
    write_orders(folder)
    write_models(folder / "models")
    (folder / "steps.py").write_text(code_of_pages())
    (folder / "colours.py").write_text(blocks("docs/steps.md", "python")[0])


def write_orders(folder: Path) -> None:
    """Write an Iceberg table of which a row has changed."""
    database = f"sqlite:///{folder}/lakehouse.db"
    catalog = load_catalog(type="sql", uri=database, warehouse=f"file://{folder}/lakehouse")
    catalog.create_namespace("shop")
    orders = pa.table({"id": [1, 2, 3], "status": ["paid", "draft", "open"]})
    table = catalog.create_table("shop.orders", orders.schema)
    table.append(orders)
    table.delete("id == 3")


def write_models(folder: Path) -> None:
    """Write the models that the pages name, as small as possible."""
    for name, kind in MODELS.items():
        (folder / name).mkdir()
        tiny_transformers.write(kind, folder / name)
    weights = torchvision.models.mobilenet_v3_small(weights=None).state_dict()
    torch.save(weights, folder / "mobilenet.pt")
    onnx.save(mean_model("embedding", 1024, "quality"), str(folder / "quality.onnx"))


def mean_model(column: str, width: int, result: str) -> onnx.ModelProto:
    """Return a model that computes the mean of each row's numbers."""
    node = helper.make_node("ReduceMean", [column], [result], axes=[1], keepdims=0)
    values = helper.make_tensor_value_info(column, TensorProto.FLOAT, ["rows", width])
    means = helper.make_tensor_value_info(result, TensorProto.FLOAT, ["rows"])
    graph = helper.make_graph([node], "mean", [values], [means])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
