"""TrajectoryBatch: the training data of a step as Arrow columns, ragged, matched by sample id and never by position."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from argosy.types.ids import SampleId
from argosy.types.ragged import Ragged

_ELEMENT_TYPES = {
    "prompt_ids": pa.int32(),
    "response_ids": pa.int32(),
    "response_mask": pa.int8(),
}
"""Ragged columns that aren't float32."""


@dataclass(frozen=True, slots=True, eq=False)
class TrajectoryBatch:
    """B trajectories. Always there: sample_id, prompt_ids, response_ids, response_mask. The rest come as stages run.

    | column             | Arrow type      | meaning                                                             |
    |--------------------|-----------------|---------------------------------------------------------------------|
    | sample_id          | string          | str(SampleId)                                                       |
    | prompt_ids         | list<int32>     | exactly as sent                                                     |
    | response_ids       | list<int32>     | exactly as sampled                                                  |
    | response_mask      | list<int8>      | 1 = sampled by the policy and trained; 0 = tool, user, masked       |
    | rollout_log_probs  | list<float32>   | of the distribution really sampled from                             |
    | old_log_probs      | list<float32>   | the trainer's own, before the update                                |
    | ref_log_probs      | list<float32>   | the reference's                                                     |
    | advantages         | list<float32>   |                                                                     |
    | token_rewards      | list<float32>   | score on the last response token, KL-in-reward subtracted           |
    | values, returns    | list<float32>   | the critic's                                                        |
    | rollout_is_weights | list<float32>   | multiply the policy loss of each token: rollout correction          |
    | mini_batch_column  | list<float32>   | what a loss must know of the whole mini-batch (losses/mini_batch.py) |
    | score              | float64         | the outcome's score; NaN when abstained or failed                   |

    Ragged per-token columns (all but prompt_ids) have response_ids' lengths.
    """

    table: pa.Table

    @classmethod
    def build(
        cls,
        sample_ids: Iterable[SampleId],
        prompt_ids: Sequence[Sequence[int]],
        response_ids: Sequence[Sequence[int]],
        response_mask: Sequence[Sequence[int]] | Ragged | None = None,
        **columns: Ragged,
    ) -> TrajectoryBatch:
        """Make a batch from rows. Without a mask, every response token is trained."""
        responses = Ragged.from_rows(response_ids, np.int32)
        if response_mask is None:
            mask = Ragged(np.ones(len(responses.values), np.int8), responses.offsets)
        elif isinstance(response_mask, Ragged):
            mask = response_mask
        else:
            mask = Ragged.from_rows(response_mask, np.int8)
        names = pa.array([str(sample) for sample in sample_ids], pa.string())
        batch = cls(pa.table({"sample_id": names}))
        batch = batch.with_column("prompt_ids", Ragged.from_rows(prompt_ids, np.int32))
        batch = batch.with_column("response_ids", responses).with_column("response_mask", mask)
        for name, column in columns.items():
            batch = batch.with_column(name, column)
        return batch

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def sample_ids(self) -> list[SampleId]:
        """In row order."""
        return [SampleId.parse(text) for text in self.table.column("sample_id").to_pylist()]

    @property
    def columns(self) -> list[str]:
        """Names of the columns that are there."""
        return list(self.table.column_names)

    def has(self, name: str) -> bool:
        """Whether a column is there."""
        return name in self.table.column_names

    def ragged(self, name: str) -> Ragged:
        """A list column as numpy views, without a copy when the table is one chunk. Raises KeyError if absent."""
        if not self.has(name):
            raise KeyError(f"the batch has no column {name!r}; it has {self.columns}")
        column = self.table.column(name).combine_chunks()
        array = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
        offsets = array.offsets.to_numpy(zero_copy_only=True).astype(np.int64)
        values = array.values.to_numpy(zero_copy_only=True)
        return Ragged(values[offsets[0] : offsets[-1]], offsets - offsets[0])

    def scalars(self, name: str) -> np.ndarray[Any, Any]:
        """A plain column as numpy, [B]. Raises KeyError if absent."""
        if not self.has(name):
            raise KeyError(f"the batch has no column {name!r}; it has {self.columns}")
        return np.asarray(self.table.column(name).to_numpy())

    def with_column(self, name: str, column: Ragged) -> TrajectoryBatch:
        """A new batch with one ragged column added or replaced; per-token lengths are checked."""
        if len(column) != len(self):
            raise ValueError(f"column {name!r} has {len(column)} rows for a batch of {len(self)}")
        if name not in ("prompt_ids", "response_ids"):
            expected = self.ragged("response_ids").lengths
            if not np.array_equal(expected, column.lengths):
                raise ValueError(f"column {name!r} does not have the lengths of response_ids")
        kind = _ELEMENT_TYPES.get(name, pa.float32())
        values = pa.array(column.values.astype(kind.to_pandas_dtype(), copy=False), kind)
        return self._put(name, pa.ListArray.from_arrays(pa.array(column.offsets.astype(np.int32)), values))

    def with_scalars(self, name: str, values: Sequence[float] | np.ndarray[Any, Any]) -> TrajectoryBatch:
        """A new batch with one float64 column [B] added or replaced."""
        if len(values) != len(self):
            raise ValueError(f"column {name!r} has {len(values)} rows for a batch of {len(self)}")
        return self._put(name, pa.array(np.asarray(values, np.float64), pa.float64()))

    def with_rows(self, name: str, rows: Mapping[SampleId, Sequence[float] | np.ndarray[Any, Any]]) -> TrajectoryBatch:
        """A new batch with one float column given by sample id, in whatever order. Raises KeyError on a missing id."""
        samples = self.sample_ids
        missing = [str(sample) for sample in samples if sample not in rows]
        if missing:
            raise KeyError(f"column {name!r} lacks {len(missing)} samples, the first is {missing[0]}")
        return self.with_column(name, Ragged.from_rows([rows[sample] for sample in samples], np.float32))

    def select(self, indices: Sequence[int] | np.ndarray[Any, Any]) -> TrajectoryBatch:
        """The named rows, in the named order."""
        return TrajectoryBatch(self.table.take(pa.array(np.asarray(indices, np.int64))))

    def _put(self, name: str, array: pa.Array) -> TrajectoryBatch:
        if self.has(name):
            index = self.table.column_names.index(name)
            return TrajectoryBatch(self.table.set_column(index, name, array))
        return TrajectoryBatch(self.table.append_column(name, array))

    def to_ipc(self) -> bytes:
        """Arrow IPC stream bytes."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.table.schema) as writer:
            writer.write_table(self.table)
        return bytes(sink.getvalue())

    @classmethod
    def from_ipc(cls, data: bytes | memoryview) -> TrajectoryBatch:
        """Read Arrow IPC stream bytes. Raises pyarrow.ArrowInvalid on anything else."""
        with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
            return cls(reader.read_all())
