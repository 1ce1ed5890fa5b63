"""`python -m canon_benchmarks NAME ...`: one command for every measurement; without a name it lists them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Final

from canon.errors import choices

NAMES: Final = {
    "run": "run a suite of cases, as `canon bench run` does",
    "speed": "what every step costs, with limits: `make bench`",
    "performance_table": "the page of speed, from its records",
    "scale": "how time grows from 10⁷ to 10⁹ parameters",
    "profile": "where the time of one recovery goes",
    "locate_time": "what locating costs beside recovery",
    "probe_count": "how many probes find a trained network's duplicates",
    "nine_points": "nine kinds of hidden redundancy in the four models of the paper",
    "containment_grid": "thirteen architectures: the owner's network inside attacked and changed models",
    "starts": "a common start, or theft: small networks that learn the digits",
    "wrong_keys": "p-values of keys that are not the owner's",
    "riga_strangers": "to whom an extractor of riga21 says its message",
    "coverage": "which models of torchvision and timm trace",
    "families": "families of transformers and diffusers",
    "onnx_files": "ONNX files of others",
    "exporters": "hidden models through the tools that make ONNX files",
    "rewritings": "hidden models written as other programs",
    "large": "checkpoints in the shape of a Llama, shard by shard",
}
"""Every measurement is a module with a `main`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one measurement."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help"):
        sys.stdout.write("python -m canon_benchmarks NAME [--help] ...\n\n")
        sys.stdout.write("".join(f"  {name:18} {about}\n" for name, about in NAMES.items()))
        return 0
    name, *rest = given
    if name not in NAMES:
        sys.stderr.write(f"no measurement is called '{name}'. {choices(name, NAMES)}\n")
        return 2
    status: int = importlib.import_module(f"canon_benchmarks.{name}").main(rest)
    return status


if __name__ == "__main__":
    sys.exit(main())
