"""Llama as a module of our own, for servers that start without transformers (`llama_loading`).

Names of parameters and the order of operations are those of transformers' LlamaForCausalLM (modeling_llama.py), so that
logits are the same to the bit in the same pass; a test compares them. There is nothing in it for training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from argosy.rollout.engines.hf.attention import Decode, Prefill


class _Linear(nn.Linear):
    """A matrix whose values come from a file: drawing some for a tensor without memory imports torch's compiler."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False, device="meta")

    def reset_parameters(self) -> None:
        """Leave it without values."""


class _Embedding(nn.Embedding):
    """A table whose values come from a file."""

    def __init__(self, count: int, size: int) -> None:
        super().__init__(count, size, device="meta")

    def reset_parameters(self) -> None:
        """Leave it without values."""


class _Norm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, device="meta"))
        self.eps = eps

    def forward(self, hidden: Tensor) -> Tensor:
        wide = hidden.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(hidden.dtype)


class _Rotary(nn.Module):
    """Cosines and sines of positions, in the dtype of what they turn."""

    def __init__(self, theta: float, head_size: int) -> None:
        super().__init__()
        exponents = torch.arange(0, head_size, 2, dtype=torch.float) / head_size  # [D / 2]
        self.inv_freq: Tensor
        self.register_buffer("inv_freq", 1.0 / (theta**exponents), persistent=False)

    @torch.no_grad()
    def forward(self, like: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions [B, N] → twice [B, N, D]."""
        angles = positions[..., None].float() * self.inv_freq  # [B, N, D / 2]
        both = torch.cat((angles, angles), dim=-1)
        return both.cos().to(like.dtype), both.sin().to(like.dtype)


class _Attention(nn.Module):
    def __init__(self, config: LlamaConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.head_dim = config.head_dim
        self.scaling = config.head_dim**-0.5
        outer, inner = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
        self.q_proj = _Linear(config.hidden_size, outer)
        self.k_proj = _Linear(config.hidden_size, inner)
        self.v_proj = _Linear(config.hidden_size, inner)
        self.o_proj = _Linear(outer, config.hidden_size)

    def forward(self, hidden: Tensor, turn: tuple[Tensor, Tensor], plan: Prefill | Decode | None) -> Tensor:
        shape = (*hidden.shape[:-1], -1, self.head_dim)
        query, key, value = (
            projection(hidden).view(shape).transpose(1, 2)  # [B, H or K, N, D]
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = _turned(query, *turn), _turned(key, *turn)
        if plan is None:
            grouped = query.shape[1] != key.shape[1]
            out = F.scaled_dot_product_attention(
                query, key, value, is_causal=True, scale=self.scaling, enable_gqa=grouped
            ).transpose(1, 2)
        else:
            out = plan.attend(self.layer, query, key, value, self.scaling, None)
        projected: Tensor = self.o_proj(out.reshape(*hidden.shape[:-1], -1).contiguous())
        return projected


class _Mlp(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate_proj = _Linear(config.hidden_size, config.intermediate_size)
        self.up_proj = _Linear(config.hidden_size, config.intermediate_size)
        self.down_proj = _Linear(config.intermediate_size, config.hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(hidden)) * self.up_proj(hidden))
        return out


class _Layer(nn.Module):
    def __init__(self, config: LlamaConfig, layer: int) -> None:
        super().__init__()
        self.self_attn = _Attention(config, layer)
        self.mlp = _Mlp(config)
        self.input_layernorm = _Norm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = _Norm(config.hidden_size, config.rms_norm_eps)

    def forward(self, hidden: Tensor, turn: tuple[Tensor, Tensor], plan: Prefill | Decode | None) -> Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), turn, plan)
        out: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out


class _Backbone(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.embed_tokens = _Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(_Layer(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = _Norm(config.hidden_size, config.rms_norm_eps)
        self.rotary_emb = _Rotary(config.rope_theta, config.head_dim)

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor | None = None,
        use_cache: bool = False,
        argosy_plan: Prefill | Decode | None = None,
    ) -> Tensor:
        """input_ids and position_ids [B, N] → [B, N, E]. There is no cache of its own; `use_cache` changes nothing."""
        hidden: Tensor = self.embed_tokens(input_ids)
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        turn = self.rotary_emb(hidden, position_ids)
        for layer in self.layers:
            hidden = layer(hidden, turn, argosy_plan)
        normed: Tensor = self.norm(hidden)
        return normed


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """What the module is made of, under config.json's names."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    eos_token_id: int | list[int] | None
    hidden_act: str = "silu"

    def get_text_config(self) -> LlamaConfig:
        """Itself, as of every model that takes text alone."""
        return self


class LlamaForCausalLM(nn.Module):
    """A causal LM for the engine: called as transformers' would be, without a plan or with one."""

    def __init__(self, config: LlamaConfig, generation: Mapping[str, Any]) -> None:
        super().__init__()
        self.config = config
        self.generation_config = SimpleNamespace(eos_token_id=generation.get("eos_token_id"))
        self.model = _Backbone(config)
        self.lm_head = _Linear(config.hidden_size, config.vocab_size)

    @property
    def base_model(self) -> _Backbone:
        """The transformer below the head."""
        return self.model

    def get_input_embeddings(self) -> nn.Embedding:
        """The table of the tokens' vectors."""
        return self.model.embed_tokens

    def get_output_embeddings(self) -> nn.Linear:
        """The head."""
        return self.lm_head

    def forward(self, input_ids: Tensor, **settings: Any) -> SimpleNamespace:
        """As the backbone; `logits` [B, N, V]."""
        return SimpleNamespace(logits=self.lm_head(self.model(input_ids, **settings)))


def _turned(vectors: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding (Su et al. 2021, eq. 34, by halves): vectors [B, H, N, D], cos and sin [B, N, D]."""
    half = vectors.shape[-1] // 2
    crossed = torch.cat((-vectors[..., half:], vectors[..., :half]), dim=-1)
    return (vectors * cos[:, None]) + (crossed * sin[:, None])
