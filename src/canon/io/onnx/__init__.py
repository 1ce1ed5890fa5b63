"""ONNX files: read into ordinary modules, written from them."""

from __future__ import annotations

from canon.io.onnx.load import example_input, load_onnx

__all__ = ["example_input", "load_onnx"]
