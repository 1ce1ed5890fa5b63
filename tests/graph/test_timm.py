"""timm's architectures: what is free in them keeps the function."""

from __future__ import annotations

import pytest
import torch

from canon.zoo import import_timm
from tests.preservation import check_preserved, vary_constants

FAST = ("test_resnet", "test_efficientnet", "test_convnext")
SLOW = (
    "test_byobnet", "test_nfnet", "test_mambaout", "test_vit", "ghostnet_050", "mobilenetv3_small_050", "regnetx_002",
    "dla46x_c", "repghostnet_050", "hardcorenas_b", "ese_vovnet19b_slim_dw", "cs3darknet_focus_s", "starnet_s050",
    "lcnetv2_small", "shvit_s1", "fasternet_t0", "skresnet18", "legacy_seresnet18", "rexnet_100", "edgenext_xx_small",
    "efficientvit_b0", "mobilevit_xxs", "levit_128s", "xcit_nano_12_p8_224", "efficientvim_m1",
)  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_free_spaces_keep_the_function(name: str) -> None:
    timm = import_timm()
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = timm.create_model(name, pretrained=False, num_classes=10).eval().double()
    config = timm.get_pretrained_cfg(name)
    size = int(config.input_size[-1])
    vary_constants(model, generator)
    side = size if config.fixed_input_size else min(size, 64)
    example = torch.randn(2, 3, side, side, generator=generator, dtype=torch.float64)
    graph = check_preserved(model, example, one_by_one=False)
    assert graph.free
