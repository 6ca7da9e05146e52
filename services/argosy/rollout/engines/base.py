"""What every rollout engine is to the core that serves it (`argosy.rollout.core`): one Protocol and its records.

An engine loads a model, samples tokens, and swaps weights in between. Everything that is the same for all of them is
the core's: request checks, keys in flight, deadlines, drain, status and the four phases of a weight update.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from argosy.rollout.engines.events import Deliver
from argosy.types.ids import PolicyVersion
from argosy.types.records import AdapterSpec, GenerateRequest
from argosy.weightsync.manifest import ShapedLike

if TYPE_CHECKING:
    from torch import Tensor

LogProbs = Literal["processed", "temperature"]
"""Which distribution an engine's log-probs are of: "processed" is the one really sampled from, after penalties,
temperature, top-k, top-p and min-p, renormalised; "temperature" is after temperature only, not renormalised after
top-k or top-p (equal to the former where those are off)."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do. A configuration that asks for more is refused at start."""

    engine: str
    """Its name in `actor_rollout_ref.rollout.name`."""
    log_probs: LogProbs
    """See LogProbs."""
    sampling: frozenset[str]
    """Names of the SamplingParams fields that it honours besides max_tokens and temperature."""
    sample_seeds: bool
    """Noise depends only on (seed, purpose, sample id, token position), not on batch mates or the server."""
    partial_resume: bool
    """Takes `GenerateRequest.generated` and goes on after it."""
    updates_in_flight: bool
    """Samples that run stay in flight over a weight update and go on under the new weights."""
    transports: frozenset[str]
    """Weight transports that it can receive by: names in `argosy.weightsync.transports.TRANSPORTS`."""
    sleep_levels: tuple[int, ...]
    """Levels that `sleep` takes: 1 keeps the weights (off the device), 2 drops them. Empty: it can't sleep."""
    adapter_sync: bool
    """Takes an update that holds only a LoRA adapter: as some of its weights, merged, or by TakesAdapters."""
    deterministic: bool
    """Bit for bit repeatable with `argosy.deterministic`."""
    version_spans: bool
    """A sample's `versions` tell exactly which tokens each version sampled."""

    def as_texts(self) -> dict[str, str]:
        """Everything as texts, as `RolloutStatus.capabilities` has it: flags "true" or "false", names in order with
        commas between."""
        return {field.name: _as_text(getattr(self, field.name)) for field in fields(self)}


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (frozenset, tuple)):
        return ",".join(sorted(map(str, value)))
    return str(value)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the core has to know of the model that an engine has loaded."""

    shapes: Mapping[str, ShapedLike]
    """Tensors by the names that the trainer sends: those of the Hugging Face state dict."""
    tied: Mapping[str, str]
    """Redundant name → owner name."""
    casts: Collection[tuple[str, str]]
    """(sent dtype, held dtype) pairs that it accepts beyond equality."""
    vocab_size: int
    """Rows of the output embedding: ids 0 … vocab_size - 1 are valid."""
    context_len: int
    """Most tokens of prompt and answer together."""
    eos_token_ids: frozenset[int]
    """Every id that ends an answer by itself (case D9)."""


@dataclass(frozen=True, slots=True)
class EngineCounts:
    """How an engine is doing, give or take a step."""

    running: int = 0
    """Samples being decoded."""
    waiting: int = 0
    """Samples taken in that are not."""
    generated_token_count: int = 0
    """Tokens sampled since `start`."""
    cached_token_count: int = 0
    """Prompt tokens whose keys and values are held for sharing; 0 right after a weight update."""
    kv_used_tokens: int = 0
    """Tokens whose keys and values are held now."""
    kv_total_tokens: int = 0
    """Tokens of keys and values that it can hold; 0: not known."""
    prompt_token_count: int = 0
    """Prompt tokens of the samples that were admitted since `start`."""
    prompt_cached_token_count: int = 0
    """How many of those were not computed again, since a cache had them."""


@runtime_checkable
class TakesAdapters(Protocol):
    """An engine that keeps a LoRA adapter beside its weights, in place of weights into which it was merged."""

    async def swap_adapter(self, adapter: AdapterSpec, tensors: Mapping[str, Tensor], version: PolicyVersion) -> None:
        """Serve the weights of the last `swap_weights` with this adapter, all or nothing as that.

        `tensors` are MODULE.lora_A.weight and MODULE.lora_B.weight of each module, in the trainer's dtype. The next
        `swap_weights` ends it.
        """
        ...


@runtime_checkable
class ReceivesCollectives(Protocol):
    """An engine whose own processes join the groups of collective transfers, in place of a process of weightsync's."""

    async def receive_collective(self, command: dict[str, Any], deadline_s: float) -> dict[str, Any]:
        """Fill the memory that the command names; {"checksums": crc32 of each part}.

        `command` is that of `argosy.weightsync.transports.collective.receive_command`.

        Raises:
            DeadlineError: `deadline_s` seconds have passed.
            UnavailableError: the sender or the engine's process died.
        """
        ...


