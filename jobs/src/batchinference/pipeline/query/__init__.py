"""Embeds the query of a similarity search: a text, an image or a row of the output."""
