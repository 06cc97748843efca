"""Writes the output: rows as files and tables, and error records. Reads them back."""
