"""Examples for the help of a verb. Tests run every one of them."""

from __future__ import annotations


def examples(*lines: str) -> str:
    r"""The end of a verb's help: each line a whole command, which help leaves as it is (`\b` says so).

    >>> print(examples("canon inspect resnet18", "canon inspect suspect.onnx --json").replace("\b", ""))
    <BLANKLINE>
    Examples:
      canon inspect resnet18
      canon inspect suspect.onnx --json
    """
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])
