"""Frames over pipes, records as plain values, and the choice among faults."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.modeling.loading import ModelSource
from argosy.modeling.microbatch import MicroBatchLimit
from argosy.trainer.options import FsdpOptions, LoraOptions, OptimizerOptions, TrainerOptions
from argosy.trainer.parallel.mesh import ParallelOptions
from argosy.trainer.ranks.commands import most, sum_shares
from argosy.trainer.ranks.faults import Fault, first_cause
from argosy.trainer.ranks.framing import Frame, FrameReader, Incoming, Outgoing
from argosy.trainer.ranks.records import from_plain, to_plain
from argosy.trainer.schedule import Schedule
from argosy.types.errors import DeadlineError, InternalError
from argosy.types.records import GlobalNormalizer, LossConfig


@settings(deadline=None, max_examples=40)
@given(
    bodies=st.lists(st.binary(max_size=300), max_size=4),
    cuts=st.lists(st.integers(1, 40), min_size=1, max_size=8),
)
def test_frames_arrive_whole_however_the_bytes_are_cut(bodies: list[bytes], cuts: list[int]) -> None:
    sent = [Frame({"number": place, "x": [1.5, None, "ü"]}, body) for place, body in enumerate(bodies)]
    data = b"".join(piece for frame in sent for piece in frame.encode())
    reader, found, place = FrameReader(), [], 0
    for step in range(len(data)):
        size = cuts[step % len(cuts)]
        found += reader.feed(data[place : place + size])
        place += size
    assert found == sent


def test_frames_cross_a_pipe_that_holds_less_than_one() -> None:
    read, write = os.pipe()
    outgoing, incoming = Outgoing(write), Incoming(read)
    with pytest.raises(DeadlineError, match="not read within"):
        outgoing.send(Frame({}, bytes(1 << 20)), 0.05)
    os.close(read)
    with pytest.raises(BrokenPipeError):
        outgoing.send(Frame({}), 0.05)
    outgoing.close()
    read, write = os.pipe()
    outgoing, incoming = Outgoing(write), Incoming(read)
    outgoing.send(Frame({"a": math.inf}, b"x"), 1.0)
    outgoing.close()
    assert incoming.receive() == Frame({"a": math.inf}, b"x")
    assert incoming.receive() is None
    os.close(read)


@pytest.mark.parametrize(
    "data", [struct.pack("<IQ", 2**31, 0), struct.pack("<IQ", 0, 2**62), struct.pack("<IQ", 2, 0) + b"[]"]
)
def test_nonsense_is_refused_before_memory_is_taken(data: bytes) -> None:
    with pytest.raises(InternalError, match="a message between ranks"):
        FrameReader().feed(data)


OPTIONS = TrainerOptions(
    ModelSource("m", device="cpu", override_config={"a": [1, {"b": None}]}),
    tokenizer_path="t",
    backend="fsdp",
    update_limit=MicroBatchLimit(max_sequences=3),
    optimizer=OptimizerOptions(Schedule(1e-3, warmup_steps=2), betas=(0.8, 0.9), grad_clip=0.5),
    parallel=ParallelOptions(4, tensor_parallel=2),
    fsdp=FsdpOptions(2, reshard_after_forward=False),
)
LORA = LoraOptions(rank=2, target_modules=("q_proj", "v_proj"))
LOSS = LossConfig(loss_mode="dppo_tv", options={"a": 0.5, "b": "x", "c": True}, loss_scale_factor=3.0)


@pytest.mark.parametrize(
    "record",
    [OPTIONS, dataclasses.replace(OPTIONS, lora=LORA), LOSS, LossConfig(), GlobalNormalizer(3.0, 2.0)],
    ids=lambda record: type(record).__name__,
)
def test_records_survive_json(record: object) -> None:
    assert from_plain(type(record), json.loads(json.dumps(to_plain(record)))) == record


def test_shares_add_up_and_the_largest_is_found() -> None:
    assert sum_shares([{"a": 1.0, "b": 2.0}, {}, {"a": 0.5}]) == {"a": 1.5, "b": 2.0}
    assert most([{"a": 1.0}, {"a": 3.0, "b": 0.0}]) == {"a": 3.0, "b": 0.0}


def fault(rank: int, time: float, **fields: object) -> Fault:
    return dataclasses.replace(Fault(rank, time, "ValueError", "x"), **fields)  # type: ignore[arg-type]


def test_e12_the_cause_is_told_from_its_consequences() -> None:
    own, broken = fault(1, 5.0), fault(0, 4.0, in_collective=True)
    killed, aborted = fault(2, 6.0, by_signal=signal.SIGKILL), fault(3, 1.0, by_signal=signal.SIGABRT)
    assert first_cause([broken, own]) is own
    assert first_cause([own, broken, killed]) is killed
    assert first_cause([aborted, own]) is own
    assert first_cause([fault(1, 5.0), earlier := fault(0, 4.5)]) is earlier
    assert first_cause([broken]) is broken
