"""What a layout key holds, how large its file is, and the noise under which channels are known again."""

from __future__ import annotations

from canon import zoo
from canon.bench.lab import Setup, through_a_file
from canon.bench.measures.sheet import Sheet
from canon.graph.tensors import tensor_names
from canon.verify import register
from canon_benchmarks.cases import Keysize
from canon_benchmarks.measures.hidden import clean_model


def measure_keysize(case: Keysize, setup: Setup, sheet: Sheet) -> None:
    """Make one key and weigh it. Noise is relative, on every weight, for the channels of the widest layer."""
    model = clean_model(case.model, setup.device)
    key = register(model, zoo.example_input(case.model).to(setup.device), robust=case.robust, seed=0)
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensor_names(model)[0].values())
    share = through_a_file(key)[1] / size
    assert key.portrait is not None, "new keys have one"
    sheet.note(
        exact=key.layout.numbers, bytes=4 if key.units is None else 2, rows=key.portrait.numbers, share=round(share, 4),
        noise=round(key.noise or 0.0, 3),
    )  # fmt: skip
