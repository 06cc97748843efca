"""Databases of one PostgreSQL server, which starts with the first test that needs it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from support.servers.postgres import postgres_server


@pytest.fixture(scope="session")
def postgres_address() -> Iterator[str]:
    with postgres_server() as address:
        yield address


@pytest.fixture
def postgres(postgres_address: str) -> str:
    """Return the address of an empty database for SQLAlchemy."""
    import sqlalchemy as sa

    name = f"test_{uuid.uuid4().hex}"
    engine = sa.create_engine(postgres_address, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return postgres_address.rpartition("/")[0] + f"/{name}"
