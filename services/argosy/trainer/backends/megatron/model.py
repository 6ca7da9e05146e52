"""A megatron-core GPT model with the weights of a Hugging Face one, behind the same packed log-probs.

Three things differ from Megatron's own training loop, and none of them patches it:

- Its attention kernel for packed rows needs Transformer Engine, which needs a GPU. The layer spec takes ours instead
  (`argosy.modeling.attention`), which also lets the samples of a group share their prompt. The layout travels in the
  place of the attention mask, which Megatron's layers hand on without looking at it.
- Rotary angles come from the Hugging Face model's own inverse frequencies and the packed positions, so scaled
  variants (Llama 3) are exact.
- The head is gathered over tensor ranks once per micro-batch and goes through the chunked log-probs that every backend
  uses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from argosy.modeling.attention import packed_attention
from argosy.modeling.packed_model import SELF_CHECK_TOLERANCE, PackedModel
from argosy.modeling.packed_network import self_check_batch
from argosy.modeling.packing import PackedBatch, pack
from argosy.trainer.backends.megatron.names import HeadShape, Slot, padded_vocabulary, slots
from argosy.types.errors import ConfigError, InternalError

ARCHITECTURES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""`model_type` of the Hugging Face models whose layers are what Megatron's local spec builds."""

STATIC_ROTARY = frozenset({"default", "linear", "llama3"})
"""Rotary scalings whose inverse frequencies are fixed numbers, and which leave the attention's scale alone."""


class MegatronModel(PackedModel):
    """Packed log-probs of a model built by megatron-core.

    Args:
        hf_model: The loaded Hugging Face model: its config and weights are taken over; it is not kept.
        tensor_group: The tensor-parallel ranks, of which this process is one.
        chunk_tokens: As in `PackedModel`.
        checkpointing: Recompute each layer in the backward pass.

    `megatron.core.parallel_state` must have been initialised. Raises ConfigError for a model or a number of ranks that
    it can't be built for.
    """

    def __init__(
        self, hf_model: Any, tensor_group: dist.ProcessGroup, *, chunk_tokens: int, checkpointing: bool = False
    ) -> None:
        config = hf_model.config
        check_supported(config, tensor_group.size())
        self.heads = head_shape(config)
        self.slots: Mapping[str, Slot] = slots(
            config.num_hidden_layers,
            self.heads,
            config.vocab_size,
            tied=bool(config.tie_word_embeddings),
            qkv_bias=_qkv_bias(config),
            qk_norm=config.model_type == "qwen3",
        )
        self._tensor_group = tensor_group
        self._config: Any = config
        self.compute_dtype = torch.float32
        self.chunk_tokens = chunk_tokens
        rotary = getattr(hf_model, hf_model.base_model_prefix).rotary_emb
        self._frequencies = rotary.inv_freq.detach().clone().float()
        self.model: Any = _build(config, self.heads, tensor_group.size(), hf_model.device, checkpointing)
        self._take_over(hf_model)
        self._head: Any = _GatheredHead(self._head_shard(), tensor_group, config.vocab_size)

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        device: torch.device = self._head_shard().device
        return device

    @property
    def vocab_size(self) -> int:
        """Ids must be below it."""
        return int(self._config.vocab_size)

    @property
    def max_positions(self) -> int | None:
        """Longest sequence that the model's positions allow."""
        return int(self._config.max_position_embeddings)

    def parameters(self) -> dict[str, nn.Parameter]:
        """This rank's parts, by Megatron name."""
        return {name: parameter for name, parameter in self.model.named_parameters() if parameter.requires_grad}

    def hidden_states(self, packed: PackedBatch) -> Tensor:
        """The last hidden state of every packed row, [N, E]; the same on all tensor ranks."""
        embedded = self.model.embedding(packed.input_ids[None], packed.position_ids[None])  # [N, 1, E]
        angles = packed.position_ids[:, None].float() * self._frequencies.to(embedded.device)  # [N, D/2]
        rotary = torch.cat([angles, angles], -1)[:, None, None, :]  # [N, 1, 1, D]
        hidden: Tensor = self.model.decoder(hidden_states=embedded, attention_mask=packed.layout, rotary_pos_emb=rotary)
        return hidden[:, 0]

    def check_against(self, hf_model: Any) -> float:
        """Compare with the Hugging Face model's own log-probs; returns the largest difference.

        Raises InternalError when it is more than rounding: a layer that Megatron builds differently would train on
        wrong numbers in silence.
        """
        prompts, responses = self_check_batch(self.vocab_size)
        plain = PackedModel(hf_model, chunk_tokens=self.chunk_tokens)
        with torch.no_grad():
            ours, theirs = (
                model.response_stats(pack(prompts, responses, device=self.device), temperature=1.0).log_probs
                for model in (self, plain)
            )
        difference = float((ours - theirs).abs().max())
        tolerance = SELF_CHECK_TOLERANCE[self.compute_dtype]
        if not difference <= tolerance:
            raise InternalError(
                f"{type(hf_model).__name__}: log-probs through megatron-core differ from the model's own by "
                f"{difference:.2g} (allowed {tolerance:g}); use actor_rollout_ref.actor.strategy=fsdp2"
            )
        return difference

    def _head_shard(self) -> nn.Parameter:
        tied = bool(self._config.tie_word_embeddings)
        module = self.model.embedding.word_embeddings if tied else self.model.output_layer
        shard: nn.Parameter = module.weight
        return shard

    @torch.no_grad()
    def _take_over(self, hf_model: Any) -> None:
        weights, rank = hf_model.state_dict(), self._tensor_group.rank()
        own = self.parameters()
        missing = sorted(own.keys() ^ self.slots.keys())
        if missing:
            raise InternalError(f"megatron-core built other parameters than expected, the first is {missing[0]}")
        for name, slot in self.slots.items():
            parts = slot.split([weights[source] for source in slot.sources], self._tensor_group.size())
            own[name].copy_(parts[rank])


