"""Anonymous shared memory that holds a model's tensors for vLLM's workers: no file, nothing left behind by a crash."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from argosy.types.errors import InvalidInputError, StorageError
from argosy.types.records import TensorSpec
from argosy.weightsync.buffers import FlatBuffer
from argosy.weightsync.tensors import dtype_name, tensor_over

if TYPE_CHECKING:
    from torch import Tensor


class Segment:
    """Memory of this process that others of the same user can map while it lives.

    It is reused by an update of the same layout, so that its pages are touched for the first time only once.
    """

    def __init__(self) -> None:
        self._buffer: FlatBuffer | None = None
        self._specs: tuple[TensorSpec, ...] = ()

    @property
    def is_filled(self) -> bool:
        """Whether it holds a model."""
        return bool(self._specs)

    def fill(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy tensors in, in place of what it held. Takes as long as a memcpy: call it off the event loop.

        Raises:
            StorageError: the system gives no memory that the workers could map.
        """
        specs = tuple(TensorSpec(name, tuple(one.shape), dtype_name(one), "") for name, one in tensors.items())
        self._specs = ()
        self._buffer = FlatBuffer(specs, self._buffer)
        if self._buffer.file is None:
            raise StorageError("vLLM's workers read weights from a memory file, and this system gives none")
        self._specs = specs
        for name, view in self.tensors().items():
            view.copy_(tensors[name])

    def replace(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy tensors in over some of those that it holds; the others stay. InvalidInputError on one that it lacks."""
        views = self.tensors()
        for name, tensor in tensors.items():
            if name not in views or views[name].shape != tensor.shape:
                raise InvalidInputError(f"there is no tensor {name!r} of shape {tuple(tensor.shape)} to be replaced")
            views[name].copy_(tensor)

    def tensors(self) -> dict[str, Tensor]:
        """Views of what it holds; overwritten by the next `fill`."""
        if self._buffer is None:
            return {}
        views = self._buffer.views
        return {spec.name: tensor_over(views[spec.name], spec.shape, spec.dtype) for spec in self._specs}

    def update_info(self) -> dict[str, Any]:
        """What a worker must be told to read it: `worker.SegmentUpdate`."""
        assert self._buffer is not None
        assert self._buffer.file is not None
        starts = {name: start for name, (start, _) in self._buffer.spans.items()}
        return {
            "path": self._buffer.file.path,
            "size": self._buffer.memory.size,
            "tensors": [[spec.name, spec.dtype, list(spec.shape), starts[spec.name]] for spec in self._specs],
        }

    def close(self) -> None:
        """Give the memory back. Views that live keep theirs."""
        self._buffer, self._specs = None, ()
