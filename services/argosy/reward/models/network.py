"""Scoring models in this process: a transformer with a head that gives one value per label. The one module with torch.

A decoder's score is read at the **last attended token**, found by the attention mask and never by the pad token's id:
where pad equals eos, an earlier turn's end looks like padding, and the real end as well (case B15). So the head is
applied here, to the chosen hidden states, and not by the model's own pooling, which searches for the pad id. Encoders
(BERT and the like) pool their first token by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from argosy.modeling.loading import ModelSource, check_model_path, load_with_head, local_or_hub
from argosy.modeling.value_model import ValueModel, load_value_model
from argosy.reward.models.batching import BatchLimits, plan_batches
from argosy.types.errors import AbortedError, InvalidInputError


class ScoringNetwork:
    """A loaded scoring model.

    Args:
        model: A transformers model for sequence or token classification, or a `ValueModel`.
        name: For messages.
    """

    def __init__(self, model: Any, *, name: str) -> None:
        self.name = name
        self._model = model
        self._head: nn.Module | None = getattr(model, "score", None)
        # The token head of a decoder; a token classifier of another shape gives [B, T, L] by its own forward.
        self._reads_tokens = self._head is not None or type(model).__name__.endswith("ForTokenClassification")
        self._device: torch.device = model.get_input_embeddings().weight.device

    @property
    def label_count(self) -> int:
        """Values per sample."""
        return 1 if isinstance(self._model, ValueModel) else int(self._model.config.num_labels)

    @property
    def label_names(self) -> list[str]:
        """In the labels' order."""
        names = getattr(self._model.config, "id2label", None) or {}
        return [str(names[index]) for index in sorted(names)]

    @property
    def vocab_size(self) -> int:
        """Rows of the input embedding: ids must be below it."""
        return int(self._model.get_input_embeddings().weight.shape[0])

    @property
    def max_positions(self) -> int | None:
        """Longest sequence that the model's positions allow, if it says so."""
        limit = getattr(self._model.config.get_text_config(), "max_position_embeddings", None)
        return None if limit is None else int(limit)

    def values(
        self,
        sequences: Sequence[Sequence[int]],
        limits: BatchLimits,
        *,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> list[list[float]]:
        """One value per label for each sequence of token ids, in the sequences' order, whatever batches they were in.

        Raises InvalidInputError on an id outside the vocabulary or an empty sequence, AbortedError if `cancelled` said
        so between two batches.
        """
        for sequence in sequences:
            if not sequence or min(sequence) < 0 or max(sequence) >= self.vocab_size:
                raise InvalidInputError(
                    f"a sequence of {len(sequence)} tokens is empty or has ids outside the {self.vocab_size} of model "
                    f"{self.name!r}: its tokenizer is another model's"
                )
        found: list[list[float]] = [[] for _ in sequences]
        for rows in plan_batches([len(sequence) for sequence in sequences], limits):
            if cancelled():
                raise AbortedError("nobody waits for these scores any more")
            width = len(sequences[rows[0]])
            ids = torch.zeros(len(rows), width, dtype=torch.int64)
            mask = torch.zeros_like(ids)
            for line, row in enumerate(rows):
                ids[line, : len(sequences[row])] = torch.tensor(sequences[row])
                mask[line, : len(sequences[row])] = 1
            for row, values in zip(rows, self.padded(ids, mask).tolist(), strict=True):
                found[row] = values
        return found

    def padded(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Values [B, L] of a rectangle [B, T] that is padded left, right or not at all, in float32 at least."""
        ids, mask = input_ids.to(self._device), attention_mask.to(self._device)
        with torch.no_grad():
            if not self._reads_tokens:
                logits: Tensor = self._model(input_ids=ids, attention_mask=mask).logits
                return logits.to(torch.promote_types(torch.float32, logits.dtype)).cpu()
            end = last_attended(mask)
            lines = torch.arange(len(ids), device=self._device)
            given = {"input_ids": ids, "attention_mask": mask}
            if not bool(mask[:, 0].all()):  # padded left; elsewhere positions count from 0 by themselves
                given["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
            if self._head is None:
                tokens: Tensor = self._model(**given).logits
                return tokens[lines, end].to(torch.promote_types(torch.float32, tokens.dtype)).cpu()
            base = getattr(self._model, self._model.base_model_prefix)
            hidden = base(**given, use_cache=False).last_hidden_state[lines, end]  # [B, E]
            return _apply(self._head, hidden).cpu()


def last_attended(attention_mask: Tensor) -> Tensor:
    """Index of each row's last attended token, [B]: the only meaning that "last token" has here (case B15)."""
    places = torch.arange(attention_mask.shape[1], device=attention_mask.device)
    return (places * (attention_mask != 0)).argmax(-1)


def _apply(head: nn.Module, hidden: Tensor) -> Tensor:
    """[B, E] → [B, L]. A linear head in float32 at least: bfloat16 would leave a score two or three digits."""
    if not isinstance(head, nn.Linear):
        values: Tensor = head(hidden.to(next(head.parameters()).dtype))
        return values.to(torch.promote_types(torch.float32, values.dtype))
    wide = torch.promote_types(torch.float32, hidden.dtype)
    bias = None if head.bias is None else head.bias.to(wide)
    return functional.linear(hidden.to(wide), head.weight.to(wide), bias)


def load_network(source: ModelSource) -> ScoringNetwork:
    """A sequence or token classifier, or a critic that `ValueModel.save_pretrained` wrote.

    Raises InvalidInputError: no such model, weights that are missing (a head that would be random), or an architecture
    without a head.
    """
    check_model_path(source.path)
    names = _architectures(source)
    for ending in ("ForSequenceClassification", "ForTokenClassification"):
        if any(name.endswith(ending) for name in names):
            return ScoringNetwork(load_with_head(source, f"AutoModel{ending}"), name=source.path)
    if any(name.endswith(("RewardModel", "ForReward", "ForRewardModel")) for name in names):
        return ScoringNetwork(load_with_head(source, "AutoModel"), name=source.path)
    # A critic of an architecture for which transformers has no token classifier.
    model = load_value_model(source, need_head=True)
    model.set_attn_implementation("sdpa")
    return ScoringNetwork(model, name=source.path)


def _architectures(source: ModelSource) -> list[str]:
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(local_or_hub(source.path), trust_remote_code=source.trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        raise InvalidInputError(f"model {source.path!r} can't be loaded: {error}") from error
    return [str(name) for name in config.architectures or ()]
