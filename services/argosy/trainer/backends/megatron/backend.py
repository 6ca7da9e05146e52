"""The megatron backend: one rank of a trainer whose layers megatron-core has split over tensor-parallel ranks.

What is saved, published and exported has Hugging Face names and shapes, so a checkpoint of this backend can be loaded
by any other, and the other way round.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn

from argosy.modeling.loading import load_causal_lm
from argosy.trainer import checkpoint
from argosy.trainer.backends.base import BackendState
from argosy.trainer.backends.compute import PolicyCompute
from argosy.trainer.backends.data_parallel import DataParallel
from argosy.trainer.backends.fitting import check_fit
from argosy.trainer.backends.megatron.model import MegatronModel
from argosy.trainer.backends.megatron.names import Slot
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
from argosy.trainer.optimizer import COUNTERS, STATE_KEYS, MasterOptimizer, StepOutcome
from argosy.trainer.options import TrainerOptions
from argosy.trainer.ranks.partition import SequenceCost
from argosy.trainer.ranks.rendezvous import Rendezvous, join, leave, rank_device
from argosy.types.batch import TrajectoryBatch
from argosy.types.errors import ConfigError
from argosy.types.records import GlobalNormalizer, LossConfig


class MegatronBackend:
    """One rank. Implements `argosy.trainer.ranks.commands.RankBackend`."""

    def __init__(self, options: TrainerOptions, rendezvous: Rendezvous | None = None) -> None:
        """Join the group and load. Every rank is given the same options.

        Raises ConfigError for options that this backend lacks or a model that it can't build.
        """
        check_options(options)
        self._options = options
        meeting = rendezvous or Rendezvous(timeout_s=options.rank_timeout_s)
        self._device = rank_device(options.model.device, meeting.rank, meeting.world_size)
        join(meeting, self._device)
        try:
            with warnings.catch_warnings():
                # It tells of every optional package that isn't there, and of its own deprecated calls to itself.
                warnings.simplefilter("ignore")
                self._build()
        except BaseException:
            self._leave()
            raise

    def _build(self) -> None:
        from megatron.core import parallel_state

        options = self._options
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=options.parallel.tensor_parallel)
        self._tensor_group = parallel_state.get_tensor_model_parallel_group()
        # Every rank loads the whole model once and keeps its parts.
        hf_model = load_causal_lm(options.model)
        self._model = MegatronModel(
            hf_model,
            self._tensor_group,
            chunk_tokens=options.log_prob_chunk_tokens,
            checkpointing=options.gradient_checkpointing,
        )
        self._model.check_against(hf_model)
        self._shell = hf_model.to("meta")
        self._parameters = self._model.parameters()
        self._optimizer = _TensorParallelOptimizer(self._parameters, options, self._model.slots, self._tensor_group)
        self._compute = PolicyCompute(self._model, report_entropy=options.report_entropy)
        alone = distributed.get_world_size() == 1
        # Saves run beside training, so their collectives need a group of their own.
        self._save_group = None if alone else distributed.new_group(backend="gloo")
        self._saver = CheckpointSaver(self._save_group)
        self._data = DataParallel(
            parallel_state.get_data_parallel_group(),
            SequenceCost(int(self._shell.config.hidden_size)),
            speaks=distributed.get_rank(self._tensor_group) == 0,
        )

    @property
    def parameter_count(self) -> int:
        """Trained parameters of all ranks; tied ones once."""
        return sum(math.prod(shape) for shape in self._shapes().values())

    def forward_backward(
        self, batch: TrajectoryBatch, loss: LossConfig, normalizer: GlobalNormalizer
    ) -> dict[str, float]:
        """This rank's rows; fillers keep it in step with ranks that have more micro-batches (case E1)."""
        return self._data.forward_backward(self._compute, batch, loss, normalizer, self._options.update_limit)

    def evaluate(
        self, batch: TrajectoryBatch, columns: Sequence[str], temperature: float, cancelled: Callable[[], bool]
    ) -> TrajectoryBatch:
        """This rank's rows with the columns, in the batch's order."""
        return self._data.evaluate(self._model, batch, columns, temperature, self._options.log_prob_limit, cancelled)

    def optim_step(self, rate: float) -> StepOutcome:
        """Sum the gradients over data ranks, clip by the norm of the whole, step, drop the gradients."""
        self._sum_gradients()
        return self._optimizer.step(rate)

    def _sum_gradients(self) -> None:
        """Every rank normalises by the global mini-batch, so what the data ranks hold are shares of a sum."""
        if self._data.size == 1:
            return
        for parameter in self._parameters.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            distributed.all_reduce(parameter.grad, group=self._data.group)

    def zero_grad(self) -> None:
        """Drop the gradients."""
        self._optimizer.zero_grad()

    def offload(self) -> None:
        """Leave the device to others."""
        self._move_parameters("cpu")
        leave_device(None, self._optimizer.torch_optimizer, self._device)

    def onload(self) -> None:
        """Take it again."""
        self._move_parameters(self._device)
        return_to_device(None, self._optimizer.torch_optimizer, self._device)

    def _move_parameters(self, target: torch.device | str) -> None:
        for parameter in self._parameters.values():
            parameter.data = parameter.data.to(target)

    # Weights and state: Hugging Face names and shapes

    def weights(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        """On rank 0: all weights, and the tied names. Else nothing."""
        found = self._gather({name: parameter.detach() for name, parameter in self._parameters.items()})
        if distributed.get_rank() != 0:
            return {}, {}
        tied = {"lm_head.weight": "model.embed_tokens.weight"} if self._shell.config.tie_word_embeddings else {}
        return found | {name: found[owner] for name, owner in tied.items()}, tied

    @property
    def adapter_form(self) -> AdapterForm | None:
        """None: this backend has no LoRA."""
        return None

    def adapter_weights(self) -> dict[str, Tensor]:
        """Nothing."""
        return {}

    def base_weights(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        """All weights."""
        return self.weights()

    def state(self) -> BackendState:
        """All of it, on every rank: what is equal everywhere is saved once."""
        model = self._gather({name: parameter.detach() for name, parameter in self._parameters.items()})
        return BackendState(model, self._moments(), rng_state(self._device), self._optimizer.counters)

    def _moments(self) -> dict[str, Tensor]:
        own = self._optimizer.state_tensors()
        found: dict[str, Tensor] = {}
        for key in STATE_KEYS if own else ():
            tensors = {name: own[f"{key}/{name}"] for name in self._parameters}
            whole = self._steps(tensors) if key == "step" else self._gather(tensors)
            found |= {f"{key}/{name}": tensor for name, tensor in whole.items()}
        return found

    def _steps(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {source: tensors[name] for name, slot in self._model.slots.items() for source in slot.sources}

    def _gather(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Whole tensors by Hugging Face name from the tensor ranks' parts; on every rank."""
        found: dict[str, Tensor] = {}
        for name, slot in self._model.slots.items():
            parts = [tensors[name]]
            if slot.sharded and self._tensor_group.size() > 1:
                parts = [torch.empty_like(tensors[name]) for _ in range(self._tensor_group.size())]
                distributed.all_gather(parts, tensors[name].contiguous(), group=self._tensor_group)
            found |= zip(slot.sources, slot.join(parts), strict=True)
        return found

    def check_state(self, state: BackendState) -> None:
        """Refuse a state of another model, naming the tensors (case H5)."""
        check_fit("model", self._shapes(), state.model)
        if state.optimizer:
            check_fit("optimizer", self._moment_shapes(), state.optimizer)

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        own = {name: tuple(tensor.shape) for name, tensor in self._shell.state_dict().items()}
        if self._shell.config.tie_word_embeddings:
            own.pop("lm_head.weight", None)
        return own

    def _moment_shapes(self) -> dict[str, tuple[int, ...]]:
        return {
            f"{key}/{name}": () if key == "step" else shape
            for name, shape in self._shapes().items()
            for key in STATE_KEYS
        }

    def load_state(self, state: BackendState) -> None:
        """Restore from rank 0's whole state; elsewhere `state` is empty."""
        if distributed.get_world_size() == 1:
            self._restore(state)
            return
        numbers = torch.tensor([bool(state.optimizer), *(state.counters.get(name, 0) for name in COUNTERS)])
        distributed.broadcast(numbers, 0)
        has_moments, *counts = (int(number) for number in numbers)
        model = {name: _from_first(state.model.get(name), shape) for name, shape in self._shapes().items()}
        moments = self._moment_shapes() if has_moments else {}
        optimizer = {name: _from_first(state.optimizer.get(name), shape) for name, shape in moments.items()}
        self._restore(BackendState(model, optimizer, state.rng, dict(zip(COUNTERS, counts, strict=True))))

    def _restore(self, state: BackendState) -> None:
        self.check_state(state)
        self.zero_grad()
        with torch.no_grad():
            for name, tensor in self._own_parts(state.model).items():
                self._parameters[name].copy_(tensor)
        moments: dict[str, Tensor] = {}
        for key in STATE_KEYS if state.optimizer else ():
            sources = {
                name.partition("/")[2]: tensor for name, tensor in state.optimizer.items() if name.startswith(f"{key}/")
            }
            parts = (
                {name: sources[slot.sources[0]] for name, slot in self._model.slots.items()}
                if key == "step"
                else self._own_parts(sources)
            )
            moments |= {f"{key}/{name}": tensor for name, tensor in parts.items()}
        self._optimizer.load_state_tensors(moments)
        self._optimizer.load_counters(state.counters)
        restore_rng(state.rng, self._device)

    def _own_parts(self, whole: Mapping[str, Tensor]) -> dict[str, Tensor]:
        ranks, rank = self._tensor_group.size(), self._tensor_group.rank()
        return {
            name: slot.split([whole[source] for source in slot.sources], ranks)[rank]
            for name, slot in self._model.slots.items()
        }

    def start_save(self, folder: Path, step: int, *, background: bool = True) -> Future[list[str]]:
        """Gather and copy now; written in the background, each tensor by one of the ranks."""
        return self._saver.start(folder, step, self.state(), background=background)

    def load_checkpoint(self, folder: Path) -> int:
        """Restore what any backend of any number of ranks has saved; returns its step."""
        loaded = checkpoint.load(folder, None, self._save_group)
        self._restore(loaded.state)
        return loaded.step

    def model_for_export(self) -> Any:
        """On rank 0, something with the model's `save_pretrained`; elsewhere None."""
        weights, tied = self.weights()
        return GatheredExport(self._shell, weights, tied) if weights else None

    def memory_metrics(self) -> dict[str, float]:
        """Gigabytes (10⁹) of this rank: now and at its peak, and the GPU's peak where there is one."""
        return memory_metrics(self._device)

    def close(self) -> None:
        """Let a save that is under way finish, and leave the groups."""
        self._saver.close()
        self._leave()

    def _leave(self) -> None:
        from megatron.core import parallel_state

        parallel_state.destroy_model_parallel()
        leave()


def _from_first(tensor: Tensor | None, shape: tuple[int, ...]) -> Tensor:
    """Rank 0's float32 tensor, on every rank. A collective."""
    full = torch.empty(shape) if tensor is None else tensor.detach().clone().contiguous()
    distributed.broadcast(full, 0)
    return full


class _TensorParallelOptimizer(MasterOptimizer):
    """AdamW whose gradient norm counts every rank's parts, and what all ranks hold alike once (case E8)."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        options: TrainerOptions,
        slots: Mapping[str, Slot],
        group: distributed.ProcessGroup,
    ) -> None:
        super().__init__(parameters, options.optimizer)
        self._sharded = [slots[name].sharded for name in parameters]
        self._group = group

    def _norm(self, gradients: list[Tensor]) -> Tensor:
        squares = torch.stack([norm.square() for norm in torch._foreach_norm(gradients)])
        split = torch.tensor(self._sharded, device=squares.device)
        shards, alike = squares[split].sum(), squares[~split].sum()
        if self._group.size() > 1:
            distributed.all_reduce(shards, group=self._group)
        return (shards + alike).sqrt()


def check_options(options: TrainerOptions) -> None:
    """Refuse what this backend lacks. Raises ConfigError."""
    lacking = {
        "a critic (critic.strategy=fsdp2 has it)": options.value_head,
        f"compute in {options.compute_dtype} (fsdp_config.dtype=float32)": options.compute_dtype != "float32",
        "LoRA (model.lora_rank=0)": options.lora is not None,
        "layers compiled (actor.use_torch_compile=false)": options.compile_layers,
        "Ulysses sequence parallel (ulysses_sequence_parallel_size=1)": options.parallel.sequence_parallel > 1,
        f"parameters in {options.model.dtype}": options.model.dtype != "float32",
    }
    missing = [name for name, wanted in lacking.items() if wanted]
    if missing:
        raise ConfigError(
            f"the megatron backend has no {'; nor '.join(missing)}. actor_rollout_ref.actor.strategy=fsdp2 has it"
        )
