"""A critic on every trainer backend that can train one: the same values, gradients, checkpoint and export."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from argosy.modeling.microbatch import MicroBatchLimit
from argosy.modeling.tiny import save_tiny_model
from argosy.trainer.backends import make_backend
from argosy.trainer.computing import Closable
from argosy.trainer.objective import global_normalizer
from argosy.trainer.options import OptimizerOptions
from argosy.trainer.schedule import Schedule
from argosy.types.ragged import Ragged
from contract.test_backends import BETA, CLIP, FORMS, Subject, assert_equal, total_norm
from support.training import options_for
from support.value_reference import LOSS, plain_critic, reference_loss, save_critic, value_batch

pytestmark = pytest.mark.xdist_group("backends")

CRITIC_FORMS = [name for name in FORMS if name in ("single", "fsdp-1") or name.startswith("fsdp-2")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tiny = save_tiny_model(tmp_path_factory.mktemp("backends") / "tiny", weight_scale=3.0)
    return save_critic(tiny, tmp_path_factory.mktemp("backends") / "critic")


@pytest.fixture(scope="module", params=CRITIC_FORMS)
def subject(request: pytest.FixtureRequest, folder: Path) -> Iterator[Subject]:
    optimizer = OptimizerOptions(Schedule(1e-3), betas=(BETA, 0.999), grad_clip=CLIP)
    limit = MicroBatchLimit(max_tokens=100)
    options = options_for(
        folder, threads=1, value_head=True, optimizer=optimizer, update_limit=limit, log_prob_limit=limit
    )
    backend = make_backend(FORMS[request.param](options))
    start = backend.state()
    copied = {name: tensor.clone() for name, tensor in start.model.items()}
    yield Subject(backend, dataclasses.replace(start, model=copied))
    if isinstance(backend, Closable):
        backend.close()


def test_b4_gradient_equals_the_definition(subject: Subject, folder: Path) -> None:
    batch, plain = value_batch(), plain_critic(folder)
    expected, clipped = reference_loss(plain, batch, "token-mean", 1.0)
    expected.backward()  # type: ignore[no-untyped-call]
    wanted = {name: parameter.grad for name, parameter in plain.named_parameters()}
    found, norm, metrics = subject.gradient(batch, LOSS)
    assert_equal(found, wanted)
    assert metrics["critic/vf_loss"] == pytest.approx(expected.item(), rel=1e-4)
    assert metrics["critic/vf_clipfrac"] == pytest.approx(clipped, rel=1e-4)
    assert norm == pytest.approx(total_norm(wanted), rel=1e-4)


def test_b20_values_are_those_of_each_sequence_alone(subject: Subject, folder: Path) -> None:
    """Of states before the tokens (case B23), matched by sample, in an order that no rank computes them in."""
    order = np.random.default_rng(2).permutation(12)
    batch, plain = value_batch().select(order), plain_critic(folder)
    found = subject.reset().evaluate(batch, ["values"], 1.0, lambda: False)
    assert found.sample_ids == batch.sample_ids
    for row, values in enumerate(found.ragged("values")):
        prompt, response = batch.ragged("prompt_ids")[row], batch.ragged("response_ids")[row]
        ids = torch.tensor(np.concatenate([prompt, response]).astype(np.int64))[None]
        with torch.no_grad():
            expected = plain(input_ids=ids).logits[0, len(prompt) - 1 : -1, 0]
        np.testing.assert_allclose(values, expected.numpy(), atol=5e-5)


def test_an_export_and_a_restored_state_are_the_same_critic(subject: Subject, tmp_path: Path) -> None:
    backend, batch = subject.reset(), value_batch()
    backend.forward_backward(batch, LOSS, global_normalizer(batch))
    backend.optim_step(1e-2)
    state = backend.state()
    kept = dataclasses.replace(
        state,
        model={name: tensor.clone() for name, tensor in state.model.items()},
        optimizer={name: tensor.clone() for name, tensor in state.optimizer.items()},
    )
    backend.model_for_export().save_pretrained(tmp_path)
    exported = plain_critic(tmp_path).state_dict()
    assert exported.keys() == kept.model.keys()
    assert all(torch.equal(exported[name].float(), tensor.float()) for name, tensor in kept.model.items())
    before = values_of(subject)
    subject.reset()
    assert not np.allclose(values_of(subject), before, atol=1e-4)
    backend.load_state(kept)
    np.testing.assert_allclose(values_of(subject), before, atol=1e-6)


def values_of(subject: Subject) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    found: Ragged = subject.backend.evaluate(value_batch(), ["values"], 1.0, lambda: False).ragged("values")
    return found.values
