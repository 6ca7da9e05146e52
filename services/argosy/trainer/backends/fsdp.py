"""The FSDP backend: parameters, gradients and optimizer state cut over the ranks of one trainer (FSDP2).

Every rank calls the same methods with the same arguments (`argosy.trainer.ranks.commands.RankBackend`), and computes
the rows that are its own. A world of one rank works as well, and is then a plain `Backend`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.fsdp import FSDPModule

from argosy.trainer import checkpoint, lora
from argosy.trainer.backends.base import BackendState
from argosy.trainer.backends.compute import Compute, PolicyCompute, ValueCompute
from argosy.trainer.backends.data_parallel import DataParallel
from argosy.trainer.backends.fitting import check_fit
from argosy.trainer.backends.fsdp_model import fill, load_on_first_rank, spread, whole
from argosy.trainer.backends.process_state import (
    leave_device,
    memory_metrics,
    restore_rng,
    return_to_device,
    rng_state,
)
from argosy.trainer.checkpoint_saver import CheckpointSaver
from argosy.trainer.export import GatheredExport
from argosy.trainer.lora import AdapterForm
from argosy.trainer.optimizer import COUNTERS, MasterOptimizer, StepOutcome
from argosy.trainer.options import TrainerOptions
from argosy.trainer.parallel.mesh import DATA, SEQUENCE, TENSOR, make_mesh
from argosy.trainer.parallel.model import ParallelCritic
from argosy.trainer.parallel.offload import offload_optimizer
from argosy.trainer.ranks.partition import SequenceCost
from argosy.trainer.ranks.rendezvous import Rendezvous, in_step, join, leave, rank_device
from argosy.trainer.sharded import local
from argosy.types.batch import TrajectoryBatch
from argosy.types.errors import ConfigError
from argosy.types.records import GlobalNormalizer, LossConfig
from argosy.weightsync.freezing import Put, TensorForm, form_of
from argosy.weightsync.tensors import find_tied


class FsdpBackend:
    """One rank. Implements `argosy.trainer.ranks.commands.RankBackend`."""

    def __init__(self, options: TrainerOptions, rendezvous: Rendezvous | None = None) -> None:
        """Join the group and load. Every rank is given the same options.

        Raises ConfigError for a world that doesn't fit, StateError if this process is a rank already.
        """
        self._options = options
        meeting = rendezvous or Rendezvous(timeout_s=options.rank_timeout_s)
        self._device = rank_device(options.model.device, meeting.rank, meeting.world_size)
        join(meeting, self._device)
        try:
            self._build()
        except BaseException:
            leave()
            raise

    def _build(self) -> None:
        options = self._options
        self._rank = distributed.get_rank()
        self._mesh = make_mesh(options.parallel, self._device.type, options.rank_timeout_s)
        if options.lora is not None and options.parallel.tensor_parallel > 1:
            raise ConfigError(f"LoRA goes with tensor_parallel_size=1, got {options.parallel.tensor_parallel}")
        self._hf_model, self._adapter = load_on_first_rank(options)
        self._tied = find_tied(self._hf_model.state_dict())
        with in_step(options.rank_timeout_s):
            self._model = spread(self._hf_model, options, self._mesh)
        self._parameters: dict[str, nn.Parameter] = {
            name: parameter for name, parameter in self._hf_model.named_parameters() if parameter.requires_grad
        }
        self._optimizer = MasterOptimizer(self._parameters, options.optimizer)
        if options.offload.optimizer:
            offload_optimizer(self._optimizer.torch_optimizer, self._device)
        self._compute: Compute = (
            ValueCompute(self._model)
            if isinstance(self._model, ParallelCritic)
            else PolicyCompute(self._model, report_entropy=options.report_entropy)
        )
        alone = distributed.get_world_size() == 1
        # Saves run beside training, so their collectives need a group of their own.
        self._save_group = None if alone else distributed.new_group(backend="gloo")
        self._saver = CheckpointSaver(self._save_group)
        self._data = DataParallel(
            self._mesh.get_group(DATA),
            SequenceCost(int(self._hf_model.config.get_text_config().hidden_size)),
            speaks=self._mesh.get_local_rank(SEQUENCE) == 0 and self._mesh.get_local_rank(TENSOR) == 0,
            # The ranks of a sequence group all compute the same loss, and their gradients are summed.
            loss_share=1.0 / options.parallel.sequence_parallel,
        )

    @property
    def parameter_count(self) -> int:
        """Trained parameters of all ranks; tied ones once."""
        return sum(parameter.numel() for parameter in self._parameters.values())

    # Computing

    def forward_backward(
        self, batch: TrajectoryBatch, loss: LossConfig, normalizer: GlobalNormalizer
    ) -> dict[str, float]:
        """This rank's rows; fillers keep it in step with ranks that have more micro-batches (case E1)."""
        return self._data.forward_backward(self._compute, batch, loss, normalizer, self._options.update_limit)

    def evaluate(
        self, batch: TrajectoryBatch, columns: Sequence[str], temperature: float, cancelled: Callable[[], bool]
    ) -> TrajectoryBatch:
        """This rank's rows with the columns, in the batch's order."""
        limit = self._options.log_prob_limit

        def run(columns: Sequence[str]) -> TrajectoryBatch:
            return self._data.evaluate(self._model, batch, columns, temperature, limit, cancelled)

        try:
            return lora.evaluate(run, self._adapter, columns)
        finally:
            if isinstance(self._model.module, FSDPModule):
                self._model.module.reshard()  # without a backward it would stay gathered

    def optim_step(self, rate: float) -> StepOutcome:
        """Clip by the norm of all ranks' gradients, step, drop the gradients; the same on every rank."""
        return self._optimizer.step(rate)

    def zero_grad(self) -> None:
        """Drop the gradients."""
        self._optimizer.zero_grad()

    # Weights and state

    def offload(self) -> None:
        """Leave the device to others."""
        leave_device(*self._movable(), self._device)

    def onload(self) -> None:
        """Take it again."""
        return_to_device(*self._movable(), self._device)

    def _movable(self) -> tuple[nn.Module | None, torch.optim.Optimizer | None]:
        """Model and optimizer; None for what FSDP or the optimizer's hooks keep in main memory anyway."""
        offload = self._options.offload
        model = None if offload.parameters else self._hf_model
        return model, None if offload.parameters or offload.optimizer else self._optimizer.torch_optimizer

    def weights(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        """On rank 0, in main memory: all weights in the type that is published, and the tied names. Else nothing."""
        # An adapter is merged in full precision; the publisher casts what it is given.
        dtype = getattr(torch, self._options.publish_dtype) if self._adapter is None else None
        found = self._gathered(self._hf_state(), dtype)
        if self._rank != 0:
            return {}, {}
        if self._adapter is not None:
            found = self._adapter.merged(found)
        return found | {name: found[owner] for name, owner in self._tied.items()}, dict(self._tied)

    def weight_forms(self) -> tuple[dict[str, TensorForm], dict[str, str]]:
        """Names, shapes and dtypes of the whole weights; no rank has to send anything for that."""
        state = self._hf_state()
        return {name: form_of(state[names[0]]) for name, names in self._portions(state).items()}, dict(self._tied)

    def weights_into(self, put: Put) -> None:
        """Gather, merge and hand over one weight after another; on rank 0 at most one is whole at a time."""
        dtype = getattr(torch, self._options.publish_dtype) if self._adapter is None else None
        state = self._hf_state()
        for names in self._portions(state).values():
            found = self._gathered({name: state[name] for name in names}, dtype)
            if self._rank == 0:
                merged = found if self._adapter is None else self._adapter.merged(found)
                for name, tensor in merged.items():
                    put(name, tensor)

    def _portions(self, state: Mapping[str, Tensor]) -> dict[str, list[str]]:
        return {name: [name] for name in state} if self._adapter is None else self._adapter.portions(state)

    @property
    def adapter_form(self) -> AdapterForm | None:
        """Of the LoRA adapter, if one rank and alpha tell it."""
        return None if self._adapter is None else self._adapter.form

    def adapter_weights(self) -> dict[str, Tensor]:
        """On rank 0, in main memory: the adapter's tensors alone. Else nothing."""
        found = {} if self._adapter is None else self._gathered(self._adapter.alone(self._hf_state()))
        return found if self._rank == 0 else {}

    def base_weights(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        """As `weights`, without the adapter."""
        state = self._hf_state()
        base = state if self._adapter is None else self._adapter.base(state)
        found = self._gathered(base, getattr(torch, self._options.publish_dtype))
        if self._rank != 0:
            return {}, {}
        return found | {name: found[owner] for name, owner in self._tied.items()}, dict(self._tied)

    def _hf_state(self) -> dict[str, Tensor]:
        """Spread tensors by Hugging Face name, tied ones once."""
        state = {name: tensor.detach() for name, tensor in self._hf_model.state_dict().items()}
        return {name: tensor for name, tensor in state.items() if name not in self._tied}

    def _own_state(self) -> dict[str, Tensor]:
        """What a checkpoint holds of the model: of one with an adapter, that alone."""
        state = self._hf_state()
        return state if self._adapter is None else self._adapter.own(state)

    def _gathered(self, tensors: Mapping[str, Tensor], dtype: torch.dtype | None = None) -> dict[str, Tensor]:
        gathered = {name: whole(tensor, dtype) for name, tensor in tensors.items()}
        return {name: tensor for name, tensor in gathered.items() if tensor is not None}

    def state(self) -> BackendState:
        """All of it on rank 0, nothing elsewhere."""
        part = self.sharded_state()
        model, optimizer = self._gathered(part.model), self._gathered(part.optimizer)
        return BackendState(model, optimizer, part.rng, part.counters)

    def sharded_state(self) -> BackendState:
        """This rank's share as DTensors: what is saved by all ranks together."""
        counters = self._optimizer.counters
        if self._adapter is not None:
            counters[lora.BASE_FINGERPRINT] = self._adapter.base_fingerprint
        return BackendState(self._own_state(), self._optimizer.state_tensors(), rng_state(self._device), counters)

    def check_state(self, state: BackendState) -> None:
        """Refuse a state of another model, naming the tensors (case H5)."""
        if self._adapter is not None:
            self._adapter.check_base(state.counters)
        check_fit("model", {name: tuple(tensor.shape) for name, tensor in self._own_state().items()}, state.model)
        if state.optimizer:
            check_fit("optimizer", self._optimizer.expected_state(), state.optimizer)

    def load_state(self, state: BackendState) -> None:
        """Restore from rank 0's whole state; elsewhere `state` is empty."""
        if self._rank == 0:
            self.check_state(state)
        self.zero_grad()
        for name, tensor in self._own_state().items():
            fill(tensor, state.model.get(name))
        numbers = torch.tensor([bool(state.optimizer), *(state.counters.get(name, 0) for name in COUNTERS)])
        if distributed.get_world_size() > 1:
            distributed.broadcast(numbers, 0)
        has_moments, *counts = (int(number) for number in numbers)
        self._optimizer.load_state_tensors(self._spread_moments(state.optimizer) if has_moments else {})
        self._optimizer.load_counters(dict(zip(COUNTERS, counts, strict=True)))
        restore_rng(state.rng, self._device)

    def _spread_moments(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Optimizer state laid out as the parameters are; step counts whole."""
        spread_out: dict[str, Tensor] = {}
        for name, shape in self._optimizer.expected_state().items():
            parameter = self._parameters[name.partition("/")[2]].detach()
            alike = shape == tuple(parameter.shape)
            spread_out[name] = torch.zeros_like(parameter) if alike else torch.zeros(shape)
            fill(spread_out[name], tensors.get(name))
        return spread_out

    def model_for_export(self) -> Any:
        """On rank 0, something with the model's `save_pretrained`; elsewhere None."""
        weights = self._gathered(self._hf_state())
        if self._rank != 0:
            return None
        if self._adapter is not None:
            tied = {name: weights[owner] for name, owner in self._tied.items()}
            return lora.MergedExport(self._hf_model, self._adapter, weights | tied)
        return GatheredExport(self._hf_model, weights, self._tied)

    def memory_metrics(self) -> dict[str, float]:
        """Gigabytes (10⁹) of this rank: now and at its peak, and the GPU's peak where there is one."""
        return memory_metrics(self._device)

    def start_save(self, folder: Path, step: int, *, background: bool = True) -> Future[list[str]]:
        """Copy this rank's share now and write it in the background, together with the other ranks."""
        return self._saver.start(folder, step, self.sharded_state(), background=background)

    def load_checkpoint(self, folder: Path) -> int:
        """Read this rank's share of a checkpoint that any number of ranks have written; returns its step."""
        own = self._own_state()
        loaded = checkpoint.load(folder, own, self._save_group)
        self.check_state(loaded.state)
        self.zero_grad()
        with torch.no_grad():
            for name, tensor in own.items():
                local(tensor).copy_(local(loaded.state.model[name]))
        self._optimizer.load_state_tensors(loaded.state.optimizer)
        self._optimizer.load_counters(loaded.state.counters)
        restore_rng(loaded.state.rng, self._device)
        return loaded.step

    def close(self) -> None:
        """Let a save that is under way finish, and leave the group."""
        self._saver.close()
        leave()
