"""vLLM with its own LoRA: an adapter stays beside the weights, and comes without them."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from argosy.rollout.engines.base import ModelFacts
from argosy.rollout.engines.events import Decode
from argosy.rollout.engines.vllm.engine import VllmEngine
from argosy.rollout.engines.vllm.options import VllmOptions
from argosy.types.errors import InternalError, InvalidInputError, StateError
from argosy.types.ids import PolicyVersion
from argosy.types.records import AdapterSpec
from argosy.weightsync.adapter import A_SUFFIX, B_SUFFIX

if TYPE_CHECKING:
    from torch import Tensor

_NAME, _ID = "argosy", 1
_PREFIX = "base_model.model."
"""Before the name of each module, in peft's files."""


class VllmLoraEngine(VllmEngine):
    """Implements `argosy.rollout.engines.base.TakesAdapters` too.

    Every sample runs with the one adapter, also while there is none (it is zero then): a sample in flight can't be
    given one later.

    Args:
        options: See VllmOptions; with a lora_rank.
        decode: See VllmEngine.
    """

    def __init__(self, options: VllmOptions, decode: Decode) -> None:
        super().__init__(options, decode)
        self._adapter = AdapterFolder(options, self.facts)

    async def swap_adapter(self, adapter: AdapterSpec, tensors: Mapping[str, Tensor], version: PolicyVersion) -> None:
        """See the Protocol. Samples in flight are held meanwhile and compute their cache anew.

        InvalidInputError on a rank above that of the options, before anything is touched.
        """
        self._check_alive()
        if self.version is None:
            raise StateError("this engine has no current weights that an adapter could be put on", state="stale")
        if adapter.rank > self._options.lora_rank:
            raise InvalidInputError(
                f"the adapter has rank {adapter.rank}, and vLLM was started for at most {self._options.lora_rank} "
                "(actor_rollout_ref.model.lora_rank)"
            )

        async def put_in() -> None:
            self._adapter.write(adapter.rank, adapter.alpha, tensors)
            await self._load_adapter()
            await self._llm.reset_prefix_cache(reset_running_requests=True)

        async with self._swapping:
            await self._replace(put_in, version)

    async def close(self) -> None:
        """See the Protocol."""
        await super().close()
        self._adapter.close()

    async def _prepare(self) -> None:
        self._adapter.clear()
        await self._load_adapter()
        self._flights.lora_request = self._adapter.request()

    async def _put_weights_in(self) -> None:
        """vLLM drops every adapter with the weights that it was on."""
        await super()._put_weights_in()
        self._adapter.clear()
        await self._load_adapter()

    async def _load_adapter(self) -> None:
        if not await self._llm.add_lora(self._adapter.request(load_inplace=True)):
            raise InternalError("vLLM has not taken the adapter")


class AdapterFolder:
    """The adapter in use as peft's files, which vLLM's workers read.

    Its path is always the same, and always leads to one whole adapter: vLLM may read it again with any request.
    """

    def __init__(self, options: VllmOptions, facts: ModelFacts) -> None:
        self._rank = options.lora_rank
        self._parent = Path(tempfile.mkdtemp(prefix="argosy-lora-"))
        self._current = self._parent / "current"
        self._number = 0
        self._zero = _zero_adapter(options, facts)

    def request(self, *, load_inplace: bool = False) -> Any:
        """What vLLM is told with a sample, or to read it anew."""
        from vllm.lora.request import LoRARequest

        return LoRARequest(_NAME, _ID, str(self._current), load_inplace=load_inplace)

    def clear(self) -> None:
        """Put an adapter there that changes nothing. It has the modules of the one before: vLLM wants some."""
        import torch

        tensors = {name: torch.zeros(shape) for name, shape in self._zero.items()}
        self.write(self._rank, self._rank, tensors)

    def write(self, rank: int, alpha: float, tensors: Mapping[str, Tensor]) -> None:
        """Put an adapter there. OSError if there is no room; the one before stays then."""
        from safetensors.torch import save_file

        self._number += 1
        folder = self._parent / f"{self._number:08d}"
        folder.mkdir()
        modules = sorted(name.removesuffix(A_SUFFIX) for name in tensors if name.endswith(A_SUFFIX))
        config = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "target_modules": modules, "bias": "none"}
        (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
        save_file(
            {_PREFIX + name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()},
            folder / "adapter_model.safetensors",
        )
        before = self._current.resolve() if self._current.is_symlink() else None
        link = self._parent / "next"
        link.symlink_to(folder.name)
        os.replace(link, self._current)
        if before is not None:
            shutil.rmtree(before, ignore_errors=True)

    def close(self) -> None:
        """Leave nothing."""
        shutil.rmtree(self._parent, ignore_errors=True)


def _zero_adapter(options: VllmOptions, facts: ModelFacts) -> dict[str, tuple[int, int]]:
    """Shapes of an adapter of one of the modules that will be adapted, as well as its name can be guessed: vLLM can't
    run a sample with an adapter that has none."""
    wanted = {name for name in options.lora_modules if name != "all-linear"} or {"q_proj", "o_proj", "down_proj"}
    for name, held in facts.shapes.items():
        module, _, kind = name.rpartition(".")
        if kind == "weight" and len(held.shape) == 2 and module.rpartition(".")[2] in wanted:
            rows, columns = held.shape
            return {module + A_SUFFIX: (options.lora_rank, columns), module + B_SUFFIX: (rows, options.lora_rank)}
    raise InvalidInputError(
        f"this model has no module {' or '.join(sorted(wanted))} that vLLM could adapt; set "
        "actor_rollout_ref.rollout.engine_kwargs.vllm.enable_lora=false to have adapters merged"
    )
