"""`argosy reward try`, as a user types it."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest

from argosy.cli.main import main
from argosy.reward.verifiers import known_sources


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["reward", "try", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_it_says_the_score_and_the_rule(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(
        capsys, "--source", "lighteval/MATH", "--truth", r"2\sqrt{3}", "--response", r"\boxed{\sqrt{12}}"
    )
    lines = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert code == 0
    assert (lines["score"], lines["rule"], lines["marker"], lines["pred"]) == ("1", "value", "boxed", r"\sqrt{12}")
    code, out, _ = run(capsys, "--source", "lighteval/MATH", "--truth", "5", "--response", "no idea")
    assert code == 0
    assert "score     0\n" in out
    assert "rule      no answer" in out


def test_it_has_the_limits_of_workers(capsys: pytest.CaptureFixture[str]) -> None:
    hangs = r"\boxed{\sin^{-1}(\sqrt{\cos(x^{9}+\ln(y+x)) + \ln(\sin(y^{8}))}) \cdot \tan(x)^{7} + \sqrt{x+\sqrt{y}}}"
    code, out, _ = run(capsys, "--source", "lighteval/MATH", "--truth", r"\sin^{-1}(x)", "--response", hangs)
    assert code == 0
    assert "rule      costly" in out


def test_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--source", "math_dapo", "--truth", "34", "--response", "Answer: 35", "--json")
    report = json.loads(out)
    assert code == 0
    assert (report["kind"], report["score"], report["verifier"]) == ("scored", -1.0, "math_dapo")
    assert report["parts"]["acc"] == 0.0


def test_the_response_may_be_a_file_or_standard_input(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "response.txt"
    path.write_text("#### 58")
    assert "score     1" in run(capsys, "--source", "gsm8k", "--truth", "58", "--file", str(path))[1]
    for arguments in ((), ("--file", "-")):
        monkeypatch.setattr("sys.stdin", io.StringIO("#### 57"))
        assert "score     0" in run(capsys, "--source", "gsm8k", "--truth", "58", *arguments)[1]


def test_truth_and_extra_info_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(
        capsys,
        *(
            "--source",
            "searchR1_nq",
            "--truth-json",
            '{"target": ["Big Ben"]}',
            "--response",
            "<answer>big ben</answer>",
        ),
        *("--extra", '{"reward_kwargs": {"penalties": {"length": {"longest": 10, "buffer": 0}}}}'),
    )
    assert code == 0
    assert "score     0\n" in out
    assert "penalty_length -1" in out


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--source", "openai/gsm9k", "--truth", "5"), 2, "did you mean openai/gsm8k"),
        (("--truth", "5"), 2, "--source NAME"),
        (("--source", "gsm8k"), 2, "--truth TEXT and --truth-json JSON"),
        (("--source", "gsm8k", "--truth", "5", "--truth-json", "5"), 2, "give one of"),
        (("--source", "gsm8k", "--truth-json", "{"), 2, "--truth-json is no JSON"),
        (("--source", "gsm8k", "--truth", "5", "--extra", "[]"), 2, "--extra must be a JSON object"),
        (("--source", "gsm8k", "--truth", "5", "--file", "/no/such/file"), 2, "can't read the response"),
    ],
)
def test_wrong_arguments_are_told(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, said: str
) -> None:
    given = arguments if "--file" in arguments else (*arguments, "--response", "5")
    found, _, err = run(capsys, *given)
    assert found == code
    assert said in err


def test_a_failed_verifier_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--source", "gsm8k", "--truth", "see figure 3", "--response", "3")
    assert code == 1
    assert "failed    bad_ground_truth" in out


def test_the_list_has_every_source(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--list")
    assert code == 0
    assert {line.split()[0] for line in out.splitlines()[1:]} == set(known_sources())
    assert set(json.loads(run(capsys, "--list", "--json")[1])) == set(known_sources())


def test_code_says_what_held_it(capsys: pytest.CaptureFixture[str]) -> None:
    truth = '{"inputs": ["1"], "outputs": ["1"]}'
    code, out, _ = run(
        capsys, "--source", "apps", "--truth-json", truth, "--response", "```python\nprint(input())\n```"
    )
    assert code == 0
    assert re.search(r"^sandbox   isolated; .*control groups", out, re.MULTILINE)
