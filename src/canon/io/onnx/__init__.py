"""ONNX files: read into ordinary modules, written from them."""

from __future__ import annotations

from canon.io.onnx.load import example_input, load_onnx
from canon.io.onnx.save import ExportError, save_onnx

__all__ = ["ExportError", "example_input", "load_onnx", "save_onnx"]
