"""Shared memory for vLLM's workers: another process reads what was put in, and nothing stays behind."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from argosy.rollout.engines.vllm.segment import Segment
from argosy.types.errors import InvalidInputError, StorageError
from argosy.weightsync import memory

READ = """
import mmap, sys
with open(sys.argv[1], "rb") as file:
    memory = mmap.mmap(file.fileno(), int(sys.argv[2]), flags=mmap.MAP_PRIVATE)
sys.stdout.buffer.write(memory[int(sys.argv[3]) : int(sys.argv[3]) + int(sys.argv[4])])
"""


def test_another_process_reads_the_bytes_where_they_are_said_to_lie() -> None:
    segment = Segment()
    tensors = {"a": torch.arange(5, dtype=torch.bfloat16), "b": torch.arange(6.0).reshape(2, 3).t()}
    segment.fill(tensors)
    told = segment.update_info()
    name, dtype, shape, offset = told["tensors"][1]
    assert (name, dtype, shape, offset % 64) == ("b", "float32", [3, 2], 0)
    words = [told["path"], str(told["size"]), str(offset), "24"]
    found = subprocess.run([sys.executable, "-c", READ, *words], capture_output=True, check=True).stdout
    assert torch.equal(torch.frombuffer(bytearray(found), dtype=torch.float32).reshape(3, 2), tensors["b"])
    segment.close()


def test_memory_of_the_same_layout_is_used_again() -> None:
    segment = Segment()
    assert not segment.is_filled
    segment.fill({"a": torch.ones(4)})
    first = segment.update_info()
    segment.fill({"a": torch.full((4,), 2.0)})
    assert segment.update_info() == first
    assert segment.tensors()["a"].tolist() == [2.0] * 4
    segment.fill({"a": torch.ones(4000), "empty": torch.ones(0)})
    assert segment.update_info()["size"] > first["size"]
    assert {name: tensor.numel() for name, tensor in segment.tensors().items()} == {"a": 4000, "empty": 0}
    segment.close()
    assert segment.tensors() == {}


def test_without_memory_that_workers_could_map_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_SUPPORTED", False)
    segment = Segment()
    with pytest.raises(StorageError, match="memory file"):
        segment.fill({"a": torch.ones(4)})
    assert not segment.is_filled


def test_some_tensors_are_replaced_and_the_others_stay() -> None:
    segment = Segment()
    segment.fill({"a": torch.ones(4), "b": torch.ones(2, 2)})
    segment.replace({"b": torch.full((2, 2), 3.0)})
    assert {name: tensor.mean().item() for name, tensor in segment.tensors().items()} == {"a": 1, "b": 3}
    for wrong in ({"c": torch.ones(4)}, {"a": torch.ones(5)}):
        with pytest.raises(InvalidInputError, match="there is no tensor"):
            segment.replace(wrong)
    segment.close()
