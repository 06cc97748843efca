"""Reads Iceberg tables with pyiceberg: data files of a snapshot, changes between snapshots, rows."""
