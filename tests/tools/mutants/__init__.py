"""Measures how many small defects the tests find. See __main__.py."""
