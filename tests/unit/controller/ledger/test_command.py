"""`argosy ledger`, on a ledger of three steps with one sample of each fate, and of an abandoned lineage."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from argosy.cli.main import main
from argosy.controller.ledger import Ledger, LedgerCut, load_segment, lookup, rewind, segment_path
from argosy.controller.ledger.segments import Segment
from argosy.types.ids import PolicyVersion, SampleId
from argosy.types.records import Abstained, Completion, FinishReason, Scored, ScoreResult, VersionRun

WEIGHTS = [PolicyVersion("l0", step, f"{step:02d}" * 32) for step in range(4)]
FLAT = "dynamic sampling: same metric"


class Clock:
    now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


def sample(position: int, k: int = 0) -> SampleId:
    return SampleId(0, position, k)


def answer(ledger: Ledger, clock: Clock, one: SampleId, *versions: int, outcome: Any = None) -> None:
    ledger.dispatched([one], "rollout-1")
    clock.now += 2
    runs = tuple(VersionRun(WEIGHTS[version], 5) for version in versions)
    tokens = tuple(range(5 * len(versions)))
    ledger.completed([Completion(one, tokens, (0.0,) * len(tokens), runs, FinishReason.STOP)])
    clock.now += 1
    ledger.scored([ScoreResult(one, outcome or Scored(0.5))])


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """Step 1 trains two samples; step 2 drops one, and trains one that is two steps old and was sent out twice."""
    clock = Clock()
    books = Ledger(tmp_path / "ledger", term=1, clock=clock)
    books.drawn([(sample(0), 7), (sample(0, 1), 7), (sample(1), 9), (sample(2), 4), (sample(3), 5)])
    for one in (sample(0), sample(0, 1)):
        answer(books, clock, one, 0)
    books.trained([sample(0), sample(0, 1)], 1)
    books.commit_step(1, [sample(1).group, sample(2).group, sample(3).group])
    answer(books, clock, sample(1), 1, outcome=Abstained("empty"))
    books.dropped([sample(1)], FLAT)
    books.commit_step(2, [sample(2).group, sample(3).group])
    books.dispatched([sample(2)], "rollout-0")
    answer(books, clock, sample(2), 0, 2)
    clock.now += 4
    books.trained([sample(2)], 3)
    books.commit_step(3, [sample(3).group])
    yield books
    books.close()


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main(["ledger", *map(str, words)])
    out, err = capsys.readouterr()
    return code, out, err


def as_json(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    code, out, err = run(capsys, *words, "--json")
    assert code == 0, err
    return json.loads(out)


def test_the_summary_counts_everything(tmp_path: Path, ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, tmp_path)
    assert (found["first_step"], found["last_step"]) == (1, 3)
    assert found["finished"] == {"trained": 3, "dropped": 1}
    assert found["not_in_a_segment_yet"] == {"drawn": 1}
    assert found["drop_reasons"] == {FLAT: 1}
    assert found["servers"] == {"rollout-1": {"samples": 4, "tokens": 25}}
    assert found["staleness"] == {"0": 2, "2": 1}
    assert (found["redispatched"], found["several_versions"]) == (1, 1)
    assert found["seconds"]["from dispatched to completed"] == {"p50": 2.0, "p90": 2.0, "p99": 2.0, "max": 2.0}
    assert found["seconds"]["from drawn to trained"]["max"] == 16.0
    code, out, _ = run(capsys, tmp_path)
    assert code == 0
    for words in ("steps 1 to 3", "3 trained, 1 dropped", "1 drawn", FLAT, "rollout-1", "from scored to trained"):
        assert words in out


def test_the_life_of_one_sample(tmp_path: Path, ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, tmp_path, "--sample", "e0-p2-k0-a0")
    assert code == 0
    lines = [line.split(maxsplit=1)[1] if line.startswith("  ") else line for line in out.splitlines()]
    assert lines == [
        "e0-p2-k0-a0",
        "22:13:20.000 UTC  drawn (row 4 of the data)",
        "s  dispatched to rollout-1, the last of 2 times",
        "s  completed: 10 tokens, stop, weights l0@0#00000000 … l0@2#02020202",
        "s  judged: score 0.5",
        "s  trained at step 3, staleness 2",
    ]
    assert "dropped in step 2: dynamic sampling" in run(capsys, tmp_path, "--sample", "e0-p1-k0")[1]
    assert "judged: abstained: empty" in run(capsys, tmp_path, "--sample", "e0-p1-k0")[1]
    assert "drawn, in no step's segment yet" in run(capsys, tmp_path, "--sample", "e0-p3")[1]
    group = as_json(capsys, tmp_path, "--sample", "e0-p0")
    assert [(life["sample_id"], life["step"]) for life in group] == [("e0-p0-k0-a0", 1), ("e0-p0-k1-a0", 1)]


def test_a_life_that_was_given_up_is_shown_too(
    tmp_path: Path, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "ledger"
    kept = [entry for entry in ledger.in_flight() if entry.sample == sample(3)]
    cut = LedgerCut(2, load_segment(folder, 2).sha256)
    ledger.close()
    rewind(folder, cut, "l0")
    successor = Ledger(folder, term=2)
    successor.resume(cut, kept)
    lives = as_json(capsys, tmp_path, "--sample", "e0-p2")
    assert [(life["step"], life["abandoned"]) for life in lives] == [(3, "l0")]
    assert "of lineage l0, which a resume gave up" in run(capsys, tmp_path, "--sample", "e0-p2")[1]
    successor.close()


def test_a_search_reads_few_segments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    books = Ledger(tmp_path / "ledger", term=1)
    for step in range(1, 201):
        books.drawn([(sample(step), step)])
        books.trained([sample(step)], step)
        books.commit_step(step)
    books.close()
    read: list[int] = []

    def counted(folder: Path, step: int) -> Segment:
        read.append(step)
        return load_segment(folder, step)

    monkeypatch.setattr(lookup, "load_segment", counted)
    [life] = as_json(capsys, tmp_path, "--sample", "e0-p137")
    assert (life["step"], life["prompt_index"]) == (137, 137)
    assert len(read) <= 9


def test_a_step(tmp_path: Path, ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, tmp_path, "--step", 3)
    assert found["counts"] == {"trained": 1}
    assert [row["sample_id"] for row in found["samples"]] == ["e0-p2-k0-a0"]
    assert "1 dropped; 2 in flight" in run(capsys, tmp_path, "--step", 2)[1]
    code, _, err = run(capsys, tmp_path, "--step", 9)
    assert (code, "has no step 9; it has steps 1 to 3" in err) == (2, True)


def test_check_tells_by_its_exit_code(tmp_path: Path, ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, tmp_path, "--check")
    assert (code, "✓ 3 segments, 4 samples" in out, "1 were in flight" in out) == (0, True, True)
    path = segment_path(tmp_path / "ledger", 2)
    path.write_bytes(path.read_bytes()[:-1])
    code, out, _ = run(capsys, tmp_path, "--check")
    assert code == 1
    assert "✗ ledger segment" in out
    assert "step_00000002" in out
    assert json.loads(run(capsys, tmp_path, "--check", "--json")[1])["fault_count"] == 1
    code, _, err = run(capsys, tmp_path)
    assert (code, "step_00000002" in err) == (1, True)


def test_a_wrong_path_says_what_was_meant(tmp_path: Path, ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, tmp_path / "ledger", "--check")[0] == 0, "its own folder"
    checkpoint = tmp_path / "global_step_2"
    checkpoint.mkdir()
    assert run(capsys, checkpoint, "--step", 2)[0] == 0
    (tmp_path / "projects" / "one").mkdir(parents=True)
    (tmp_path / "ledger").rename(tmp_path / "projects" / "one" / "ledger")
    code, _, err = run(capsys, tmp_path / "projects")
    assert code == 2
    assert f"did you mean {tmp_path}/projects/one?" in err
    code, _, err = run(capsys, tmp_path)
    assert (code, f"did you mean {tmp_path}/projects/one?" in err) == (2, True)
    code, _, err = run(capsys, tmp_path / "nowhere")
    assert (code, "there is no folder" in err) == (2, True)
    code, _, err = run(capsys, tmp_path / "projects" / "one", "--sample", "e0-p99")
    assert (code, "knows no sample e0-p99" in err) == (2, True)
    code, _, err = run(capsys, tmp_path / "projects" / "one", "--sample", "42")
    assert (code, "looks like e0-p12-k3-a0" in err) == (2, True)
