"""Models that come as a folder: a config that names the architecture, and weights in one or more safetensors files.

The layout of Hugging Face's transformers and diffusers. The architecture's code comes from the installed package and
from nowhere else: a folder that brings or names code of its own is refused.
"""

from canon.io.folder.load import FolderModel as FolderModel
from canon.io.folder.load import read_folder as read_folder
from canon.io.folder.save import is_folder_model as is_folder_model
from canon.io.folder.save import save_folder as save_folder

__all__ = ["FolderModel", "is_folder_model", "read_folder", "save_folder"]
