"""Iceberg tables in a directory, and the commits of other engines, which pyiceberg cannot make."""

from __future__ import annotations

import json
import uuid
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import _dataframe_to_data_files, schema_to_pyarrow
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _FastAppendFiles, _OverwriteFiles
from pyiceberg.typedef import EMPTY_DICT, Record
from pyroaring import BitMap

from support.outputs.tables import catalog_of, properties

NAME = "ns.rows"
IDS = pa.schema([("id", pa.int64()), ("text", pa.string())])


def read_fields(path: Path, **options: Any) -> dict[str, Any]:
    """Return the fields of `read`."""
    catalog = {"properties": properties(path)}
    return {"format": "iceberg", "table": NAME, "catalog": catalog, "options": options}


def new_table(path: Path, schema: Any = IDS, **fields: Any) -> Table:
    """Return an empty table."""
    path.mkdir(parents=True, exist_ok=True)
    catalog = catalog_of(path)
    catalog.create_namespace_if_not_exists("ns")
    return catalog.create_table(NAME, schema, **fields)


def rows_of(ids: Iterable[int], text: str = "") -> pa.Table:
    rows = [{"id": number, "text": f"{text}{number}"} for number in ids]
    return pa.Table.from_pylist(rows, schema=IDS)


def data_files(table: Table) -> list[DataFile]:
    return [task.file for task in table.refresh().scan().plan_files()]


def snapshot_of(table: Table) -> int:
    snapshot = table.refresh().current_snapshot()
    assert snapshot is not None
    return snapshot.snapshot_id


def add_file(table: Table, rows: pa.Table, *partition: Any) -> None:
    """Add a data file with these partition values, without statistics."""
    path = f"{table.location()}/data/{uuid.uuid4()}.parquet"
    local = Path(path.removeprefix("file://"))
    local.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows.cast(schema_to_pyarrow(table.schema())), local)
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(*partition),
        record_count=rows.num_rows,
        file_size_in_bytes=local.stat().st_size,
    )
    file.spec_id = table.spec().spec_id
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        append.append_data_file(file)


class _Deletes(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _RowDelta(_FastAppendFiles):
    """A snapshot with data files and files with deletes, as merge-on-read makes it."""

    deletes: Sequence[DataFile] = ()

    def _manifests(self) -> list[ManifestFile]:
        metadata = self._transaction.table_metadata
        output = self.new_manifest_output()
        with _Deletes(
            metadata.spec(), metadata.schema(), output, self._snapshot_id, self._compression
        ) as writer:
            for file in self.deletes:
                writer.add(
                    ManifestEntry.from_args(
                        status=ManifestEntryStatus.ADDED,
                        snapshot_id=self._snapshot_id,
                        sequence_number=None,
                        file_sequence_number=None,
                        data_file=file,
                    )
                )
        return [writer.to_manifest_file(), *super()._manifests()]


def delete_rows(
    table: Table,
    positions: Mapping[str, Sequence[int]],
    *,
    added: pa.Table | None = None,
    vectors: bool = False,
    content: DataFileContent = DataFileContent.POSITION_DELETES,
) -> None:
    """Delete rows of data files by their positions with a file of deletes, and add rows."""
    file = _vectors(table, positions) if vectors else _position_file(table, positions)
    deletes = DataFile.from_args(
        content=content,
        file_path=file[0],
        file_format=FileFormat.PUFFIN if vectors else FileFormat.PARQUET,
        partition=data_files(table)[0].partition,
        record_count=sum(map(len, positions.values())),
        file_size_in_bytes=file[1],
        equality_ids=[1] if content is DataFileContent.EQUALITY_DELETES else None,
    )
    deletes.spec_id = table.spec().spec_id
    operation = Operation.DELETE if added is None else Operation.OVERWRITE
    with table.transaction() as transaction:
        delta = _RowDelta(operation, transaction, table.io)
        delta.deletes = [deletes]
        for new in (
            ()
            if added is None
            else _dataframe_to_data_files(transaction.table_metadata, added, table.io)
        ):
            delta.append_data_file(new)
        delta.commit()


def _position_file(table: Table, positions: Mapping[str, Sequence[int]]) -> tuple[str, int]:
    rows = [(path, position) for path in sorted(positions) for position in positions[path]]
    content = pa.table({"file_path": [path for path, _ in rows], "pos": [pos for _, pos in rows]})
    path = f"{table.location()}/data/{uuid.uuid4()}-deletes.parquet"
    local = path.removeprefix("file://")
    Path(local).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(content, local)
    return path, Path(local).stat().st_size


def _vectors(table: Table, positions: Mapping[str, Sequence[int]]) -> tuple[str, int]:
    """Write a Puffin file with deletion vectors."""
    content, blobs = b"PFA1", []
    for path, rows in positions.items():
        bitmap = BitMap(rows).serialize()
        vector = (
            b"\xd1\xd3\x39\x64" + (1).to_bytes(8, "little") + (0).to_bytes(4, "little") + bitmap
        )
        blob = len(vector).to_bytes(4, "big") + vector + zlib.crc32(vector).to_bytes(4, "big")
        blobs.append(
            {
                "type": "deletion-vector-v1",
                "fields": [],
                "snapshot-id": -1,
                "sequence-number": -1,
                "offset": len(content),
                "length": len(blob),
                "properties": {"referenced-data-file": path, "cardinality": str(len(rows))},
            }
        )
        content += blob
    footer = json.dumps({"blobs": blobs}).encode()
    content += b"PFA1" + footer + len(footer).to_bytes(4, "little") + bytes(4) + b"PFA1"
    path = f"{table.location()}/data/{uuid.uuid4()}.puffin"
    Path(path.removeprefix("file://")).write_bytes(content)
    return path, len(content)


class _Rewrite(_OverwriteFiles):
    """A snapshot that replaces files and keeps the rows."""

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        return (
            super()
            ._summary(snapshot_properties)
            .model_copy(update={"operation": Operation.REPLACE})
        )


def compact(table: Table) -> None:
    """Replace all data files by one with the same rows, as compaction does."""
    rows = table.refresh().scan().to_arrow()
    with table.transaction() as transaction:
        rewrite = _Rewrite(Operation.OVERWRITE, transaction, table.io)
        for old in data_files(table):
            rewrite.delete_data_file(old)
        for new in _dataframe_to_data_files(transaction.table_metadata, rows, table.io):
            rewrite.append_data_file(new)
        rewrite.commit()


def expire_but_latest(table: Table) -> None:
    """Remove all snapshots but the latest, and the data files that only these have."""
    live = {file.file_path for file in data_files(table)}
    old = [each.snapshot_id for each in table.snapshots() if each.snapshot_id != snapshot_of(table)]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    for file in Path(table.location().removeprefix("file://"), "data").rglob("*.parquet"):
        if f"file://{file}" not in live and not file.name.endswith("-deletes.parquet"):
            file.unlink()
