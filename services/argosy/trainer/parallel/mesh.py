"""How the ranks of one trainer are laid out: which share data, which share a sequence, which share a matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from argosy.types.errors import ConfigError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

DATA, SEQUENCE, TENSOR = "data", "sequence", "tensor"
"""Dimensions of the mesh, outermost first: ranks that talk most (tensor) are neighbours."""


@dataclass(frozen=True, slots=True)
class ParallelOptions:
    """Ranks of one trainer = data · sequence_parallel · tensor_parallel.

    >>> ParallelOptions(world_size=8, tensor_parallel=2, sequence_parallel=2).data_parallel
    2
    """

    world_size: int = 1
    tensor_parallel: int = 1
    """Ranks that hold parts of each matrix."""
    sequence_parallel: int = 1
    """Ranks that hold parts of each sequence (Ulysses)."""

    def __post_init__(self) -> None:
        for name in ("world_size", "tensor_parallel", "sequence_parallel"):
            if getattr(self, name) < 1:
                raise ConfigError(f"the trainer's {name} must be at least 1, got {getattr(self, name)}")
        together = self.tensor_parallel * self.sequence_parallel
        if self.world_size % together:
            raise ConfigError(
                f"{self.world_size} trainer ranks (trainer.n_gpus_per_node) can't be split into tensor parallel "
                f"{self.tensor_parallel} × sequence parallel {self.sequence_parallel}: {self.world_size} is no "
                f"multiple of {together}"
            )

    @property
    def data_parallel(self) -> int:
        """Parts that a batch is split into."""
        return self.world_size // (self.tensor_parallel * self.sequence_parallel)


def make_mesh(options: ParallelOptions, device_type: str = "cpu", timeout_s: float | None = None) -> DeviceMesh:
    """The mesh ("data", "sequence", "tensor") over the ranks of the default process group.

    Call on every rank, after `torch.distributed.init_process_group`. Rank = (data · S + sequence) · T + tensor.

    Parameters are sharded (FSDP2) over data and sequence ranks together, `mesh["data", "sequence"]._flatten()`: both
    hold all of each layer's matrices, apart from tensor parallelism.

    Args:
        timeout_s: How long one collective of each dimension may take, as in `with_patience`.
    """
    from torch.distributed.device_mesh import init_device_mesh

    shape = (options.data_parallel, options.sequence_parallel, options.tensor_parallel)
    return with_patience(init_device_mesh(device_type, shape, mesh_dim_names=(DATA, SEQUENCE, TENSOR)), timeout_s)


def with_patience(mesh: DeviceMesh, timeout_s: float | None) -> DeviceMesh:
    """The mesh, a collective of whose groups may take so long; None: PyTorch's 30 minutes."""
    from argosy.trainer.ranks.rendezvous import set_patience

    if timeout_s is not None:
        for group in mesh.get_all_groups():
            set_patience(timeout_s, group)
    return mesh
