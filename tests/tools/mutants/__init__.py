"""Measures how many small defects the tests find: see __main__.py."""
