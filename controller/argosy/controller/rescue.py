"""Newer weights than a checkpoint's, from a rollout server, for a trainer that was started again.

What a rollout server serves is the policy of the last finished step. Where nothing is under way between two steps, the
controller knows all else of that step; only the optimizer's state and the random states went with the trainer, and are
the checkpoint's. Together they are written down like a checkpoint of that step, which any trainer can load:

    .rescued/
        actor/…                   links to the checkpoint's files
        actor/rescued.safetensors the weights
        actor/trainer.json        which tensor is in which file, and the step
        controller.json           the controller's state of the step
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from argosy.controller.recovery import STATE, Checkpoint
from argosy.membership.interface import Membership
from argosy.rpc.clients.weights import GrpcWeightSource
from argosy.types.errors import ArgosyError, CorruptDataError, NotFoundError, storage_error
from argosy.types.records import MemberState, TensorSpec, WeightsManifest

log = logging.getLogger(__name__)

FOLDER = ".rescued"
_FILE, _INDEX = "rescued.safetensors", "trainer.json"
_DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "float64": "F64"}
"""As safetensors names them."""


async def rescue(membership: Membership, run_dir: Path, checkpoint: Checkpoint, state: Mapping[str, Any]) -> Checkpoint:
    """What the run can go on from in place of `checkpoint`.

    Args:
        membership: Of the run.
        run_dir: Its folder.
        checkpoint: The newest one.
        state: The controller's, of the last finished step.

    Raises:
        NotFoundError: no rollout server serves that step's weights.
        CorruptDataError: what came isn't what was to come.
        StorageError: it can't be written.
    """
    folder = run_dir / FOLDER
    member, source, manifest = await _holder(membership, str(state["lineage"]), int(state["step"]))
    try:
        _begin(folder, checkpoint)
        index = json.loads((checkpoint.actor / _INDEX).read_text())
        specs = _specs(manifest, index["tensors"])
        await _fetch(
            source, manifest, {spec.name: index["tensors"][f"model/{spec.name}"]["dtype"] for spec in specs}, folder
        )
        for spec in specs:
            whole = {"offset": [0] * len(spec.shape), "shape": list(spec.shape), "file": _FILE}
            index["tensors"][f"model/{spec.name}"]["chunks"] = [whole]
        index["step"] = int(state["step"])
        (folder / "actor" / _INDEX).write_text(json.dumps(index))
        (folder / STATE).write_text(json.dumps(dict(state)))
    except OSError as error:
        raise storage_error(error, folder) from error
    finally:
        await source.close()
    log.warning(
        "the weights of step %d come from %s, all else of the trainer from %s", state["step"], member, checkpoint.path
    )
    return Checkpoint(folder, int(state["step"]), checkpoint.run_id)


async def _holder(membership: Membership, lineage: str, step: int) -> tuple[str, GrpcWeightSource, WeightsManifest]:
    """A rollout server with the weights of a step. NotFoundError if there is none."""
    for member in await membership.members("rollout"):
        if member.state is not MemberState.READY:
            continue
        source = GrpcWeightSource(member.address)
        try:
            manifest = await source.get_manifest()
            if (manifest.version.lineage, manifest.version.step) == (lineage, step) and manifest.adapter is None:
                return member.member_id, source, manifest
        except ArgosyError as error:
            log.info("%s passes no weights on: %s", member.member_id, error)
        await source.close()
    raise NotFoundError(f"no rollout server serves the weights of {lineage}@{step}")


def _begin(folder: Path, checkpoint: Checkpoint) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "actor").mkdir(parents=True)
    for path in checkpoint.actor.iterdir():
        if path.name != _INDEX:
            try:
                os.link(path, folder / "actor" / path.name)
            except OSError:  # a file system without links
                shutil.copy(path, folder / "actor" / path.name)


def _specs(manifest: WeightsManifest, tensors: Mapping[str, Any]) -> list[TensorSpec]:
    """Of the tensors that come, those that the checkpoint's model has. CorruptDataError if it has others too, or in
    another shape."""
    found = [spec for spec in manifest.tensors if not spec.tied_to and f"model/{spec.name}" in tensors]
    trained = {name.removeprefix("model/") for name in tensors if name.startswith("model/")}
    lacking = trained - {spec.name for spec in found}
    unlike = [spec.name for spec in found if list(spec.shape) != tensors[f"model/{spec.name}"]["shape"]]
    if lacking or unlike:
        raise CorruptDataError(f"the server's weights don't fit the checkpoint: {sorted(lacking or unlike)[:3]}")
    return found


async def _fetch(source: GrpcWeightSource, manifest: WeightsManifest, dtypes: Mapping[str, str], folder: Path) -> None:
    """Write the named tensors, in the dtypes that the trainer keeps them in, as one safetensors file."""
    specs = {spec.name: spec for spec in manifest.tensors}
    header: dict[str, Any] = {}
    end = 0
    for name, dtype in dtypes.items():
        size = specs[name].size_bytes * _width(dtype) // _width(specs[name].dtype)
        header[name] = {"dtype": _DTYPES[dtype], "shape": list(specs[name].shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    sums = dict.fromkeys(dtypes, (0, 0))  # bytes so far, and their crc
    with (folder / "actor" / _FILE).open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        async for chunk in source.stream_weights(manifest.version, tuple(dtypes)):
            data = bytes(chunk.data)
            count, crc = sums[chunk.name]
            if chunk.offset != count or zlib.crc32(data) != chunk.checksum:
                raise CorruptDataError(f"a piece of {chunk.name} came damaged, or out of its turn")
            sums[chunk.name] = (count + len(data), zlib.crc32(data, crc))
            scale = _width(dtypes[chunk.name]) // _width(specs[chunk.name].dtype)
            place = 8 + len(text) + header[chunk.name]["data_offsets"][0] + chunk.offset * scale
            _write(file, place, _widened(data, specs[chunk.name].dtype, dtypes[chunk.name]))
    for name, (count, crc) in sums.items():
        if count != specs[name].size_bytes or f"{crc:08x}" != specs[name].checksum:
            raise CorruptDataError(f"{name} did not come whole: {count} of {specs[name].size_bytes} bytes")


def _write(file: BinaryIO, place: int, data: bytes) -> None:
    file.seek(place)
    file.write(data)


def _width(dtype: str) -> int:
    return {"float64": 8, "float32": 4}.get(dtype, 2)


def _widened(data: bytes, dtype: str, wanted: str) -> bytes:
    """Numbers of one type as another that holds all of them. CorruptDataError on any other pair."""
    if dtype == wanted:
        return data
    if (dtype, wanted) == ("bfloat16", "float32"):  # its upper half
        return (np.frombuffer(data, "<u2").astype("<u4") << 16).tobytes()
    raise CorruptDataError(f"weights came in {dtype}, which the trainer's {wanted} can't be made of")
