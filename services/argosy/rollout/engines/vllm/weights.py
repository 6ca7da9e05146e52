"""Weights on their way to vLLM's workers, and our copy of those that they have."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from argosy.rollout.engines.base import ModelFacts
from argosy.rollout.engines.vllm.options import VllmOptions
from argosy.rollout.engines.vllm.segment import Segment
from argosy.types.ids import PolicyVersion

if TYPE_CHECKING:
    from torch import Tensor

    from argosy.types.records import WeightsManifest

_LOG = logging.getLogger(__name__)
_TURN_S = (0.05, 0.5)
"""Seconds of making weights ready between two steps: while samples run, and while none does."""


class WorkerWeights:
    """A segment with the whole model as it was sent, from which the workers load.

    It stays: newcomers get its tensors, and an update of some tensors needs the others, since vLLM fuses several of the
    trainer's into one of its own and loads only whole ones.
    """

    def __init__(self, options: VllmOptions, facts: ModelFacts) -> None:
        self._options = options
        self._owners = facts.shapes.keys() - facts.tied.keys()
        self._segment = Segment()
        self._ready = False
        self._unfit = ""

    def is_whole(self, tensors: Mapping[str, Tensor]) -> bool:
        """Whether these are all that the model has."""
        return self._owners <= tensors.keys()

    async def lay_out(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy tensors to where the workers will read them; those that are left out stay as they are."""
        if self.is_whole(tensors):
            await asyncio.to_thread(self._segment.fill, tensors)
            return
        if not self._segment.is_filled:
            state = await asyncio.to_thread(read_files, self._options)
            await asyncio.to_thread(self._segment.fill, {name: state[name] for name in state if name in self._owners})
        await asyncio.to_thread(self._segment.replace, tensors)

    async def prepare(self, llm: Any, runs: Callable[[], bool]) -> None:
        """Have the workers make what is laid out ready beside what they use, piece by piece between the samples' steps.

        Nothing in use is touched. Where it can't be done (on GPUs, for some models, or without memory for a second copy
        of the weights) or fails, `put_in` does all that there is to do, and takes longer.

        Args:
            llm: AsyncLLM.
            runs: Whether samples are in flight, which wait for each piece.
        """
        self._ready = False
        try:
            answers = await llm.collective_rpc("argosy_prepare", args=(self._segment.update_info(),))
            if any(answers):
                self._tell_unfit(next(filter(None, answers)))
                await self.drop(llm)
                return
            while not self._ready:
                turn_s = _TURN_S[0] if runs() else _TURN_S[1]
                self._ready = all(await llm.collective_rpc("argosy_advance", args=(turn_s,)))
        except Exception as error:
            if llm.errored:
                raise
            _LOG.warning("new weights could not be made ready beside those in use, and replace them: %s", error)
            await self.drop(llm)

    def _tell_unfit(self, reason: str) -> None:
        if reason != self._unfit:
            _LOG.info("samples wait for the whole of a weight update: no second copy is made (%s)", reason)
            self._unfit = reason

    async def put_in(self, llm: Any) -> None:
        """Have the workers use what is laid out, and forget every cache of what they had. vLLM must be paused.

        Raises whatever vLLM does; the workers' weights are nobody's then.
        """
        if self._ready:
            self._ready = False
            await llm.collective_rpc("argosy_swap_in")
        else:
            await self._load_in_place(llm)
        await llm.reset_prefix_cache(reset_running_requests=True)

    async def _load_in_place(self, llm: Any) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        await llm.collective_rpc("argosy_forget_update")
        await llm.start_weight_update()
        await llm.update_weights(WeightTransferUpdateRequest(update_info=self._segment.update_info()))
        await llm.finish_weight_update()

    async def drop(self, llm: Any) -> None:
        """Have the workers give back the memory of all weights that they don't use."""
        await llm.collective_rpc("argosy_drop_replaced")

    async def state(self) -> Mapping[str, Tensor]:
        """What the last update brought (overwritten by the next), or else what the model's files hold."""
        return self._segment.tensors() or await asyncio.to_thread(read_files, self._options)

    def close(self) -> None:
        """Give the memory back."""
        self._segment.close()


def name_of(version: PolicyVersion) -> str:
    """A version as vLLM is told of it."""
    return f"{version.lineage}/{version.step}/{version.digest}"


def read_files(options: VllmOptions) -> dict[str, Any]:
    """The state dict of the model's files in the engine's dtype."""
    from argosy.modeling.loading import ModelSource, load_plain

    source = ModelSource(
        options.model_path,
        dtype=options.dtype,
        device="cpu",
        trust_remote_code=options.trust_remote_code,
        override_config=options.override_config,
    )
    state: dict[str, Any] = load_plain(source).state_dict()
    return state


def describe_files(options: VllmOptions) -> WeightsManifest:
    """The version that the model's files are."""
    from argosy.weightsync import build_manifest, find_tied

    state = read_files(options)
    return build_manifest(options.lineage, 0, state, find_tied(state))
