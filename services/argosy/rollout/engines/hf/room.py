"""How many tokens of keys and values there is memory for."""

from __future__ import annotations

import psutil
import torch

from argosy.rollout.engines.hf.loading import LoadedModel
from argosy.rollout.engines.hf.options import HfRolloutOptions
from argosy.types.errors import InvalidInputError

MEMORY_SHARE = 0.5
"""Of the memory that is free when the model is loaded: the rest is for weights that come in, logits, and others."""


def token_bytes(model: LoadedModel) -> int:
    """Bytes of one token's keys and values, over all layers."""
    return 2 * model.layer_count * model.kv_head_count * model.head_size * model.dtype.itemsize


def free_bytes(device: torch.device) -> int:
    """Memory that could be had on a device now."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def kv_room(model: LoadedModel, options: HfRolloutOptions, max_model_len: int) -> int:
    """Tokens that running samples may come to hold: `options.kv_token_count`, or what every slot could use, within
    MEMORY_SHARE of the free memory.

    Raises:
        InvalidInputError: more was asked for than is free, or not even one sample of the wanted length fits.
    """
    free, each = free_bytes(model.device), token_bytes(model)
    asked = options.kv_token_count
    if asked * each > free:
        raise InvalidInputError(
            f"argosy.rollout.kv_tokens={asked} needs {asked * each / 2**30:.2f} GiB for keys and values "
            f"({each} bytes a token), and {free / 2**30:.2f} GiB of memory are free"
        )
    room = asked or min(options.slot_count * max_model_len, int(free * MEMORY_SHARE) // each)
    if options.max_model_len and room < max_model_len:
        raise InvalidInputError(
            f"there is room for the keys and values of {room} tokens, less than one sample of {max_model_len} may need "
            f"({each} bytes a token, {free / 2**30:.2f} GiB of memory free): lower actor_rollout_ref.rollout."
            "max_model_len" + (", or raise argosy.rollout.kv_tokens" if asked else "")
        )
    return room
