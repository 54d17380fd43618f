"""Streams that change, and streams that do not."""
