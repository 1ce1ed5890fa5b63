"""`python -m canon.cli`."""

from canon.cli import run

run()