class _GatheredHead:
    """The output head's weight, whole, each time it is asked for."""

    def __init__(self, shard: nn.Parameter, group: dist.ProcessGroup, vocab_size: int) -> None:
        self._shard = shard
        self._group = group
        self._vocab_size = vocab_size

    @property
    def weight(self) -> Tensor:
        """[V, E], with gradient."""
        whole: Tensor = _GatherRows.apply(self._shard, self._group)  # type: ignore[no-untyped-call]
        return whole[: self._vocab_size]


class _GatherRows(torch.autograd.Function):
    """Rows of all ranks, end to end. Every rank computes the same loss from them, so each keeps its rows' gradient."""

    @staticmethod
    def forward(ctx: Any, shard: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.rank, ctx.rows = group.rank(), len(shard)
        if group.size() == 1:
            return shard.view_as(shard)
        parts = [torch.empty_like(shard) for _ in range(group.size())]
        dist.all_gather(parts, shard.contiguous(), group=group)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient[ctx.rank * ctx.rows : (ctx.rank + 1) * ctx.rows], None


def _attention_class() -> type[nn.Module]:
    """Made when megatron-core is there: this module must be importable without it."""
    from megatron.core.transformer.module import MegatronModule

    class PackedCoreAttention(MegatronModule):  # type: ignore[misc]  # the package has no types
        """Causal attention in packed rows. Takes what Megatron gives its own core attention."""

        def __init__(self, config: Any, layer_number: int, attn_mask_type: Any, attention_type: str, **_: Any) -> None:
            super().__init__(config=config)
            self.scaling = 1.0 / math.sqrt(config.kv_channels)

        def forward(self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **_: Any) -> Tensor:
            # [N, 1, H, D] → [1, H, N, D]
            queries, keys, values = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
            result, _weights = packed_attention(
                self, queries, keys, values, None, self.scaling, packed_layout=attention_mask
            )
            return result[0].flatten(1)[:, None]  # [1, N, H, D] → [N, 1, H·D]

    return PackedCoreAttention


def _recomputed_layer_class() -> type[nn.Module]:
    """Megatron's own recomputation saves CUDA's random states; nothing here is random, so PyTorch's does."""
    from megatron.core.transformer.transformer_layer import TransformerLayer
    from torch.utils.checkpoint import checkpoint

    class RecomputedLayer(TransformerLayer):  # type: ignore[misc]  # the package has no types
        """A layer that keeps its input only."""

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return checkpoint(super().forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

    return RecomputedLayer


def _build(config: Any, heads: HeadShape, ranks: int, device: torch.device, checkpointing: bool) -> Any:
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    qk_norm = config.model_type == "qwen3"
    settings = TransformerConfig(
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        num_attention_heads=heads.head_count,
        num_query_groups=heads.kv_head_count,
        kv_channels=heads.head_dim,
        ffn_hidden_size=config.intermediate_size,
        layernorm_epsilon=config.rms_norm_eps,
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=functional.silu,
        add_bias_linear=False,
        add_qkv_bias=_qkv_bias(config),
        qk_layernorm=qk_norm,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        tensor_model_parallel_size=ranks,
        params_dtype=torch.float32,
        use_cpu_initialization=True,
        perform_initialization=False,
        # Fused kernels exist on GPUs only; the numbers are the same.
        bias_dropout_fusion=False,
        bias_activation_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        persist_layer_norm=False,
        apply_rope_fusion=False,
    )
    spec = get_gpt_layer_local_spec(normalization="RMSNorm", qk_layernorm=qk_norm)
    spec.submodules.self_attention.submodules.core_attention = _attention_class()
    if checkpointing:
        spec.module = _recomputed_layer_class()
    model = GPTModel(
        config=settings,
        transformer_layer_spec=spec,
        vocab_size=padded_vocabulary(config.vocab_size, ranks),
        max_sequence_length=config.max_position_embeddings,
        position_embedding_type="rope",
        share_embeddings_and_output_weights=bool(config.tie_word_embeddings),
    )
    return model.to(device).eval()


def head_shape(config: Any) -> HeadShape:
    """Heads of a Hugging Face config."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return HeadShape(config.num_attention_heads, config.num_key_value_heads, head_dim)


def check_supported(config: Any, ranks: int) -> None:
    """Refuse, with the numbers, a model that megatron-core would build wrongly or can't split over `ranks`."""
    if config.model_type not in ARCHITECTURES:
        raise ConfigError(
            f"the megatron backend builds {', '.join(sorted(ARCHITECTURES))} models; this one is "
            f"{config.model_type!r}: use actor_rollout_ref.actor.strategy=fsdp2"
        )
    if getattr(config, "mlp_bias", False) or (
        config.model_type != "qwen2" and getattr(config, "attention_bias", False)
    ):
        raise ConfigError("the megatron backend has no biases in mlp and o_proj, which this model's config asks for")
    scaling = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kind = scaling.get("rope_type", "default")
    if kind not in STATIC_ROTARY:
        raise ConfigError(
            f"the megatron backend has no rotary scaling {kind!r} (known: {', '.join(sorted(STATIC_ROTARY))})"
        )
    heads = head_shape(config)
    for name, count in (
        ("num_attention_heads", heads.head_count),
        ("num_key_value_heads", heads.kv_head_count),
        ("intermediate_size", config.intermediate_size),
    ):
        if count % ranks:
            raise ConfigError(
                f"actor_rollout_ref.actor.megatron.tensor_model_parallel_size={ranks} doesn't divide the model's "
                f"{name}={count}"
            )


def _qkv_bias(config: Any) -> bool:
    return bool(config.model_type == "qwen2")
