"""PromptSource: a dataset templated once, filtered and cut by the very ids that are sent (case C11)."""

from __future__ import annotations

import hashlib
import logging
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from argosy.controller.data.files import resolve_files
from argosy.controller.data.kinds import Kind, kind_of
from argosy.controller.data.progress import progress_over
from argosy.controller.data.rows import DataRow, Dataset
from argosy.controller.data.templating import templated
from argosy.controller.data.tokenizer import tokenizer_of
from argosy.controller.data.truncation import TRUNCATIONS, truncate
from argosy.types.errors import ConfigError, InvalidInputError
from argosy.types.ids import GroupId
from argosy.types.ragged import Ragged
from argosy.types.records import Prompt

if TYPE_CHECKING:
    from argosy.config import Config
    from argosy.controller.agents.plan import AgentPlan
    from argosy.text import TextTokenizer

__all__ = ["PromptOptions", "PromptSource", "build_prompts", "load_prompts", "options_of", "tokenizer_of"]

_log = logging.getLogger(__name__)
_CHUNK_ROWS = 1024
"""Rows templated before the tokenizer, which works on many threads, gets them."""


@dataclass(frozen=True, slots=True)
class PromptOptions:
    """What becomes of a dataset's rows; names as in verl's `data` section."""

    files: tuple[str, ...]
    name: str = "data.train_files"
    """The key that named the files, for messages."""
    prompt_key: str = "prompt"
    reward_fn_key: str = "data_source"
    max_prompt_length: int = 512
    """Most tokens of a templated prompt; one of exactly this length stays."""
    filter_overlong_prompts: bool = False
    """Leave longer prompts out (their count is logged), before `truncation` could apply."""
    truncation: str = "error"
    """What to do with longer prompts that are not filtered: "error" refuses the dataset at start, "left" keeps the last
    tokens, "right" the first, "middle" cuts the middle out."""
    max_samples: int = -1
    """Use only so many rows, before the filter: the first ones, or a seeded draw if `shuffle`; -1 uses all."""
    shuffle: bool = False
    seed: int = 0
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Further variables for the chat template (`data.apply_chat_template_kwargs`)."""
    agents: AgentPlan | None = None
    """Which agent loops answer, and the tools that they offer; None: the prompts are answered once, without."""

    def __post_init__(self) -> None:
        if self.truncation not in TRUNCATIONS:
            raise ConfigError(f"data.truncation must be one of {', '.join(TRUNCATIONS)}, got {self.truncation!r}")
        if self.max_prompt_length < 1:
            raise ConfigError(f"data.max_prompt_length must be at least 1, got {self.max_prompt_length}")


class PromptSource:
    """Prompts of one split, in file order. Ids are held as one int32 array; the rest is decoded when asked for."""

    def __init__(
        self,
        dataset: Dataset,
        tokenizer: TextTokenizer,
        ids: Ragged,
        row_numbers: npt.NDArray[np.int64],
        *,
        full_lengths: npt.NDArray[np.int64],
        dropped_count: int,
        options: PromptOptions,
    ) -> None:
        self._dataset = dataset
        self._tokenizer = tokenizer
        self._options = options
        self.ids = ids
        """Token ids as they are sent, P rows."""
        self.row_numbers = row_numbers
        """Dataset row of each prompt, [P]."""
        self.full_lengths = full_lengths
        """Tokens of each templated prompt before any cut, [P]."""
        self.dropped_count = dropped_count
        """Rows left out because their prompt was too long."""
        self.name = dataset.name

    def __len__(self) -> int:
        return len(self.row_numbers)

    @property
    def truncated_count(self) -> int:
        """Prompts that lost tokens."""
        return int(np.count_nonzero(self.full_lengths != self.ids.lengths))

    @cached_property
    def digest(self) -> str:
        """Names the prompts and their order, so that a resume with other data is noticed."""
        digest = hashlib.blake2b(digest_size=16)
        for part in (self.ids.values, self.ids.offsets, self.row_numbers):
            digest.update(np.ascontiguousarray(part).tobytes())
        return digest.hexdigest()

    def data_sources(self) -> set[str]:
        """Names of all scorers that these prompts ask for. Decodes every row once."""
        return {source for source, _ in self._kinds}

    def of_each_kind(self) -> list[Prompt]:
        """Prompts of each data source and programming language, up to three: its first, second and last."""
        places = sorted({place for found in self._kinds.values() for place in found})
        return [self.prompt(place, GroupId(0, place)) for place in places]

    @cached_property
    def _kinds(self) -> dict[Kind, list[int]]:
        """Data source and language → up to three places."""
        place_of = {number: place for place, number in enumerate(self.row_numbers.tolist())}
        kinds: dict[Kind, list[int]] = {}
        for number, row in enumerate(self._dataset.rows()):
            if number in place_of:
                kind = kind_of(row.data_source, row.ground_truth, row.extra_info)
                places = kinds.setdefault(kind, [])
                del places[2:]
                places.append(place_of[number])
        return kinds

    def prompt(self, place: int, group: GroupId) -> Prompt:
        """The prompt at `place` (0 … P-1, in file order) as the record that is dispatched."""
        row_number = int(self.row_numbers[place])
        return self._record(self._dataset[row_number], place, group)

    def in_order(self) -> Iterator[Prompt]:
        """All prompts in file order, with group ids of data epoch 0: validation."""
        for place in range(len(self)):
            yield self.prompt(place, GroupId(0, place))

    def _record(self, row: DataRow, place: int, group: GroupId) -> Prompt:
        token_ids = tuple(self.ids[place].tolist())
        made = templated(row, self._options.agents, self.name)
        if self.full_lengths[place] == len(token_ids):
            text = made.render(self._tokenizer, self._options.template_kwargs)
        else:
            text = self._tokenizer.decode(token_ids, skip_special_tokens=False)
        return Prompt(
            group=group,
            token_ids=token_ids,
            data_source=row.data_source,
            ground_truth=row.ground_truth,
            extra_info=row.extra_info,
            text=text,
            index=int(self.row_numbers[place]),
            messages=made.messages,
            tools=made.tools,
            agent_name=made.agent_name,
        )


def load_prompts(
    cfg: Config, split: str, tokenizer: TextTokenizer | None = None, *, progress: bool = True
) -> PromptSource:
    """The prompts of `data.train_files` (split "train") or `data.val_files` (split "val").

    Args:
        cfg: The run's configuration.
        split: "train" or "val".
        tokenizer: That of `actor_rollout_ref.model`, if it is already loaded.
        progress: Show a bar while a big set is templated.

    Raises:
        InvalidInputError: Files, columns, rows, tokenizer or prompt lengths are wrong; the message says what to do.
    """
    if tokenizer is None:
        tokenizer = tokenizer_of(cfg)
    from argosy.controller.agents.plan import check_template, plan_of

    agents = plan_of(cfg)
    if agents is not None:
        check_template(agents, cfg, tokenizer)
    return build_prompts(replace(options_of(cfg, split), agents=agents), tokenizer, progress=progress)


def options_of(cfg: Config, split: str) -> PromptOptions:
    """The part of the configuration that shapes one split's prompts. Raises ValueError on another split's name."""
    if split not in ("train", "val"):
        raise ValueError(f"a split is 'train' or 'val', got {split!r}")
    data = cfg.data
    train = split == "train"
    files = data.train_files if train else data.val_files
    return PromptOptions(
        files=(files,) if isinstance(files, str) else tuple(files or ()),
        name=f"data.{split}_files",
        prompt_key=data.prompt_key,
        reward_fn_key=data.reward_fn_key,
        max_prompt_length=data.max_prompt_length,
        filter_overlong_prompts=data.filter_overlong_prompts,
        truncation=data.truncation,
        max_samples=data.train_max_samples if train else data.val_max_samples,
        shuffle=data.shuffle if train else data.validation_shuffle,
        seed=cfg.argosy.seed if data.seed is None else data.seed,
        template_kwargs=dict(data.apply_chat_template_kwargs or {}),
    )


def build_prompts(options: PromptOptions, tokenizer: TextTokenizer, *, progress: bool = False) -> PromptSource:
    """Read, template, filter and cut. Raises InvalidInputError as `load_prompts` does.

    Every row is looked at before the first is used, so that a bad one can't end a run at step 500.
    """
    dataset = Dataset(
        resolve_files(options.files, options.name),
        prompt_key=options.prompt_key,
        reward_fn_key=options.reward_fn_key,
        name=options.name,
    )
    chosen = _choose(len(dataset), options)
    every = _encode(dataset, tokenizer, options, progress)
    ids = every if len(chosen) == len(every) else every.take(chosen)
    return _fit(dataset, tokenizer, ids, chosen, options)


def _choose(row_count: int, options: PromptOptions) -> npt.NDArray[np.int64]:
    """Rows to use, ascending in file order, by `max_samples`."""
    if options.max_samples < 0 or options.max_samples >= row_count:
        return np.arange(row_count, dtype=np.int64)
    if options.max_samples == 0:
        raise ConfigError(f"{options.name}: the limit on samples is 0; use -1 for all rows")
    if not options.shuffle:
        return np.arange(options.max_samples, dtype=np.int64)
    drawn = np.random.default_rng(options.seed).choice(row_count, size=options.max_samples, replace=False)
    return np.sort(drawn).astype(np.int64)


def _encode(dataset: Dataset, tokenizer: TextTokenizer, options: PromptOptions, progress: bool) -> Ragged:
    """Ids of every row's templated prompt."""
    values = array("i")
    lengths = array("q")
    starts = range(0, len(dataset), _CHUNK_ROWS)
    for start in progress_over(starts, f"templating {dataset.name}", len(dataset), _CHUNK_ROWS, progress):
        texts = [
            templated(row, options.agents, f"{dataset.name}, row {number} (from 0)").render(
                tokenizer, options.template_kwargs
            )
            for number, row in enumerate(dataset.rows(start, start + _CHUNK_ROWS), start)
        ]
        for ids in tokenizer.encode_rendered_batch(texts):
            values.extend(ids)
            lengths.append(len(ids))
    return Ragged.from_lengths(np.frombuffer(values, np.int32) if values else np.zeros(0, np.int32), lengths)


