"""PromptSampler: which prompts come next, so that a resumed run draws exactly what the unbroken one would (case C13).

The order is a pure function of (seed, data epoch): nothing is carried but a place in it. The rules (cases C9, C10):

- A batch never crosses a data epoch. Prompts left over at the end of one, fewer than a batch, are not drawn in it, as
  in verl; with shuffling, other ones are left over in each data epoch.
- A dataset smaller than one batch is refused at start: a run must not end "finished" after 0 steps.
- Validation reads every prompt once, the last batch being smaller; nothing is padded or repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from argosy.controller.data.prompts import PromptSource
from argosy.types.errors import InvalidInputError
from argosy.types.ids import GroupId
from argosy.types.records import Prompt

_STATE_FORMAT = 1


class PromptSampler:
    """Draws batches of prompts, data epoch after data epoch, without end."""

    def __init__(self, source: PromptSource, batch_size: int, *, shuffle: bool = True, seed: int = 0) -> None:
        """Start before the first prompt of data epoch 0.

        Args:
            source: The prompts.
            batch_size: Prompts per batch (`data.gen_batch_size`, else `data.train_batch_size`).
            shuffle: A new order in each data epoch; otherwise file order.
            seed: Of the orders.

        Raises:
            InvalidInputError: Fewer prompts than one batch; the message names all numbers.
        """
        if batch_size < 1:
            raise InvalidInputError(f"data.train_batch_size must be at least 1, got {batch_size}")
        if len(source) < batch_size:
            dropped = source.dropped_count
            left_out = f" ({dropped} more were left out as too long)" if dropped else ""
            raise InvalidInputError(
                f"{source.name} has {len(source)} prompts{left_out}, fewer than one batch of {batch_size}: not one "
                f"step could be made; add rows, or set data.train_batch_size to at most {len(source)}"
            )
        self._source = source
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._seed = seed
        self._data_epoch = 0
        self._position = 0
        self._order_of: tuple[int, npt.NDArray[np.int64]] | None = None

    def of_each_kind(self) -> list[Prompt]:
        """A few prompts of each data source, for a trial of those that judge them."""
        return self._source.of_each_kind()

    @property
    def batch_size(self) -> int:
        """Prompts per batch."""
        return self._batch_size

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in a data epoch, ≥ 1."""
        return len(self._source) // self._batch_size

    @property
    def data_epoch(self) -> int:
        """Data epoch of the next batch."""
        return self._next()[0]

    def first_prompts(self, count: int) -> list[Prompt]:
        """The dataset's first prompts, at most `count`, whatever has been drawn; draws nothing."""
        return [self._source.prompt(place, GroupId(0, place)) for place in range(min(count, len(self._source)))]

    def next_batch(self) -> list[Prompt]:
        """The next `batch_size` prompts; their group ids say where in which data epoch they were drawn."""
        data_epoch, position = self._next()
        order = self._order(data_epoch)
        batch = [
            self._source.prompt(int(order[place]), GroupId(data_epoch, place))
            for place in range(position, position + self._batch_size)
        ]
        self._data_epoch, self._position = data_epoch, position + self._batch_size
        return batch

    def next_prompt(self) -> Prompt:
        """The next prompt by itself, in the same order: those that `next_batch` never draws are left out here too."""
        data_epoch, position = self._next_one()
        self._data_epoch, self._position = data_epoch, position + 1
        return self._source.prompt(int(self._order(data_epoch)[position]), GroupId(data_epoch, position))

    @property
    def next_data_epoch(self) -> int:
        """Data epoch of the next prompt."""
        return self._next_one()[0]

    def _next_one(self) -> tuple[int, int]:
        if self._position >= self.steps_per_epoch * self._batch_size:
            return self._data_epoch + 1, 0
        return self._data_epoch, self._position

    def prompt(self, group: GroupId) -> Prompt:
        """The prompt that `group` names, drawn or not: a resumed run dispatches again what was in flight.

        Raises InvalidInputError if the data epoch has no such position.
        """
        if not 0 <= group.position < len(self._source) or group.data_epoch < 0:
            raise InvalidInputError(f"{self._source.name} has no group {group}: it has {len(self._source)} prompts")
        return self._source.prompt(int(self._order(group.data_epoch)[group.position]), group)

    def state(self) -> dict[str, Any]:
        """Everything that `restore` needs, as JSON values."""
        return {
            "format": _STATE_FORMAT,
            "data_epoch": self._data_epoch,
            "position": self._position,
            "seed": self._seed,
            "shuffle": self._shuffle,
            "prompt_count": len(self._source),
            "digest": self._source.digest,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken. The batch size may differ: the place is counted in prompts.

        Raises:
            InvalidInputError: The state is of another order (other data, seed or shuffle): going on would repeat some
                prompts and skip others without a word.
        """
        expected = self.state()
        lacking = sorted(expected.keys() - state.keys())
        if lacking:
            raise InvalidInputError(f"the sampler's saved state lacks {', '.join(lacking)}")
        names = ("format", "prompt_count", "digest", "seed", "shuffle")
        changed = [
            f"{name} was {state[name]!r}, is {own!r}" for name in names if state[name] != (own := expected[name])
        ]
        if changed:
            raise InvalidInputError(
                f"{self._source.name} does not have the order that the checkpoint knows ({'; '.join(changed)}); "
                "give the same files, tokenizer, data.seed, data.shuffle and length limits, or start a new run"
            )
        position = int(state["position"])
        if not 0 <= position <= len(self._source) or int(state["data_epoch"]) < 0:
            raise InvalidInputError(f"the saved position {position} is outside the {len(self._source)} prompts")
        self._data_epoch, self._position = int(state["data_epoch"]), position

    def _next(self) -> tuple[int, int]:
        """Data epoch and position of the next batch."""
        if self._position + self._batch_size > len(self._source):
            return self._data_epoch + 1, 0
        return self._data_epoch, self._position

    def _order(self, data_epoch: int) -> npt.NDArray[np.int64]:
        if self._order_of is None or self._order_of[0] != data_epoch:
            self._order_of = (data_epoch, self._make_order(data_epoch))
        return self._order_of[1]

    def _make_order(self, data_epoch: int) -> npt.NDArray[np.int64]:
        if not self._shuffle:
            return np.arange(len(self._source), dtype=np.int64)
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence((self._seed, data_epoch))))
        return generator.permutation(len(self._source)).astype(np.int64)


def validation_batches(source: PromptSource, batch_size: int | None = None) -> Iterator[list[Prompt]]:
    """Every prompt exactly once, in file order; the last batch may be smaller. None or ≤ 0: one batch of all."""
    size = len(source) if batch_size is None or batch_size < 1 else batch_size
    batch: list[Prompt] = []
    for prompt in source.in_order():
        batch.append(prompt)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
