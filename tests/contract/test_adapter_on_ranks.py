"""An adapter that is spread over ranks is published as that of one process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from argosy.trainer.backends import make_backend
from argosy.trainer.computing import Closable
from argosy.trainer.objective import global_normalizer
from argosy.trainer.options import LoraOptions
from argosy.trainer.ranks.backend import with_ranks
from argosy.types.records import LossConfig
from support.training import grouped_batch, options_for

pytestmark = pytest.mark.xdist_group("backends")

State = dict[str, torch.Tensor]


def after_a_step(folder: Path, ranks: int) -> tuple[object, State, tuple[State, dict[str, str]]]:
    """Form, adapter and base of a backend that has made one step."""
    options = options_for(folder, rate=1e-2, threads=1, lora=LoraOptions(rank=4, alpha=8))
    backend = make_backend(options if ranks == 1 else with_ranks(options, "fsdp", ranks))
    try:
        batch = grouped_batch()
        backend.forward_backward(batch, LossConfig(), global_normalizer(batch))
        backend.optim_step(1e-2)
        adapter = {name: tensor.clone() for name, tensor in backend.adapter_weights().items()}
        return backend.adapter_form, adapter, backend.base_weights()
    finally:
        if isinstance(backend, Closable):
            backend.close()


def test_two_ranks_publish_what_one_does(tiny: Path) -> None:
    from transformers import AutoModelForCausalLM

    form, adapter, _ = after_a_step(tiny, 1)
    spread_form, spread, (base, tied) = after_a_step(tiny, 2)
    assert spread_form == form is not None
    assert spread.keys() == adapter.keys()
    assert all(name.endswith((".lora_A.weight", ".lora_B.weight")) for name in spread)
    for name, tensor in adapter.items():  # AdamW's first step is 1e-2 whatever the gradient: tiny ones differ in it
        torch.testing.assert_close(spread[name], tensor, rtol=0, atol=2e-3)
    start = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32).state_dict()
    assert base.keys() == start.keys()
    assert all(torch.equal(tensor, start[name]) for name, tensor in base.items())
    assert tied == {"lm_head.weight": "model.embed_tokens.weight"}
