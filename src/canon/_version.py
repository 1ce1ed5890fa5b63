"""The version of Canon, read by the package and by its build."""

__version__ = "0.1.0.dev0"