def _fit(
    dataset: Dataset,
    tokenizer: TextTokenizer,
    ids: Ragged,
    row_numbers: npt.NDArray[np.int64],
    options: PromptOptions,
) -> PromptSource:
    """Apply the length limit."""
    lengths = ids.lengths
    limit = options.max_prompt_length
    overlong = np.flatnonzero(lengths > limit)
    dropped_count = 0
    if len(overlong) and options.filter_overlong_prompts:
        dropped_count = len(overlong)
        keep = np.flatnonzero(lengths <= limit)
        if len(keep) == 0:
            raise InvalidInputError(
                f"{options.name}: all {len(ids)} prompts are longer than data.max_prompt_length={limit} tokens (the "
                f"shortest has {int(lengths.min())}), so filter_overlong_prompts leaves none; raise the limit"
            )
        _log.warning(
            "%s: left out %d of %d prompts longer than %d tokens (the longest has %d)",
            *(options.name, dropped_count, len(ids), limit, int(lengths.max())),
        )
        ids, row_numbers, lengths = ids.take(keep), row_numbers[keep], lengths[keep]
    elif len(overlong):
        ids = _cut(ids, row_numbers, overlong, options)
    return PromptSource(
        dataset,
        tokenizer,
        ids,
        row_numbers,
        full_lengths=lengths,
        dropped_count=dropped_count,
        options=options,
    )


def _cut(ids: Ragged, row_numbers: npt.NDArray[np.int64], overlong: npt.NDArray[Any], options: PromptOptions) -> Ragged:
    limit = options.max_prompt_length
    if options.truncation == "error":
        first = int(overlong[0])
        raise InvalidInputError(
            f"{options.name}: {len(overlong)} of {len(ids)} prompts are longer than data.max_prompt_length={limit} "
            f"tokens, the first is row {int(row_numbers[first])} with {len(ids[first])}; raise the limit, set "
            "data.filter_overlong_prompts=true to leave them out, or data.truncation=left|right|middle to cut them"
        )
    how = options.truncation
    _log.warning("%s: cut %d of %d prompts to %d tokens (%s)", options.name, len(overlong), len(ids), limit, how)
    return Ragged.from_rows([truncate(row, limit, how) for row in ids], np.int32)
