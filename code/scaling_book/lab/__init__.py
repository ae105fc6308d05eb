"""Experiments that take minutes: each writes a record into ``data/``, which the pages read."""
