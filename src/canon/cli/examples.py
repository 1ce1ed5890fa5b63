"""Examples for the help of a verb. Tests run every one of them."""

from __future__ import annotations

from rich.markup import escape


def examples(*lines: str) -> str:
    """The end of a verb's help: each line a whole command.

    >>> print(examples("canon inspect resnet18", "canon inspect suspect.onnx --json"))
    [bold]Examples[/bold]
    <BLANKLINE>
    canon inspect resnet18
    <BLANKLINE>
    canon inspect suspect.onnx --json
    """
    return "\n\n".join(["[bold]Examples[/bold]", *map(escape, lines)])
