"""What vLLM's workers hold, read from within them."""

from __future__ import annotations

import torch

from argosy.rollout.engines.vllm.worker import WorkerExtension

EXTENSION = f"{__name__}.ReadingBack"


class ReadingBack(WorkerExtension):
    """Our worker extension, that also tells what is in the worker's model."""

    def read_back(self) -> dict[str, list[list[float]]]:
        """Every matrix by its layer's name, as the kernels see it: the embedding's rows, and of a linear layer what it
        makes of unit vectors, for vLLM keeps its weights packed on CPUs."""
        found = {}
        for name, layer in self.model_runner.get_model().named_modules():
            if hasattr(layer, "cpu_linear"):
                columns = getattr(layer, "embedding_dim", None) or layer.input_size_per_partition
                found[name] = layer.cpu_linear(torch.eye(columns), layer.weight, None).T.tolist()
            elif name.endswith("embed_tokens"):
                found[name] = layer.weight.tolist()
        return found
