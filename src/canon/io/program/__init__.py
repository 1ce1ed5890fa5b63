"""`torch.export` programs (.pt2): read by an importer of our own, written by torch.

`torch.export.load` is not for strangers' files: it unpickles constants, evaluates expressions, and looks up any
operator by name. Here an archive is JSON and numbers and nothing else; operations are taken from a list.
"""

from canon.io.program.load import is_program, load_program
from canon.io.program.save import save_program

__all__ = ["is_program", "load_program", "save_program"]
