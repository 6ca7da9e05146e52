from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from argosy.cli import model as model_cli
from argosy.modeling.describe import describe_model, weight_files
from argosy.modeling.tiny import save_tiny_model
from argosy.types.errors import InvalidInputError


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    model_cli.add_parser(parser.add_subparsers())
    args = parser.parse_args(["model", *words])
    return int(args.func(args))


def test_numbers_are_those_of_the_model(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    for tied in (True, False):
        folder = save_tiny_model(tmp_path / str(tied), tied=tied)
        model = AutoModelForCausalLM.from_pretrained(folder)
        description = describe_model(folder)
        assert description.parameter_count == sum(parameter.numel() for parameter in model.parameters())
        assert description.tied is tied
        assert description.dtypes == {"float32": description.parameter_count}
        assert (description.vocab_size, description.hidden_size, description.layer_count) == (259, 64, 2)
        assert description.eos_token_ids == (2,)
        assert (description.has_tokenizer, description.has_chat_template, description.quantized) == (True, True, False)


def test_it_needs_no_torch(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "tiny")
    program = (
        "import sys; sys.modules['torch'] = None\nfrom pathlib import Path\n"
        f"from argosy.modeling.describe import describe_model\nprint(describe_model(Path({str(folder)!r})).vocab_size)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "259"


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="there is no model folder"):
        describe_model(tmp_path / "no")
    folder = save_tiny_model(tmp_path / "tiny")
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-10])
    with pytest.raises(InvalidInputError, match=rf"is cut short: {len(whole) - 10} bytes instead of {len(whole)}"):
        describe_model(folder)
    weights.write_bytes(b"\xff" * 100)
    with pytest.raises(InvalidInputError, match="is not a safetensors file"):
        describe_model(folder)
    weights.unlink()
    with pytest.raises(InvalidInputError, match=r"holds no \*\.safetensors"):
        describe_model(folder)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "x.safetensors"}}))
    with pytest.raises(InvalidInputError, match=r"lacks 1 of its weight files, the first is x\.safetensors"):
        weight_files(folder)
    (folder / "config.json").write_text("[")
    with pytest.raises(InvalidInputError, match=r"config\.json is not valid JSON"):
        describe_model(folder)
    (folder / "config.json").unlink()
    with pytest.raises(InvalidInputError, match=r"has no config\.json"):
        describe_model(folder)


def test_tiny_and_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "tiny")
    assert run("tiny", "--out", out, "--layers", "1", "--untied", "--json") == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["layer_count"], made["tied"], made["path"]) == (1, False, out)
    assert run("show", out) == 0
    shown = capsys.readouterr().out
    assert f"{made['parameter_count']:,}" in shown
    assert "chat template" in shown
    with pytest.raises(InvalidInputError, match="already holds something"):
        run("tiny", "--out", out)
    with pytest.raises(InvalidInputError, match="must be an even multiple of --heads 3"):
        run("tiny", "--out", f"{out}2", "--heads", "3")


def test_import_of_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save_tiny_model(tmp_path / "tiny")
    assert run("import", str(folder), "--out", str(tmp_path / "out"), "--json") == 0
    assert json.loads(capsys.readouterr().out)["path"] == str(tmp_path / "out")
    assert run("import", str(folder), "--out", str(tmp_path / "out")) == 0
    assert "is there already and complete" in " ".join(capsys.readouterr().err.split())