class Engine(Protocol):
    """One engine with one model. Everything may be called from the core's event loop; nothing blocks it."""

    @property
    def capabilities(self) -> Capabilities:
        """What it can do; valid from the beginning."""
        ...

    @property
    def facts(self) -> ModelFacts:
        """Of the model; valid after `start`."""
        ...

    @property
    def version(self) -> PolicyVersion | None:
        """The weights that it samples from. None: stale, there are none that may be served. Only `swap_weights` and
        `mark_stale` change it."""
        ...

    @property
    def failed(self) -> Future[BaseException]:
        """Done when the engine can't work any more, with the reason."""
        ...

    async def start(self) -> None:
        """Load the model and make ready, a warm-up included. InvalidInputError: the model can't be run by it."""
        ...

    async def submit(self, requests: Sequence[GenerateRequest], deliver: Deliver, interval_tokens: int) -> None:
        """Take samples in, all or (OverloadedError) none. They were checked, and no key of them is in flight.

        `deliver` gets, from any thread, a TokenRun of each sample every `interval_tokens` tokens (0: none), and exactly
        one Completion for each, which holds all its tokens.
        """
        ...

    async def abort(self, keys: set[str] | None) -> int:
        """End the samples named by `GenerateRequest.key` (all with None) as ABORTED with what they have; how many.

        With an empty set it answers 0 as soon as the engine's loop has its turn: the core asks that to see whether the
        loop still turns.
        """
        ...

    async def pause(self, mode: str) -> None:
        """Stop sampling: "keep" leaves samples where they are, "abort" ends them. New ones are taken in and wait."""
        ...

    async def resume(self) -> None:
        """Go on sampling."""
        ...

    async def swap_weights(self, tensors: Mapping[str, Tensor], version: PolicyVersion) -> None:
        """Put new weights in, all or nothing, and forget every cache of the old ones.

        `tensors` has every owner of `facts.shapes`; with `adapter_sync`, and without `swap_adapter`, it may have some
        of them (an adapter is merged into those), and the others stay. If it fails half way, the version is None
        (stale) and samples in flight end as FAILED.
        """
        ...

    async def mark_stale(self) -> None:
        """Serve nothing until `swap_weights`: what is loaded is not a version of this run."""
        ...

    async def held_state(self) -> Mapping[str, Tensor]:
        """The weights in use by the names of `facts.shapes`, to pass on. NotFoundError if it can't give them out."""
        ...

    async def sleep(self, level: int) -> None:
        """Free memory: 1 keeps the weights off the device, 2 drops them (stale on `wake`). Nothing may be in flight."""
        ...

    async def wake(self) -> None:
        """Take the memory again."""
        ...

    def counts(self) -> EngineCounts:
        """How it is doing. Never blocks."""
        ...

    async def close(self) -> None:
        """End what runs as ABORTED and free everything."""
        ...
