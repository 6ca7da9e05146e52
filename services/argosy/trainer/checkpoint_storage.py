"""Storage for torch.distributed.checkpoint (DCP) without pickle: tensors in safetensors files, their index in JSON.

DCP plans who writes and reads which piece of a sharded tensor; these two classes move the bytes. A name "part/rest"
goes into `part.safetensors` (of one rank), or `part-00001-of-00002.safetensors` (of each of several). A piece of a
tensor is keyed "rest@row,column" by its offsets; a whole one by "rest".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    STORAGE_TYPES,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem, SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.distributed.tensor import DTensor
from torch.futures import Future

from argosy.trainer.files import write_whole
from argosy.types.errors import CorruptDataError, InternalError, storage_error

INDEX = "tensors"
"""Key of the record under which the index of all tensors is kept."""

Record = dict[str, Any]


class ShardCopy:
    """This rank's piece of a DTensor, copied to main memory, which DCP saves as it would the DTensor.

    (A DTensor itself must lie on its mesh's devices: a copy would take GPU memory.)
    """

    def __init__(self, name: str, tensor: DTensor) -> None:
        self._items: list[WriteItem] = tensor.__create_write_items__(name, tensor)
        self.local = copy_of(tensor.to_local())

    def __create_write_items__(self, name: str, _: object) -> list[WriteItem]:
        """DCP asks which pieces there are; `name` is that in this save."""
        return [replace(item, index=replace(item.index, fqn=name)) for item in self._items]


def copy_of(tensor: Tensor) -> Tensor:
    """In main memory, contiguous."""
    return tensor.detach().to("cpu", copy=True).contiguous()


class SavePlannerOfCopies(DefaultSavePlanner):
    """DCP's own planner, which also finds the data of a `ShardCopy`."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def lookup_object(self, index: MetadataIndex) -> Any:
        """The tensor of a piece that this rank writes."""
        found = self.state_dict[index.fqn]
        return found.local if isinstance(found, ShardCopy) else super().lookup_object(index)


class SafetensorsWriter(StorageWriter):
    """Writes one checkpoint below a folder.

    Args:
        folder: Made if absent.
        record_file: Name of the JSON file, written last, by the coordinator.
        record: Its content beside the index.
    """

    def __init__(self, folder: Path, record_file: str, record: Mapping[str, Any]) -> None:
        self._folder = folder
        self._record_file = record_file
        self._record = dict(record)
        self.files: list[str] = []
        """Names of all ranks' files; filled on the coordinator, at the end."""

    def reset(self, checkpoint_id: Any = None) -> None:
        """Nothing is kept from an earlier save."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Make the folder, if it is not there."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise storage_error(error, self._folder) from error

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """As planned."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Tell each rank the ending of its files' names."""
        count = len(plans)
        suffixes = [""] if count == 1 else [f"-{rank + 1:05d}-of-{count:05d}" for rank in range(count)]
        return [replace(plan, storage_data=suffix) for plan, suffix in zip(plans, suffixes, strict=True)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """This rank's pieces, one file for each part."""
        files: dict[str, dict[str, Tensor]] = {}
        results = []
        for item in plan.items:
            part, _, _ = item.index.fqn.partition("/")
            file = f"{part}{plan.storage_data}.safetensors"
            tensor = planner.resolve_data(item)
            if not isinstance(tensor, Tensor):
                raise InternalError(f"{item.index.fqn} is no tensor: a checkpoint holds nothing else")
            # A tensor may be a view of a larger storage or not contiguous, which the format refuses.
            plain = tensor.detach().contiguous().cpu()
            files.setdefault(file, {})[_key(item)] = plain
            results.append(WriteResult(item.index, plain.numel() * plain.element_size(), file))
        for file, tensors in files.items():
            write_whole(self._folder / file, _saver(tensors))
        done: Future[list[WriteResult]] = _done(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """The index, once every rank's files are there. Files of an earlier save are removed after it."""
        places = {result.index: result.storage_data for rank in results for result in rank}
        tensors = {name: _describe(name, entry, places) for name, entry in metadata.state_dict_metadata.items()}
        text = json.dumps(self._record | {INDEX: tensors}, indent=1)
        self.files = [*sorted(set(places.values())), self._record_file]
        write_whole(self._folder / self._record_file, lambda path: _write_text(path, text))
        for path in self._folder.glob("*.safetensors"):
            if path.name not in self.files:
                path.unlink()

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Never asked: this writer is always named, not searched for."""
        return False


class SafetensorsReader(StorageReader):
    """Reads what a `SafetensorsWriter` wrote, on any number of ranks."""

    def __init__(self, folder: Path, metadata: Metadata) -> None:
        self._folder = folder
        self._metadata = metadata

    def reset(self, checkpoint_id: Any = None) -> None:
        """Nothing is kept from an earlier load."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The index given: it was read before, so that faults in it are told in full."""
        return self._metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing to prepare."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """As planned."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """As planned."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """The pieces that this rank needs, file by file."""
        by_file: dict[str, list[ReadItem]] = {}
        for item in plan.items:
            by_file.setdefault(self._metadata.storage_data[item.storage_index], []).append(item)
        for file, items in by_file.items():
            try:
                with safe_open(self._folder / file, framework="pt") as opened:
                    for item in items:
                        self._read(opened, item, planner)
            except (SafetensorError, OSError) as error:
                raise CorruptDataError(f"{str(self._folder / file)!r} is damaged: {error}", file=file) from error
        done: Future[None] = _done(None)
        return done

    def _read(self, opened: Any, item: ReadItem, planner: LoadPlanner) -> None:
        index = item.storage_index
        entry = self._metadata.state_dict_metadata[index.fqn]
        assert isinstance(entry, TensorStorageMetadata)
        shape = next(chunk.sizes for chunk in entry.chunks if chunk.offsets == index.offset)
        key = _piece_key(index, whole=shape == entry.size)
        if shape == item.lengths:  # also a scalar, which has no slice
            piece = opened.get_tensor(key)
        else:
            corners = zip(item.storage_offsets, item.lengths, strict=True)
            piece = opened.get_slice(key)[tuple(slice(start, start + length) for start, length in corners)]
        target = planner.resolve_tensor(item).detach()
        target.copy_(piece)
        planner.commit_tensor(item, target)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Never asked: this reader is always named, not searched for."""
        return False


def metadata_of(record: Record) -> Metadata:
    """DCP's view of a record's index. Raises KeyError, TypeError, ValueError or AttributeError on a damaged one."""
    entries: dict[str, STORAGE_TYPES] = {}
    places: dict[MetadataIndex, str] = {}
    for name, entry in record[INDEX].items():
        chunks = [ChunkStorageMetadata(torch.Size(c["offset"]), torch.Size(c["shape"])) for c in entry["chunks"]]
        dtype = getattr(torch, entry["dtype"])
        entries[name] = TensorStorageMetadata(TensorProperties(dtype=dtype), torch.Size(entry["shape"]), chunks)
        places |= {MetadataIndex(name, c["offset"]): str(c["file"]) for c in entry["chunks"]}
    return Metadata(entries, storage_data=places)


def _describe(name: str, entry: Any, places: Mapping[MetadataIndex, str]) -> Record:
    return {
        "dtype": str(entry.properties.dtype).removeprefix("torch."),
        "shape": list(entry.size),
        "chunks": [
            {
                "offset": list(chunk.offsets),
                "shape": list(chunk.sizes),
                "file": places[MetadataIndex(name, chunk.offsets)],
            }
            for chunk in entry.chunks
        ],
    }


def _key(item: WriteItem) -> str:
    data = item.tensor_data
    assert data is not None
    return _piece_key(item.index, whole=data.chunk.sizes == data.size)


def _piece_key(index: MetadataIndex, *, whole: bool) -> str:
    _, _, name = index.fqn.partition("/")
    return name if whole else f"{name}@{','.join(map(str, index.offset or ()))}"


def _saver(tensors: Mapping[str, Tensor]) -> Callable[[Path], None]:
    return lambda path: save_file(dict(tensors), path)


def _write_text(path: Path, text: str) -> None:
    path.write_text(text + "\n")


def _done(value: Any) -> Any:
    future: Future[Any] = Future()
    future.set_result(value)
    return future
