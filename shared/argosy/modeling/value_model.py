"""A critic: a language model's transformer with one linear layer to a scalar per token in place of the output head.

V is the expected return from a state on. The state before response token t is the prompt and the tokens before t, so
its value is read at the packed row whose output predicts the token: the rows of the log-probs (case B23).

The head starts at zero, so a new critic says V = 0 everywhere: the first advantages are those without a critic, and no
random number is drawn. On disk a critic is a Hugging Face folder with the base's own names, `score.weight` [1, E] and
`score.bias` [1]: where the architecture has a `…ForTokenClassification` class, that class loads it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from argosy.modeling.attention import PACKED_ATTENTION
from argosy.modeling.loading import ModelSource, load_base, local_or_hub
from argosy.modeling.packed_network import PackedNetwork, self_check_batch
from argosy.modeling.packing import PackedBatch, pack
from argosy.types.errors import InternalError, InvalidInputError

VALUE_COLUMN = "values"
HEAD_NAMES = ("score.weight", "score.bias")
"""In a saved critic. A bias that isn't there is 0 (reward models have none)."""

SELF_CHECK_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 0.1}
"""Largest difference of hidden states, as a share of their size, that is rounding and not an error."""


class ValueModel(nn.Module):
    """A base model and its value head, with the names and the few methods of a transformers model that training uses.

    Args:
        base: The transformer below a causal LM's output head, such as a LlamaModel.
        weight: [1, E]; None: zeros.
        bias: [1]; None: zero.
    """

    def __init__(self, base: Any, weight: Tensor | None = None, bias: Tensor | None = None) -> None:
        super().__init__()
        embedding = base.get_input_embeddings().weight
        self.config = base.config
        self.base_model_prefix: str = base.base_model_prefix or "model"
        self.score = nn.Linear(
            base.config.get_text_config().hidden_size, 1, device=embedding.device, dtype=embedding.dtype
        )
        with torch.no_grad():
            for parameter, start in ((self.score.weight, weight), (self.score.bias, bias)):
                parameter.copy_(torch.zeros_like(parameter) if start is None else start)
        self.add_module(self.base_model_prefix, base)

    @property
    def base(self) -> Any:
        """The transformer."""
        return getattr(self, self.base_model_prefix)

    def forward(self, input_ids: Tensor, **kwargs: Any) -> Tensor:
        """V after each token, [B, T]: at place t of the state that ends with token t."""
        hidden = self.base(input_ids=input_ids, **kwargs).last_hidden_state
        values: Tensor = self.score(hidden.to(self.score.weight.dtype))[..., 0]
        return values

    def get_input_embeddings(self) -> Any:
        """The token embedding."""
        return self.base.get_input_embeddings()

    def set_attn_implementation(self, name: str) -> None:
        """As transformers' method."""
        self.base.set_attn_implementation(name)

    def gradient_checkpointing_enable(self, **kwargs: Any) -> None:
        """As transformers' method."""
        self.base.gradient_checkpointing_enable(**kwargs)

    def save_pretrained(
        self, folder: str | Path, *, state_dict: Mapping[str, Tensor] | None = None, max_shard_size: str = "5GB"
    ) -> None:
        """Write config.json and safetensors shards of this module's weights, or of those that are given."""
        import transformers
        from huggingface_hub import save_torch_state_dict

        config = copy.deepcopy(self.config)
        wrapped = f"{type(self.base).__name__.removesuffix('Model')}ForTokenClassification"
        config.architectures = [wrapped if hasattr(transformers, wrapped) else type(self.base).__name__]
        config.num_labels = 1
        config.save_pretrained(folder)
        state = self.state_dict() if state_dict is None else state_dict
        tensors = {name: _alone_in_memory(tensor.detach()) for name, tensor in state.items()}
        save_torch_state_dict(tensors, folder, max_shard_size=max_shard_size)


def _alone_in_memory(tensor: Tensor) -> Tensor:
    """The tensor, copied if it is a part of a larger one (as gathered shards are): the file format refuses those."""
    whole = tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes
    return tensor if whole else tensor.contiguous().clone()


def load_value_model(source: ModelSource, *, need_head: bool = False) -> ValueModel:
    """A critic from a saved critic's folder, or from a plain language model's with a new head (zeros).

    Raises InvalidInputError as `load_base`, on a head that isn't one scalar per token, and with `need_head` if there is
    none.
    """
    base, unused = load_base(source)
    if need_head and not set(HEAD_NAMES) & unused:
        raise InvalidInputError(f"model {source.path!r} has no head that gives scores: no score.weight in its files")
    head = _saved_head(source.path, base.config.get_text_config().hidden_size) if set(HEAD_NAMES) & unused else {}
    return ValueModel(base, head.get("score.weight"), head.get("score.bias")).eval()


