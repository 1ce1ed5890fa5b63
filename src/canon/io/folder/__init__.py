"""Models that come as a folder: a config that names the architecture, and weights in one or more safetensors files.

The layout of Hugging Face's transformers and diffusers. The architecture's code comes from the installed package and
from nowhere else: a folder that brings or names code of its own is refused.
"""

from canon.io.folder.load import FolderModel, read_folder
from canon.io.folder.save import is_folder_model, save_folder

__all__ = ["FolderModel", "is_folder_model", "read_folder", "save_folder"]
