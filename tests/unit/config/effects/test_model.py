"""`actor_rollout_ref.model.*` reaches all three services that hold the model, and all who write or read text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from argosy.config import Config
from argosy.modeling.tiny import save_byte_tokenizer, save_tiny_model
from argosy.types.errors import InvalidInputError
from support.training import mutation
from unit.config.effects.support import Cores, build, model_of, texts

ROLES = ("trainer", "reference", "rollout")


@pytest.mark.parametrize("role", ROLES)
async def test_path(job: Config, cores: Cores, tmp_path: Path, role: str) -> None:
    other = save_tiny_model(tmp_path / "other", seed=1)
    changed = job.with_values({"actor_rollout_ref.model.path": str(other)})
    weights = [model_of(role, cores(role, config)).get_input_embeddings().weight for config in (job, changed)]
    assert not torch.equal(*weights)


def with_another_template(folder: Path) -> Path:
    """A tokenizer folder whose prompts differ."""
    folder.mkdir()
    save_byte_tokenizer(folder)
    (folder / "chat_template.jinja").write_text("Q: {{ messages[0]['content'] }} A:")
    return folder


async def test_tokenizer_path(job: Config, cores: Cores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts are written with it, rollout decodes with it, and it is exported."""
    from argosy.text import decoding

    loaded: list[str] = []
    real = decoding.decoder_of

    def load(path: str, **rest: Any) -> decoding.Decoder:
        loaded.append(path)
        return real(path, **rest)

    monkeypatch.setattr(decoding, "decoder_of", load)
    folder = with_another_template(tmp_path / "tokenizer")
    changed = job.with_values({"actor_rollout_ref.model.tokenizer_path": str(folder)})
    assert texts(changed)[0] == "Q: question 0 A:" != texts(job)[0]
    cores("rollout", changed)
    assert loaded == [str(folder)]
    await cores("trainer", changed).export_hf(str(tmp_path / "hf"), mutation())
    assert (tmp_path / "hf/chat_template.jinja").read_text() == "Q: {{ messages[0]['content'] }} A:"


async def test_custom_chat_template(job: Config, cores: Cores, tmp_path: Path) -> None:
    """Prompts are written with it, and it goes into the export."""
    template = "Q: {{ messages[0]['content'] }} A:"
    changed = job.with_values({"actor_rollout_ref.model.custom_chat_template": template})
    assert texts(changed)[0] == "Q: question 0 A:" != texts(job)[0]
    await cores("trainer", changed).export_hf(str(tmp_path / "hf"), mutation())
    assert (tmp_path / "hf/chat_template.jinja").read_text() == template


@pytest.mark.parametrize("role", ROLES)
async def test_override_config(job: Config, cores: Cores, role: str) -> None:
    changed = job.with_values({"actor_rollout_ref.model.override_config": {"rms_norm_eps": 0.5}})
    found = [model_of(role, cores(role, config)).config.rms_norm_eps for config in (job, changed)]
    assert (found[0] < 0.5, found[1]) == (True, 0.5)


@pytest.mark.parametrize("role", ROLES)
def test_trust_remote_code(job: Config, monkeypatch: pytest.MonkeyPatch, role: str) -> None:
    import transformers

    asked: list[bool] = []

    def load(*_: object, trust_remote_code: bool, **__: Any) -> None:
        asked.append(trust_remote_code)
        raise OSError("only asked")

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", load)
    # With another value in config.json, since a rollout server reads the plainest Llama folders without transformers.
    job = job.with_values({"actor_rollout_ref.model.override_config": {"rms_norm_eps": 0.5}})
    for config in (job, job.with_values({"actor_rollout_ref.model.trust_remote_code": True})):
        with pytest.raises(InvalidInputError, match="only asked"):
            build(role, config)
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", load)
    with pytest.raises(InvalidInputError, match="only asked"):
        texts(job.with_values({"actor_rollout_ref.model.trust_remote_code": True}))
    assert asked == [False, True, True]


async def test_enable_gradient_checkpointing(job: Config, cores: Cores) -> None:
    for value in (True, False):
        changed = job.with_values({"actor_rollout_ref.model.enable_gradient_checkpointing": value})
        assert model_of("trainer", cores("trainer", changed)).is_gradient_checkpointing is value


def with_lora(job: Config, **values: Any) -> Config:
    return job.with_values({"actor_rollout_ref.model.lora_rank": 2} | values)


def adapter_of(cores: Cores, config: Config) -> dict[str, torch.Tensor]:
    return dict(cores("trainer", config)._backend.state().model)


def adapted(cores: Cores, config: Config) -> set[str]:
    return {name.split(".lora_")[0].rsplit(".", 1)[1] for name in adapter_of(cores, config)}


def test_lora_rank(job: Config, cores: Cores) -> None:
    """An adapter of that rank trains, and no reference is started for a KL."""
    changed = job.with_values({"actor_rollout_ref.model.lora_rank": 3, "actor_rollout_ref.actor.use_kl_loss": True})
    ranks = {tensor.shape[0] for name, tensor in adapter_of(cores, changed).items() if "lora_A" in name}
    assert (ranks, changed.needs_reference, changed.needs_ref_log_probs) == ({3}, False, True)


def test_lora_alpha(job: Config, cores: Cores) -> None:
    """The update is multiplied by alpha / rank."""
    changed = with_lora(job, **{"actor_rollout_ref.model.lora_alpha": 64})
    scales = {
        tuple(cores("trainer", config)._backend._adapter._scaling.values()) for config in (with_lora(job), changed)
    }
    assert {scale for found in scales for scale in found} == {8.0, 32.0}


def test_target_modules(job: Config, cores: Cores) -> None:
    changed = with_lora(job, **{"actor_rollout_ref.model.target_modules": ["q_proj", "v_proj"]})
    assert adapted(cores, changed) == {"q_proj", "v_proj"}
    assert {"q_proj", "gate_proj"} < adapted(cores, with_lora(job))
    pattern = with_lora(job, **{"actor_rollout_ref.model.target_modules": r".*self_attn\.[kv]_proj"})
    assert adapted(cores, pattern) == {"k_proj", "v_proj"}


def test_exclude_modules(job: Config, cores: Cores) -> None:
    changed = with_lora(job, **{"actor_rollout_ref.model.exclude_modules": "down_proj"})
    assert adapted(cores, with_lora(job)) - adapted(cores, changed) == {"down_proj"}


async def test_lora_adapter_path(job: Config, cores: Cores, tmp_path: Path) -> None:
    """Its values are those that training starts from."""
    first = cores("trainer", job.with_values({"actor_rollout_ref.model.lora_rank": 2}))
    await first.export_hf(str(tmp_path / "hf"), mutation())
    again = job.with_values(
        {"argosy.seed": 9, "actor_rollout_ref.model.lora_adapter_path": str(tmp_path / "hf/adapter")}
    )
    expected, found = dict(first._backend.state().model), adapter_of(cores, again)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in found)
