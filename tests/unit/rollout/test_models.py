"""Architectures: what runs runs exactly, what can't run is refused at the start."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from argosy.modeling.tiny import save_byte_tokenizer
from argosy.types.errors import InvalidInputError
from unit.rollout.support import PROMPT, Open, answers, plain_logits, request


@pytest.fixture(params=[False, True], ids=["own-code", "compiled"])
def native(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def save(folder: Path, make_config: Callable[[Any], Any]) -> Path:
    """A random model of any architecture, with weights large enough for its output to be peaked."""
    import transformers

    vocab_size = save_byte_tokenizer(folder)
    config = make_config(transformers)
    config.vocab_size = vocab_size
    torch.manual_seed(0)
    model: Any = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(5)
    model.save_pretrained(folder)
    return folder


RUNNING: dict[str, Callable[[Any], Any]] = {
    "llama": lambda t: t.LlamaConfig(**SIZES, tie_word_embeddings=False),
    "llama, own head size": lambda t: t.LlamaConfig(**SIZES, head_dim=24),
    "llama, all heads": lambda t: t.LlamaConfig(**(SIZES | {"num_key_value_heads": 4})),
    "qwen2": lambda t: t.Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3, own head size": lambda t: t.Qwen3Config(**SIZES, head_dim=32),
    "mistral, window": lambda t: t.MistralConfig(**SIZES, sliding_window=8),
    "gemma3, mixed windows": lambda t: t.Gemma3TextConfig(
        **SIZES, head_dim=16, sliding_window=8, layer_types=["sliding_attention", "full_attention"]
    ),
    "phi3": lambda t: t.Phi3Config(**SIZES),
    "olmo2": lambda t: t.Olmo2Config(**SIZES),
    "granite, scaled logits": lambda t: t.GraniteConfig(**SIZES, logits_scaling=4.0),
    "mixtral": lambda t: t.MixtralConfig(**SIZES, num_local_experts=2, sliding_window=None),
    "gpt2": lambda t: t.GPT2Config(
        n_embd=64, n_layer=1, n_head=2, n_positions=256, bos_token_id=1, eos_token_id=[2, 50256]
    ),
    "gpt-neox": lambda t: t.GPTNeoXConfig(**{k: v for k, v in SIZES.items() if k != "num_key_value_heads"}),
}


@pytest.mark.parametrize("name", RUNNING)
async def test_log_probs_equal_the_plain_models(open_rollout: Open, tmp_path: Path, name: str) -> None:
    folder = save(tmp_path, RUNNING[name])
    rollout = await open_rollout(folder, slot_count=3)
    requests = [request(k, p, PROMPT[5 * p :], max_tokens=8 + 8 * k) for p in range(2) for k in range(2)]
    for asked, done in zip(requests, await answers(rollout, requests), strict=True):
        logits = plain_logits(folder, asked.prompt_ids, done.token_ids)
        expected = logits.log_softmax(-1).gather(1, torch.tensor(done.token_ids)[:, None])[:, 0]
        assert done.log_probs == pytest.approx(expected.tolist(), abs=5e-5)


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "gemma2": (lambda t: t.Gemma2Config(**SIZES, head_dim=16), "soft-capped"),
    "gpt-oss, attention sinks": (
        lambda t: t.GptOssConfig(**SIZES, head_dim=16, num_local_experts=2, num_experts_per_tok=1, sliding_window=8),
        "wrongly",
    ),
    "qwen3-next, linear attention": (
        lambda t: t.Qwen3NextConfig(**SIZES, head_dim=16, num_experts=2, num_experts_per_tok=2),
        "linear_attention",
    ),
    "mamba": (lambda t: t.MambaConfig(hidden_size=32, num_hidden_layers=1), "can't run"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_it_cannot_run_is_refused_at_the_start(open_rollout: Open, tmp_path: Path, name: str) -> None:
    make_config, message = REFUSED[name]
    folder = save(tmp_path, make_config)
    with pytest.raises(InvalidInputError, match=message):
        await open_rollout(folder)


async def test_a_wrong_attention_is_found_by_the_self_check(
    open_rollout: Open, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from argosy.rollout.engines.hf.attention import Decode

    monkeypatch.setattr(Decode, "_mask", lambda self, window, dtype: None)
    with pytest.raises(InvalidInputError, match="computes LlamaForCausalLM wrongly"):
        await open_rollout(tiny, native_kernels=False)


async def test_random_weights_in_place_of_missing_ones_are_refused(
    open_rollout: Open, tmp_path: Path, tiny: Path
) -> None:
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "holes"
    shutil.copytree(tiny, folder)
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InvalidInputError, match=r"layers\.1\.mlp\.up_proj\.weight is missing"):
        await open_rollout(folder)


async def test_missing_or_broken_folders(open_rollout: Open, tmp_path: Path, tiny: Path) -> None:
    from argosy.rollout.core import HfRollout, HfRolloutOptions

    def build(path: Path, **options: Any) -> HfRollout:
        return HfRollout(HfRolloutOptions(str(path), **({"device": "cpu"} | options)), str)

    with pytest.raises(InvalidInputError, match="does not exist"):
        build(tmp_path / "nowhere")
    with pytest.raises(InvalidInputError, match=r"no config\.json"):
        build(tmp_path)
    (tmp_path / "config.json").write_text("{")
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(InvalidInputError, match="can't be loaded"):
        build(tmp_path)
    for options, message in (
        ({"dtype": "float8"}, "dtype 'float8'"),
        ({"slot_count": 0}, "slot_count"),
        ({"max_model_len": 1}, "max_model_len"),
        ({"max_waiting": 0}, "max_waiting"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            build(tiny, **options)
    if not torch.cuda.is_available():
        with pytest.raises(InvalidInputError, match="device 'cuda' can't be used here"):
            build(tiny, device="cuda")
