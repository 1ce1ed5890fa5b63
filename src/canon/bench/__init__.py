"""Measured cases, one record each."""
