"""Memory for tensors: of the right type, apart from each other, and saved like any other."""

from __future__ import annotations

import io
import threading

import pytest
import torch
from torch import Tensor

from canon._memory import ALIGNMENT, LARGE, SLAB, Slabs, scratch, separate


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(3, 5, 7), (0, 4), (), (LARGE // 2, 3)])
def test_memory_is_like_the_tensor_that_is_given(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    like = torch.ones(2, dtype=dtype)
    for made in (separate(shape, like), Slabs().empty(shape, like), scratch(shape, dtype, like.device)):
        assert made.shape == shape
        assert made.dtype == dtype
        assert made.is_contiguous()
        assert bool((made.fill_(3) == 3).all())


def test_tensors_of_a_slab_do_not_overlap() -> None:
    """Twice as many as one slab holds, of odd sizes: each keeps what was written, and begins where it may."""
    slabs, like = Slabs(), torch.ones(1)
    sizes = [1, 3, 1000, 77_777, LARGE // 4 - 1, LARGE // 4, LARGE // 4 + 1] * (2 * SLAB // LARGE)
    made = [slabs.empty((size,), like).fill_(number) for number, size in enumerate(sizes)]
    assert all(bool((tensor == number).all()) for number, tensor in enumerate(made))
    assert all(tensor.data_ptr() % ALIGNMENT == 0 for tensor in made if tensor.nbytes < LARGE)


def test_a_tensor_of_a_slab_is_saved_alone() -> None:
    tensor = Slabs().empty((10, 10), torch.ones(1)).fill_(2)
    assert tensor.untyped_storage().nbytes() == tensor.nbytes
    file = io.BytesIO()
    torch.save(tensor, file)
    assert file.tell() < 10_000


def test_a_slab_lives_as_long_as_its_tensors() -> None:
    slabs = Slabs()
    tensor = slabs.empty((1000,), torch.ones(1)).fill_(5)
    del slabs
    other = Slabs().empty((1000,), torch.ones(1)).fill_(6)
    assert bool((tensor == 5).all())
    assert bool((other == 6).all())


def test_scratch_is_the_same_memory_for_one_thread_and_another_one_for_others() -> None:
    mine = scratch((100,), torch.float32, torch.device("cpu"))
    assert scratch((25,), torch.float64, torch.device("cpu")).data_ptr() == mine.data_ptr()
    found: list[Tensor] = []
    thread = threading.Thread(target=lambda: found.append(scratch((100,), torch.float32, torch.device("cpu"))))
    thread.start()
    thread.join()
    assert found[0].data_ptr() != mine.data_ptr()
