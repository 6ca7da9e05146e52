"""Compiled layers compute what they did. Code generation is left out where it isn't the point: it takes minutes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters

from argosy.modeling.loading import ModelSource, load_causal_lm
from argosy.modeling.packed_model import PackedModel
from argosy.modeling.packing import pack
from argosy.trainer.backends.building import enable_checkpointing
from argosy.trainer.parallel.compile import check_compiler, compile_layers
from argosy.types.errors import ConfigError
from support.training import grouped_batch

CPU = torch.device("cpu")


@pytest.mark.parametrize("checkpointing", [False, True])
def test_traced_layers_give_the_same_gradients_for_every_shape(tiny_folder: Path, checkpointing: bool) -> None:
    torch.compiler.reset()
    counters.clear()
    found = []
    for traced in (False, True):
        model = load_causal_lm(ModelSource(str(tiny_folder), device="cpu"))
        names = list(model.state_dict())
        if checkpointing:
            enable_checkpointing(model)
        if traced:
            compile_layers(model, model.model.layers, CPU, backend="aot_eager")
        for seed in range(3):
            batch = grouped_batch(seed=seed)
            packed = pack(batch.ragged("prompt_ids"), batch.ragged("response_ids"))
            stats = PackedModel(model).response_stats(packed, temperature=1.0)
            stats.log_probs.sum().backward()  # type: ignore[no-untyped-call]
        assert list(model.state_dict()) == names
        found.append([parameter.grad for parameter in model.parameters()])
    for plain, compiled in zip(*found, strict=True):
        torch.testing.assert_close(compiled, plain, rtol=1e-5, atol=1e-5)
    assert counters["stats"]["unique_graphs"] <= 4  # both layers and all shapes share the parts around attention


def test_a_missing_compiler_is_refused() -> None:
    from torch._inductor import config
    from torch._inductor.cpp_builder import get_cpp_compiler

    get_cpp_compiler.cache_clear() if hasattr(get_cpp_compiler, "cache_clear") else None
    # Its own patch: pytest's would delete the entry on undoing, for every later test of this process.
    with (
        config.patch({"cpp.cxx": ("no-such-compiler",)}),
        pytest.raises(ConfigError, match=r"needs a C\+\+ compiler on a CPU.*use_torch_compile=false"),
    ):
        check_compiler(CPU)
