"""Tables in a directory: fields of `write`, and rows as the format's own library reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deltalake
import lance
import sqlalchemy as sa
from pyiceberg.catalog import Catalog, load_catalog

from support.outputs.rows import Row


def properties(path: Path) -> dict[str, str]:
    """Return the properties of an Iceberg catalog."""
    return {"type": "sql", "uri": f"sqlite:///{path}/catalog.db", "warehouse": f"file://{path}/w"}


def catalog_of(path: Path) -> Catalog:
    return load_catalog("default", **properties(path))


def write_fields(format_: str, path: Path) -> dict[str, Any]:
    own: dict[str, dict[str, Any]] = {
        "iceberg": {"table": "ns.rows", "catalog": {"properties": properties(path)}},
        "sql": {"table": "rows", "url": f"sqlite:///{path}/data.db"},
    }
    return {"format": format_, "path": str(path / "out"), **own.get(format_, {})}


def table_rows(format_: str, location: Path) -> list[Row]:
    """Return the rows of a table, or none if it does not exist."""
    path = str(location / "out")
    rows: list[Row] = []
    match format_:
        case "lance" if (location / "out" / "_versions").exists():
            rows = lance.dataset(path).to_table().to_pylist()
        case "delta" if deltalake.DeltaTable.is_deltatable(path):
            rows = deltalake.DeltaTable(path).to_pyarrow_table().to_pylist()
        case "iceberg" if (catalog := catalog_of(location)).table_exists("ns.rows"):
            rows = catalog.load_table("ns.rows").scan().to_arrow().to_pylist()
        case "sql":
            rows = sql_rows(sa.create_engine(f"sqlite:///{location}/data.db"))
    return rows


def sql_rows(engine: sa.Engine) -> list[Row]:
    """Return the rows of the table in a database, or none if it does not exist."""
    if not sa.inspect(engine).has_table("rows"):
        return []
    table = sa.Table("rows", sa.MetaData(), autoload_with=engine)
    with engine.connect() as connection:
        return [dict(row) for row in connection.execute(sa.select(table)).mappings()]
