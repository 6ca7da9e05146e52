"""A Hugging Face module's weights as `decode.cpp` reads them, and its calls.

The projections that read the same input (q, k, v; gate, up) are stored as one matrix each. The module's parameters
become views of it: nothing is held twice, and a weight update that copies into the state dict reaches both.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from argosy.rollout.engines.hf.native.compiler import load_library
from argosy.rollout.engines.hf.native.layout import (
    CDF_BLOCK,
    HEAD_SIZES,
    LANES,
    TILE_DEPTH,
    LayerStruct,
    ModelStruct,
    PassStruct,
)
from argosy.rollout.engines.sampling.sampler import Settings

_ARCHITECTURES = {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}
"""Classes whose forward pass is the one that decode.cpp computes; anything else runs its own code."""
_STATIC_ROTARY = {"default", "linear", "llama3", "yarn"}
"""Rotary embeddings whose table doesn't depend on how long a sequence is."""

_LEAST_POSITIONS = 512
_ROWS = 208
"""Tokens of a prefill that are computed at once: more don't stay in a core's cache, fewer read weights too often."""


class NativeDecoder:
    """Runs the passes of one module; for one thread. Make it with `of`."""

    def __init__(self, library: ctypes.CDLL, module: nn.Module) -> None:
        self._library = library
        model: Any = module
        self._module = model
        self.vocab_size = int(model.config.vocab_size)
        self._struct: ModelStruct | None = None
        self._kept: list[Any] = []
        """What the library holds addresses of."""
        self._table: tuple[Tensor, Tensor] | None = None
        self.release_buffers()
        self.bind()

    @classmethod
    def of(cls, module: nn.Module) -> NativeDecoder | None:
        """A decoder for the module, whose parameters become views of joined ones; None if there can be none here."""
        if not _fits(module):
            return None
        library = load_library()
        dtype: torch.dtype = next(module.parameters()).dtype
        if library is None or (dtype == torch.bfloat16 and not library.argosy_can_bf16()):
            return None
        return cls(library, module)

    def bind(self) -> None:
        """Join the parameters and take their addresses; again whenever they have new memory."""
        model, config = self._module.model, self._module.config
        attention = model.layers[0].self_attn
        self._kept = []
        layers = (LayerStruct * len(model.layers))(*(self._layer(layer) for layer in model.layers))
        self._struct = ModelStruct(
            layers=len(layers),
            hidden=int(config.hidden_size),
            heads=int(config.num_attention_heads),
            kv_heads=int(config.num_key_value_heads),
            head_size=int(attention.head_dim),
            inner=int(config.intermediate_size),
            vocab=self.vocab_size,
            is_bf16=int(model.embed_tokens.weight.dtype == torch.bfloat16),
            eps=float(config.rms_norm_eps),
            scale=float(attention.scaling),
            embedding=self._address(model.embed_tokens.weight),
            norm=self._address(model.norm.weight),
            head=self._address(self._module.lm_head.weight),
            layer=layers,
        )
        self._table = None

    def unbind(self) -> None:
        """Let go of the parameters. Nothing can be decoded until `bind`."""
        self._struct, self._kept, self._table = None, [], None

    def release_buffers(self) -> None:
        """Free what steps write to; the next one makes it anew."""
        self._logits = torch.empty(0)
        self._scratch = torch.empty(0)
        self._sums = torch.empty(0, dtype=torch.float64)

    def decode(self, inputs: Sequence[int], cached: Sequence[int], cache: Tensor) -> Tensor:
        """Logits after one token for each of the first B rows of a cache.

        Args:
            inputs: B token ids.
            cached: B counts of tokens that the rows hold: the places of the new ones.
            cache: [2, L, S, T, K, D], contiguous, in the module's dtype; the new keys and values are written to it.

        Returns:
            [B, V] float32, a view of memory that the next call overwrites.
        """
        rows = len(inputs)
        padded = -(-rows // LANES) * LANES
        if self._logits.numel() < self.vocab_size * padded:
            self._logits = torch.empty(self.vocab_size * padded)
        row_bytes = cache.stride(2) * cache.itemsize
        self._run(
            np.array(inputs, np.int64),
            np.array(cached, np.int64),
            cache.data_ptr() + np.arange(rows, dtype=np.int64) * row_bytes,
            np.full(rows, cache.stride(1), np.int64),
            np.full(rows, cache.stride(0), np.int64),
            wants_logits=True,
        )
        return self._logits[: self.vocab_size * padded].view(self.vocab_size, padded)[:, :rows].t()

    def prefill(self, pieces: Sequence[tuple[Sequence[int], Tensor, int]]) -> None:
        """Keys and values of pieces of sequences.

        Args:
            pieces: Token ids; where the sequence's keys and values go, [2, L, P, K, D], contiguous; and how many of its
                tokens are there already.
        """
        counts = [len(ids) for ids, _, _ in pieces]

        def spread(values: Sequence[int]) -> NDArray[np.int64]:
            return np.repeat(np.array(values, np.int64), counts)

        ids = np.array([token for part, _, _ in pieces for token in part], np.int64)
        positions = np.concatenate([np.arange(done, done + n) for (_, _, done), n in zip(pieces, counts, strict=True)])
        keys = spread([store.data_ptr() for _, store, _ in pieces])
        layer_step = spread([store.stride(1) for _, store, _ in pieces])
        to_values = spread([store.stride(0) for _, store, _ in pieces])
        for start in range(0, len(ids), _ROWS):
            part = slice(start, start + _ROWS)
            self._run(ids[part], positions[part], keys[part], layer_step[part], to_values[part], wants_logits=False)

    def _run(
        self,
        ids: NDArray[np.int64],
        positions: NDArray[np.int64],
        keys: NDArray[np.int64],
        layer_step: NDArray[np.int64],
        to_values: NDArray[np.int64],
        *,
        wants_logits: bool,
    ) -> None:
        if self._struct is None:
            raise RuntimeError("the native decoder is not bound to weights")
        rows, threads, most_tokens = len(ids), torch.get_num_threads(), int(positions.max()) + 1
        self._reach(most_tokens)
        # Kept from pass to pass: fresh megabytes would cost a page fault each 4 KiB.
        size = self._library.argosy_scratch_size(self._struct, rows, most_tokens, threads)
        if self._scratch.numel() < size:
            self._scratch = torch.zeros(size)
        described = PassStruct(
            rows=rows,
            threads=threads,
            most_tokens=most_tokens,
            ids=ids.ctypes.data,
            positions=positions.ctypes.data,
            keys=keys.ctypes.data,
            layer_step=layer_step.ctypes.data,
            to_values=to_values.ctypes.data,
            logits=self._logits.data_ptr() if wants_logits else None,
            scratch=self._scratch.data_ptr(),
        )
        self._library.argosy_run(self._struct, described)

    def draw(self, uniforms: Tensor, settings: Settings) -> tuple[list[int], list[float]]:
        """One token for each row of the last `decode`, and its log-prob; see `sampler.draw`. Without filters."""
        rows = len(uniforms)
        padded = -(-rows // LANES) * LANES
        # Per block of tokens and row: a float64 sum, a float32 peak and an int32 place; and a float32 peak a row.
        size = padded * (2 * -(-self.vocab_size // CDF_BLOCK) + 1)
        if self._sums.numel() < size:
            self._sums = torch.empty(size, dtype=torch.float64)
        temperature = greedy = None
        if settings.temperature is not None:
            temperature = np.ones(padded, np.float32)
            temperature[:rows] = settings.temperature.numpy()
        if settings.greedy is not None:
            greedy = settings.greedy.numpy().astype(np.uint8)
        noise = uniforms.numpy()
        tokens, log_probs = np.empty(rows, np.int64), np.empty(rows, np.float32)
        self._library.argosy_draw(
            self._logits.data_ptr(),
            self.vocab_size,
            rows,
            torch.get_num_threads(),
            None if temperature is None else temperature.ctypes.data,
            None if greedy is None else greedy.ctypes.data,
            noise.ctypes.data,
            self._sums.data_ptr(),
            tokens.ctypes.data,
            log_probs.ctypes.data,
        )
        return tokens.tolist(), log_probs.tolist()

    def _reach(self, length: int) -> None:
        """Make cos and sin of positions 0 … length - 1 at least, [n, D] float32, with the module's own embedding."""
        if self._table is not None and len(self._table[0]) >= length:
            return
        length = max(2 * length, _LEAST_POSITIONS)
        assert self._struct is not None
        like = torch.empty(1, dtype=self._module.model.embed_tokens.weight.dtype)
        cos, sin = self._module.model.rotary_emb(like, torch.arange(length)[None])
        self._table = (cos[0].float().contiguous(), sin[0].float().contiguous())
        self._struct.cos, self._struct.sin = (part.data_ptr() for part in self._table)

    def _layer(self, layer: Any) -> LayerStruct:
        attention, mlp = layer.self_attn, layer.mlp
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        return LayerStruct(
            qkv=self._joined([linear.weight for linear in projections]),
            out=self._address(attention.o_proj.weight),
            gate_up=self._joined([mlp.gate_proj.weight, mlp.up_proj.weight]),
            down=self._address(mlp.down_proj.weight),
            qkv_bias=self._joined([linear.bias for linear in projections]),
            out_bias=self._address(attention.o_proj.bias),
            input_norm=self._address(layer.input_layernorm.weight),
            post_norm=self._address(layer.post_attention_layernorm.weight),
            q_norm=self._address(attention.q_norm.weight if hasattr(attention, "q_norm") else None),
            k_norm=self._address(attention.k_norm.weight if hasattr(attention, "k_norm") else None),
            window=_window_of(attention) or 0,
        )

    def _joined(self, parts: Sequence[Tensor | None]) -> int | None:
        """The address of parameters as one tensor, of which they become views; None if the model has none of them."""
        present = [part for part in parts if part is not None]
        if not present:
            return None
        whole = torch.cat([part.data for part in present])
        start = 0
        for part in present:
            part.data = whole[start : start + len(part)]
            start += len(part)
        return self._address(whole)

    def _address(self, tensor: Tensor | None) -> int | None:
        if tensor is None:
            return None
        if not tensor.is_contiguous():
            tensor.data = tensor.data.contiguous()
        self._kept.append(tensor)
        return tensor.data_ptr()


def _fits(module: Any) -> bool:
    """Whether decode.cpp computes this model: architecture, sizes, dtype and device."""
    if type(module).__name__ not in _ARCHITECTURES:
        return False
    config, layers, head = module.config, module.model.layers, module.lm_head
    attention = layers[0].self_attn
    kinds = {(parameter.dtype, parameter.device.type) for parameter in module.parameters()}
    depth = TILE_DEPTH if torch.bfloat16 in {dtype for dtype, _ in kinds} else LANES
    sizes = (config.hidden_size, config.intermediate_size, attention.o_proj.in_features)
    rotary = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    unexpected = [head.bias, *(linear.bias for layer in layers for linear in _inner_linears(layer))]
    return (
        kinds in ({(torch.float32, "cpu")}, {(torch.bfloat16, "cpu")})
        and config.hidden_act == "silu"
        and rotary in _STATIC_ROTARY
        and attention.head_dim in HEAD_SIZES
        and all(size % depth == 0 for size in sizes)
        and head.weight.shape[0] == config.vocab_size >= LANES
        and all(bias is None for bias in unexpected)
    )


def _window_of(attention: Any) -> int | None:
    """Tokens that a layer's queries see; None: all. Llama ignores the key even where its config has it."""
    holder = attention.config if type(attention).__name__ == "MistralAttention" else attention
    window: int | None = getattr(holder, "sliding_window", None)
    return window


def _inner_linears(layer: Any) -> tuple[Any, ...]:
    return layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj
