"""Opens Iceberg catalogs, and refuses tables whose properties would import code."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.table import Table

from batchinference.pipeline.errors import BadInput, BadOutput
from batchinference.pipeline.storage.object_stores import iceberg_properties
from batchinference.spec.databases import CatalogTable, names_class
from batchinference.spec.storage import Storage

Side: TypeAlias = Literal["read", "write"]


def open_catalog(named: CatalogTable, address: str, storage: Storage, side: Side) -> Catalog:
    """Return the catalog of a table. Its object store is that of the warehouse URL, or that of
    `address` without such a URL. `side` is the field of the spec with the table, for messages."""
    configured = named.catalog.properties
    warehouse = configured.get("warehouse", "")
    defaults = iceberg_properties(warehouse if "://" in warehouse else address, storage)
    catalog = load_catalog(named.catalog.name, **defaults | configured)
    _refuse_imports_of_tables(catalog, side)
    return catalog


def table_in(catalog: Catalog, named: CatalogTable) -> Table | None:
    """Return the table; None if it does not exist."""
    try:
        return catalog.load_table(named.table)
    except NoSuchTableError:
        return None


def _refuse_imports_of_tables(catalog: Catalog, side: Side) -> None:
    """Make a catalog refuse tables whose properties name a class to import. The properties are
    untrusted: anyone who can write to a table can set them."""
    load = catalog._load_file_io

    def guarded(properties: dict[str, str] | None = None, location: str | None = None) -> FileIO:
        for name, value in (properties or {}).items():
            if names_class(name) and catalog.properties.get(name) != value:
                raise (BadInput if side == "read" else BadOutput)(
                    f"{side}.table: the property '{name}' of the table names a class to import, "
                    "which could run any code. Remove it, or set the same property in pyiceberg's "
                    "own configuration"
                )
        return load(properties or {}, location)

    catalog._load_file_io = guarded  # type: ignore[method-assign]
