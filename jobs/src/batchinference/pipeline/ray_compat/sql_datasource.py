"""Ray Data's datasource SQLDatasource."""

from ray.data._internal.datasource.sql_datasource import SQLDatasource

__all__ = ["SQLDatasource"]
