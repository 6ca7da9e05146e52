"""The backend that rank 0's core talks to: each call is a command to all ranks, and their answers become one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from argosy.trainer.backends.base import BackendState, Gathering
from argosy.trainer.lora import AdapterForm
from argosy.trainer.optimizer import StepOutcome
from argosy.trainer.options import TrainerOptions
from argosy.trainer.ranks.backends import rank_backend_maker
from argosy.trainer.ranks.commands import Answer, RankBackend, merge_by_id, most, sum_shares
from argosy.trainer.ranks.group import PROGRAM, RankGroup
from argosy.trainer.ranks.records import to_plain
from argosy.trainer.ranks.rendezvous import Rendezvous, open_store
from argosy.types.batch import TrajectoryBatch
from argosy.types.errors import ArgosyError
from argosy.types.records import GlobalNormalizer, LossConfig
from argosy.weightsync.freezing import Put, TensorForm

R = TypeVar("R")

_IMPORT_S = 120.0
"""For a rank's process to start and import PyTorch, on a busy machine with a cold disk."""

MakeRankBackend = Callable[[TrainerOptions, Rendezvous], RankBackend]


class RankedBackend:
    """Implements `argosy.trainer.backends.base.Backend` over ranks that are processes of this trainer.

    This process is rank 0. Making one starts the others, which load the model together; `close` ends them.
    """

    def __init__(
        self,
        options: TrainerOptions,
        *,
        make_backend: MakeRankBackend | None = None,
        program: Sequence[str] = PROGRAM,
    ) -> None:
        """Start the ranks. `make_backend` and `program` (of the other ranks) are for tests; both or neither.

        Raises what any rank raised, with the rank's number: no model, no memory, no group.
        """
        world, timeout_s = options.parallel.world_size, options.rank_timeout_s
        make = make_backend or rank_backend_maker(options.backend)
        self._store = open_store(world, timeout_s)
        meetings = [Rendezvous(rank, world, self._store.port, timeout_s) for rank in range(world)]
        threads = {"OMP_NUM_THREADS": str(options.threads)} if options.threads > 0 else {}
        self._group = RankGroup(world, timeout_s=timeout_s, program=program, environment=threads)
        self._local: RankBackend | None = None
        try:
            hello = [
                {"rank": meeting.rank, "rendezvous": to_plain(meeting), "options": to_plain(options)}
                for meeting in meetings[1:]
            ]
            # First all ranks import what they need: from then on they start in step, and none waits in the dark.
            self._group.call("import", {}, None, lambda: None, hello=hello, patience_s=_IMPORT_S)
            local, _ = self._group.call("start", {}, None, lambda: make(options, meetings[0]))
        except BaseException:
            self.close()
            raise
        self._local = local
        self.parameter_count = local.parameter_count
        """Trained parameters of all ranks; tied ones once."""

    @property
    def failure(self) -> Future[ArgosyError]:
        """Gets the first cause as its *result* when the ranks have ended by a fault; never an exception."""
        return self._group.failure

    @property
    def pids(self) -> list[int]:
        """Process ids of ranks 1, 2, …"""
        return self._group.pids

    def close(self) -> None:
        """End all ranks. Repeating it does no harm."""
        self._group.close()
        if self._local is not None:
            self._local.close()
            self._local = None

    def _call(
        self,
        command: str,
        local: Callable[[RankBackend], R],
        batch: TrajectoryBatch | None = None,
        **arguments: Any,
    ) -> tuple[R, list[Answer]]:
        assert self._local is not None
        backend = self._local
        return self._group.call(command, arguments, batch, lambda: local(backend))

    def forward_backward(
        self, batch: TrajectoryBatch, loss: LossConfig, normalizer: GlobalNormalizer
    ) -> dict[str, float]:
        """Each rank computes its rows; the shares of the metrics are added up."""
        own, answers = self._call(
            "forward_backward",
            lambda backend: backend.forward_backward(batch, loss, normalizer),
            batch,
            loss=loss,
            normalizer=normalizer,
        )
        return sum_shares([own, *(answer.values for answer in answers)])

    def optim_step(self, rate: float) -> StepOutcome:
        """Clip, step, drop the gradients; the outcome is the same on every rank."""
        return self._call("optim_step", lambda backend: backend.optim_step(rate), rate=rate)[0]

    def zero_grad(self) -> None:
        """Drop the gradients. After a failure there is nothing left to drop."""
        if not self.failure.done():
            self._call("zero_grad", lambda backend: backend.zero_grad())

    def evaluate(
        self, batch: TrajectoryBatch, columns: Sequence[str], temperature: float, cancelled: Callable[[], bool]
    ) -> TrajectoryBatch:
        """Each rank computes its rows; put together by sample id (case B20)."""
        own, answers = self._call(
            "evaluate",
            lambda backend: backend.evaluate(batch, columns, temperature, cancelled),
            batch,
            columns=list(columns),
            temperature=temperature,
        )
        parts = [own, *(answer.batch for answer in answers if answer.batch is not None)]
        return merge_by_id(batch, parts, columns)

    def offload(self) -> None:
        """Every rank leaves its device to others."""
        self._call("offload", lambda backend: backend.offload())

    def onload(self) -> None:
        """Every rank takes it again."""
        self._call("onload", lambda backend: backend.onload())

    def weights(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        """All weights in the type that is published, gathered tensor by tensor, and the tied names."""
        return self._call("weights", lambda backend: backend.weights())[0]

    @property
    def adapter_form(self) -> AdapterForm | None:
        """The same on every rank."""
        assert self._local is not None
        return self._local.adapter_form

    def weight_forms(self) -> tuple[dict[str, TensorForm], dict[str, str]] | None:
        """What will come, as rank 0 knows it; None if the ranks can't gather one by one."""
        return self._local.weight_forms() if isinstance(self._local, Gathering) else None

    def weights_into(self, put: Put) -> None:
        """Gather all weights, one after another."""

        def local(backend: RankBackend) -> None:
            assert isinstance(backend, Gathering)
            backend.weights_into(put)

        self._call("weights_into", local)

    def adapter_weights(self) -> dict[str, Tensor]:
        """The adapter's tensors alone, gathered here."""
        return self._call("adapter_weights", lambda backend: backend.adapter_weights())[0]

    def base_weights(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        """As `weights`, without the adapter."""
        return self._call("base_weights", lambda backend: backend.base_weights())[0]

    def state(self) -> BackendState:
        """All of it, gathered here."""
        return self._call("state", lambda backend: backend.state())[0]

    def load_state(self, state: BackendState) -> None:
        """Restore; all or nothing."""
        assert self._local is not None
        self._local.check_state(state)
        self._call("load_state", lambda backend: backend.load_state(state))

    def model_for_export(self) -> Any:
        """Something with the model's `save_pretrained`, all weights gathered here."""
        return self._call("model_for_export", lambda backend: backend.model_for_export())[0]

    def memory_metrics(self) -> dict[str, float]:
        """Of the rank that takes most, each."""
        own, answers = self._call("memory_metrics", lambda backend: backend.memory_metrics())
        return most([own, *(answer.values for answer in answers)])

    def start_save(self, folder: Path, step: int, *, background: bool = True) -> Future[list[str]]:
        """Every rank copies its share now and writes it in the background; without `background` uncopied, at once."""
        return self._call(
            "start_save",
            lambda backend: backend.start_save(folder, step, background=background),
            folder=str(folder),
            step=step,
            background=background,
        )[0]

    def load_checkpoint(self, folder: Path) -> int:
        """Every rank reads its share; returns the checkpoint's step."""
        return self._call("load_checkpoint", lambda backend: backend.load_checkpoint(folder), folder=str(folder))[0]


def make_ranked(options: TrainerOptions) -> RankedBackend | RankBackend:
    """The backend of several ranks; one rank alone needs no processes beside this one."""
    if options.parallel.world_size > 1:
        return RankedBackend(options)
    return rank_backend_maker(options.backend)(options, Rendezvous(timeout_s=options.rank_timeout_s))


def with_ranks(options: TrainerOptions, backend: str, world_size: int) -> TrainerOptions:
    """The same options for another backend and number of ranks."""
    return replace(options, backend=backend, parallel=replace(options.parallel, world_size=world_size))
