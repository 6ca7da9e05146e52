from __future__ import annotations

from collections.abc import Sequence

import pytest

from argosy.rollout.engines.sampling.stops import StopStrings, TextTail

PIECES = ["he", "llo!", "END", "..", "...", "E", "ND"]


def decode(ids: Sequence[int]) -> str:
    return "".join(PIECES[token] for token in ids)


def feed(ids: Sequence[int], *stops: str, include: bool = False, min_tokens: int = 0) -> tuple[int, str]:
    """How many tokens were taken when it stopped (0: never), and the text."""
    checker = StopStrings(stops, decode, include=include, min_tokens=min_tokens)
    for count, token in enumerate(ids, 1):
        if checker.push(token):
            return count, checker.text
    return 0, checker.text


@pytest.mark.parametrize(("include", "text"), [(False, "hel"), (True, "hello")])
def test_d4_stop_inside_a_token(include: bool, text: str) -> None:
    assert feed([0, 1, 2], "lo", include=include) == (2, text)


@pytest.mark.parametrize(("include", "text"), [(False, "he"), (True, "he..")])
def test_d4_stop_is_a_part_of_one_token(include: bool, text: str) -> None:
    assert feed([0, 4, 1], "..", include=include) == (2, text)


def test_d4_stop_spread_over_two_tokens() -> None:
    assert feed([0, 5, 6, 1], "END") == (3, "he")
    assert feed([0, 5, 1, 6], "END") == (0, "heEllo!ND")


def test_d4_the_stop_that_begins_first_counts() -> None:
    assert feed([0, 2], "ND", "END") == (2, "he")
    assert feed([0, 2], "END", "ND") == (2, "he")


def test_min_tokens_ignores_what_came_before() -> None:
    assert feed([2, 0, 1], "END", min_tokens=1) == (0, "ENDhello!")
    assert feed([2, 0, 2], "END", min_tokens=1) == (3, "ENDhe")
    # A string that only ends after min_tokens counts, wherever it began.
    assert feed([5, 6], "END", min_tokens=1) == (2, "")


def test_text_of_characters_that_span_tokens() -> None:
    data = "a€b".encode()

    def decode_bytes(ids: Sequence[int]) -> str:
        return bytes(ids).decode(errors="replace")

    tail = TextTail(decode_bytes)
    seen = []
    for byte in data:
        tail.push(byte)
        seen.append(tail.text)
    assert seen == ["a", "a", "a", "a€", "a€b"]


def test_a_stop_before_an_unfinished_character_is_found_at_once() -> None:
    pieces = [b"ab", b"END\xe2\x82", b"\xac"]
    checker = StopStrings(
        ["END"], lambda ids: b"".join(pieces[token] for token in ids).decode(errors="replace"), include=False
    )
    assert not checker.push(0)
    assert checker.push(1)
    assert checker.text == "ab"


def test_context_dependent_decoding() -> None:
    """A decoder that drops the first token's leading space, as SentencePiece does."""

    def decode_pieces(ids: Sequence[int]) -> str:
        return "".join(["▁a", "▁b", "c"][token] for token in ids).replace("▁", " ").removeprefix(" ")

    tail = TextTail(decode_pieces)
    for token in (0, 1, 2, 0):
        tail.push(token)
    assert tail.text == decode_pieces([0, 1, 2, 0]) == "a bc a"