def _saved_head(path: str, width: int) -> dict[str, Tensor]:
    """The head's tensors, from the safetensors files of a folder or of a cached hub model."""
    from huggingface_hub import snapshot_download
    from safetensors import safe_open

    folder = Path(local_or_hub(path))
    if not folder.is_dir():
        folder = Path(snapshot_download(path, local_files_only=True))
    found: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            found |= {name: tensors.get_tensor(name) for name in HEAD_NAMES if name in tensors.keys()}  # noqa: SIM118
    shapes = {name: tuple(tensor.shape) for name, tensor in found.items()}
    if shapes.get("score.weight") != (1, width) or shapes.get("score.bias", (1,)) != (1,):
        raise InvalidInputError(
            f"model {path!r} has a head {shapes or 'in a pickle file'}, which is no critic's: wants score.weight "
            f"(1, {width}) and score.bias (1,) in *.safetensors"
        )
    return found


class PackedValueModel(PackedNetwork):
    """A critic behind packed forward passes: one value per response token, shared prompts computed once.

    Args:
        model: From `load_value_model`.
        compute_dtype: Of the transformer's matrix products; the head is computed in the parameters' own type.
    """

    columns: ClassVar[tuple[str, ...]] = (VALUE_COLUMN,)

    def __init__(self, model: ValueModel, *, compute_dtype: torch.dtype = torch.float32) -> None:
        super().__init__(model, model.score, compute_dtype)

    def response_values(self, packed: PackedBatch) -> Tensor:
        """V of the state before each of the M response tokens, [M], with gradient."""
        if len(packed.targets) == 0:
            return torch.zeros(0, device=self.device)
        hidden = self.hidden_states(packed).index_select(0, packed.output_rows)  # [M, E]
        return _apply(self._head, hidden)

    def column_values(self, packed: PackedBatch, columns: Sequence[str], temperature: float) -> Mapping[str, Tensor]:
        """ "values"; the temperature plays no part."""
        del temperature
        return {name: self.response_values(packed) for name in columns}

    def self_check(self) -> float:
        """Compare hidden states of a small packed pass with the base's own plain one; returns the largest difference.

        Of hidden states and not of values, since a new head says 0 to everything. The difference is a share of their
        root mean square. Raises InternalError if it is more than rounding.
        """
        prompts, responses = self_check_batch(self.vocab_size)
        with torch.no_grad():
            packed = pack(prompts, responses, device=self.device)
            found = self.hidden_states(packed).index_select(0, packed.output_rows)
            expected = torch.cat([self._plain(*pair) for pair in zip(prompts, responses, strict=True)])
        size = float(expected.float().square().mean().sqrt())
        difference = float((found - expected).abs().max()) / max(size, torch.finfo(torch.float32).tiny)
        tolerance = SELF_CHECK_TOLERANCE[self.compute_dtype]
        if not difference <= tolerance:
            raise InternalError(
                f"{type(self.model.base).__name__}: packed hidden states differ from the model's own by "
                f"{difference:.2g} (allowed {tolerance:g}); this architecture can't be trained packed"
            )
        return difference

    def _plain(self, prompt: Any, response: Any) -> Tensor:
        """Hidden states before each response token by PyTorch's plain attention, [T, E]."""
        sequence = torch.from_numpy(np.concatenate([prompt, response]).astype(np.int64)).to(self.device)
        self.model.set_attn_implementation("sdpa")
        try:
            with torch.autocast(
                self.device.type, self.compute_dtype, enabled=self.compute_dtype != self._head.weight.dtype
            ):
                hidden: Tensor = self._base(input_ids=sequence[None], use_cache=False).last_hidden_state[0]
        finally:
            self.model.set_attn_implementation(PACKED_ATTENTION)
        return hidden[len(prompt) - 1 : -1]


def _apply(head: nn.Linear, hidden: Tensor) -> Tensor:
    """[M] of [M, E]. A value needs more than bfloat16's three digits."""
    with torch.autocast(hidden.device.type, enabled=False):
        return functional.linear(hidden.to(head.weight.dtype), head.weight, head.bias)[:, 0]
