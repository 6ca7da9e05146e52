"""When a sample ends: stop ids, and stop strings that may lie across token boundaries.

The rules (cases D4 and D9):
  * EOS ids are the union of generation_config.json and config.json; `ignore_eos` switches those off, never
    `stop_token_ids`. The id that ends a sample is part of it.
  * Until `min_tokens` tokens are there, stop ids can't be sampled (the log-probs are of what is left) and a stop string
    that is completed by one of those tokens doesn't count.
  * Stop strings are looked for in the text without special tokens. The token that completes one stays in the ids with
    its log-prob; only the text is cut: before the stop string, or after it with `include_stop_str_in_output`. What the
    completing token holds beyond the stop string is not in the text.
"""

from __future__ import annotations

from collections.abc import Sequence

from argosy.rollout.engines.events import Decode

_INCOMPLETE = "\ufffd"
"""What a decoder writes for the bytes of a character that isn't whole yet."""


class TextTail:
    """The text of a growing token list; decodes only the last few tokens of it each time."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._context = 0
        self._settled_ids = 0
        self._settled = ""
        self._open = ""

    @property
    def text(self) -> str:
        """Everything decoded, without the bytes of an unfinished last character."""
        return self._settled + self._open

    def push(self, token_id: int) -> None:
        """Add one token."""
        self._ids.append(token_id)
        # Decoded together with the tokens before it: a token's text can depend on them (leading spaces, bytes).
        context = self._decode(self._ids[self._context : self._settled_ids])
        whole = self._decode(self._ids[self._context :])
        fresh = whole[len(context) :]
        if fresh.endswith(_INCOMPLETE):
            self._open = fresh.rstrip(_INCOMPLETE)
            return
        self._settled += fresh
        self._open = ""
        self._context = self._settled_ids
        self._settled_ids = len(self._ids)


class StopStrings:
    """Looks for stop strings in what a sample writes.

    >>> pieces = ["he", "llo!"]
    >>> stops = StopStrings(("lo",), lambda ids: "".join(pieces[i] for i in ids), include=False)
    >>> stops.push(0), stops.push(1), stops.text
    (False, True, 'hel')
    """

    def __init__(self, stops: Sequence[str], decode: Decode, *, include: bool, min_tokens: int = 0) -> None:
        self._stops = tuple(stops)
        self._tail = TextTail(decode)
        self._include = include
        self._min_tokens = min_tokens
        self._token_count = 0
        self._searched = 0
        self._cut: int | None = None

    @property
    def found(self) -> bool:
        """Whether a stop string was found."""
        return self._cut is not None

    @property
    def text(self) -> str:
        """The text, cut at the stop string if one was found."""
        return self._tail.text[: self._cut]

    def push(self, token_id: int) -> bool:
        """Add a token; True if it completes a stop string. Of several, the one that begins first counts."""
        self._tail.push(token_id)
        self._token_count += 1
        text, searched = self._tail.text, self._searched
        self._searched = len(text)
        if self._token_count <= self._min_tokens:
            return False
        # Only strings that end in the new text: earlier ones were seen, or came before min_tokens.
        found = [(text.find(stop, max(0, searched - len(stop) + 1)), stop) for stop in self._stops]
        found = [(place, stop) for place, stop in found if place >= 0]
        if not found:
            return False
        place, stop = min(found, key=lambda pair: pair[0])
        self._cut = place + (len(stop) if self._include else 0)
        return True
