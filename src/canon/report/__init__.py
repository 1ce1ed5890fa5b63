"""Saved results as pages, tables and JSON."""
