"""What the engine can do, and what the core has to know of its model."""

from __future__ import annotations

from argosy.rollout.engines.base import Capabilities, ModelFacts
from argosy.rollout.engines.folder import ModelFolder
from argosy.rollout.engines.sglang.command import CONTEXT_MARGIN
from argosy.rollout.engines.sglang.options import SglangOptions
from argosy.rollout.engines.sglang.payload import SAMPLING
from argosy.weightsync.manifest import TensorShape

_FLOATS = ("float32", "bfloat16", "float16")

CAPABILITIES = Capabilities(
    engine="sglang",
    log_probs="processed",
    sampling=SAMPLING,
    sample_seeds=False,
    partial_resume=True,
    updates_in_flight=True,
    transports=frozenset({"stream", "collective", "shared_memory", "disk"}),
    sleep_levels=(),
    adapter_sync=False,
    deterministic=False,
    version_spans=True,
)


def facts_of(folder: ModelFolder, options: SglangOptions) -> ModelFacts:
    """Of a model folder that is served with these options."""
    most = folder.context_len - CONTEXT_MARGIN
    context_len = min(options.max_model_len or most, most)
    shapes = {
        name: TensorShape(shape.shape, options.dtype if shape.dtype in _FLOATS else shape.dtype)
        for name, shape in folder.shapes.items()
    }
    return ModelFacts(
        shapes=shapes,
        tied=folder.tied,
        casts=[("float32", options.dtype)] if options.dtype != "float32" else [],
        vocab_size=folder.vocab_size,
        context_len=context_len,
        eos_token_ids=folder.eos_token_ids,
    )


def is_on_cpu(device: str) -> bool:
    """Whether argosy.rollout.device means the processor here."""
    if device == "auto":
        import torch

        return not torch.cuda.is_available()
    return device == "cpu"
