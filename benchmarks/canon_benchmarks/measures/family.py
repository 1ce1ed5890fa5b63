"""What Canon sees of the families of transformers, and whether it undoes an attack on each."""

from __future__ import annotations

import canon
from canon.bench.lab import Setup
from canon.bench.measures.attacked import count
from canon.bench.measures.sheet import Sheet
from canon.graph import plain
from canon.graph.experts import channel_tensors
from canon.graph.outline import seen_share
from canon.verify.coverage import used_tensors
from canon.verify.function import compare_models, random_probes
from canon_benchmarks.cases import Family
from canon_benchmarks.families import FAMILIES, build


def measure_family(case: Family, setup: Setup, sheet: Sheet) -> None:
    """Trace, attack, recover and certify one family."""
    family = FAMILIES[case.family]
    sheet.note(architecture=family.architecture, hidden=family.hidden, good=False)
    model, example = build(family)
    graph = canon.trace(model, example)
    sizes = {name: tensor.numel() for name, tensor in channel_tensors(model).items()}
    held = {p.map for space in graph.spaces if space.pins for p in space.producers}
    weights = {linear.weight for linear in graph.maps}
    sheet.note(
        front_end=graph.method,
        parameters=count(model),
        seen=seen_share(graph, sizes, used_tensors(model, example)),
        free=len(weights - {graph.maps[index].weight for index in held}),
        producers=len(weights),
        free_spaces=len(graph.free),
    )
    attacked = canon.attack(model, example, ["nso_clique", "nso_split"], ratio=0.25).model
    sheet.note(drift=compare_models(attacked, model, {"random": random_probes(example)})[0].difference)
    recovered = canon.recover(attacked, example).model
    shapes = [{n: tuple(t.shape) for n, t in m.state_dict().items()} for m in (recovered, plain(model))]
    certified = bool(canon.certify(recovered, model, example).passed)
    sheet.note(restored=shapes[0] == shapes[1], certified=certified, good=certified and shapes[0] == shapes[1])
