"""The compiled passes: they say what the model's own code says, whatever shares the batch, and are optional."""

from __future__ import annotations

import asyncio
import math
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from argosy.modeling.loading import ModelSource
from argosy.modeling.tiny import save_tiny_model
from argosy.native import compiler as native_compiler
from argosy.native.compiler import COMPILERS, NativeSource, compiled, cpu_flags
from argosy.rollout.engines.hf.adapter import HfEngine
from argosy.rollout.engines.hf.loading import LoadedModel, adopt, load_module
from argosy.rollout.engines.hf.native import compiler
from argosy.rollout.engines.hf.native.compiler import load_library
from argosy.rollout.engines.hf.native.model import NativeDecoder
from argosy.rollout.engines.hf.runner import Runner
from argosy.rollout.engines.sampling.sampler import Settings, draw
from argosy.types.records import FinishReason
from unit.rollout.support import PROMPT, Open, answers, request, until_sampled
from unit.rollout.test_models import RUNNING, save

EXPORTS = ("argosy_scratch_size", "argosy_can_bf16", "argosy_run", "argosy_draw")
LIBRARY = load_library()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="needs a C++ compiler and a CPU with AVX-512")
ids = [[(17 * row + 7 * place) % 250 + 3 for place in range(3 + 11 * row % 40)] for row in range(21)]


@pytest.fixture
def native() -> bool:
    return True


def load(path: Path, dtype: str = "float32", native: bool = True, **options: Any) -> LoadedModel:
    return adopt(load_module(ModelSource(str(path), dtype=dtype, device="cpu", **options)), native_kernels=native)


def filled(model: LoadedModel, sequences: list[list[int]]) -> Runner:
    """A runner whose slots hold all but the last token of each sequence."""
    runner = Runner(model, slot_count=len(sequences), max_model_len=256)
    runner.slots.reserve(64)
    for slot, sequence in enumerate(sequences):
        fill = runner.begin(sequence[:-1])
        runner.prefill([fill])
        runner.slots.fill(slot, fill.store)
    return runner


def logits_of(model: LoadedModel, sequences: list[list[int]]) -> Tensor:
    runner = filled(model, sequences)
    return runner.decode([s[-1] for s in sequences], [len(s) - 1 for s in sequences]).float().clone()


NATIVE = ["llama", "llama, all heads", "qwen2", "qwen3, own head size", "mistral, window"]


@pytest.mark.parametrize("name", RUNNING)
def test_which_architectures_it_runs(tmp_path: Path, name: str) -> None:
    model = load(save(tmp_path, RUNNING[name]))
    assert (model.native is not None) == (name in NATIVE)


@pytest.mark.parametrize("name", NATIVE)
def test_equals_the_models_own_code(tmp_path: Path, name: str) -> None:
    folder = save(tmp_path, RUNNING[name])
    found = logits_of(load(folder), ids).log_softmax(-1)
    expected = logits_of(load(folder, native=False), ids).log_softmax(-1)
    assert torch.allclose(found, expected, atol=5e-5)


@pytest.mark.parametrize("name", NATIVE)
def test_bfloat16_is_as_near_to_float32_as_the_models_own_code(tmp_path: Path, name: str) -> None:
    folder = save(tmp_path, RUNNING[name])
    model = load(folder, "bfloat16")
    if model.native is None:
        pytest.skip("this CPU has no AMX")
    # The same rounded weights, computed with in float32.
    exact = load(folder, native=False)
    exact.module.load_state_dict({key: value.float() for key, value in model.module.state_dict().items()})
    expected = logits_of(exact, ids).log_softmax(-1)

    def error(found: LoadedModel) -> float:
        return float((logits_of(found, ids).log_softmax(-1) - expected).square().mean().sqrt())

    assert error(model) <= 1.2 * error(load(folder, "bfloat16", native=False))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_row_depends_on_neither_its_company_nor_the_threads(tiny: Path, dtype: str) -> None:
    model = load(tiny, dtype)
    if model.native is None:
        pytest.skip("this CPU has no AMX")
    together = logits_of(model, ids)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert torch.equal(logits_of(model, ids), together)
    finally:
        torch.set_num_threads(threads)
    for row in (0, 7, 20):
        assert torch.equal(logits_of(model, ids[row : row + 1])[0], together[row])


def test_a_prompt_in_pieces_gives_the_same_bits(tiny: Path) -> None:
    runner = Runner(load(tiny), slot_count=1, max_model_len=256)
    sequence = [(7 * place) % 250 for place in range(230)]
    whole, pieces = runner.begin(sequence), runner.begin(sequence)
    runner.prefill([whole])
    while pieces.remaining:
        runner.prefill([pieces], 37)
    assert torch.equal(whole.store, pieces.store)


def test_projections_are_held_once(tiny: Path) -> None:
    model = load(tiny)
    attention: Any = model.module.get_submodule("model.layers.0.self_attn")
    weights = [attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]
    assert len({weight.untyped_storage().data_ptr() for weight in weights}) == 1
    with torch.inference_mode():
        before = logits_of(model, ids)
        model.module.state_dict()["model.layers.1.self_attn.k_proj.weight"].mul_(2)
        assert not torch.equal(logits_of(model, ids), before)


@pytest.mark.parametrize("vocab_size", [17, 256, 259, 1000])
def test_draws_what_the_sampler_draws(vocab_size: int) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    rows = 21
    logits = torch.randn(rows, vocab_size, generator=generator) * 3
    logits[3, 5] = -math.inf
    uniforms = torch.rand(rows, generator=generator, dtype=torch.float64)
    settings = Settings(
        temperature=torch.rand(rows, generator=generator) + 0.5,
        greedy=torch.rand(rows, generator=generator) < 0.3,
    )
    for one in (settings, Settings(temperature=settings.temperature), Settings(greedy=settings.greedy), Settings()):
        tokens, log_probs = draw(logits.clone(), uniforms, one)
        found_tokens, found_log_probs = decoder_with(logits).draw(uniforms, one)
        assert found_tokens == tokens.tolist()
        assert found_log_probs == pytest.approx(log_probs.tolist(), abs=5e-6)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_broken_logits_are_visible(value: float) -> None:
    logits = torch.zeros(1, 300)
    logits[0, 3] = value
    assert not math.isfinite(decoder_with(logits).draw(torch.tensor([0.5], dtype=torch.float64), Settings())[1][0])


def test_a_token_of_probability_zero_is_never_drawn() -> None:
    logits = torch.full((3, 1000), -math.inf)
    logits[:, 500] = 0.0
    uniforms = torch.tensor([1e-16, 0.5, 1 - 1e-16], dtype=torch.float64)
    assert decoder_with(logits).draw(uniforms, Settings()) == ([500] * 3, [0.0] * 3)


def decoder_with(logits: Tensor) -> NativeDecoder:
    """A decoder whose last pass gave these logits, [B, V]."""
    rows, vocab_size = logits.shape
    decoder = object.__new__(NativeDecoder)
    decoder._library = LIBRARY  # type: ignore[assignment]
    decoder.vocab_size = vocab_size
    decoder.release_buffers()
    padded = torch.zeros(vocab_size, -(-rows // 16) * 16)
    padded[:, :rows] = logits.t()
    decoder._logits = padded.flatten()
    return decoder


async def test_a_long_prompt_comes_in_pieces_while_others_are_decoded(open_rollout: Open, tiny: Path) -> None:
    prompt = tuple((7 * place) % 250 + 3 for place in range(200))
    quiet = await open_rollout()
    expected = await answers(quiet, [request(1, 1, prompt)])
    for native in (True, False):
        rollout = await open_rollout(prefill_token_budget=20, native_kernels=native)
        short = asyncio.create_task(answers(rollout, [request(0, max_tokens=200)]))
        await until_sampled(rollout, 1)
        engine = rollout.engine
        assert isinstance(engine, HfEngine)
        found = await answers(rollout, [request(1, 1, prompt)])
        assert found[0].token_ids == expected[0].token_ids
        assert found[0].log_probs == pytest.approx(expected[0].log_probs, abs=5e-5)
        assert (await short)[0].finish_reason is FinishReason.LENGTH


async def test_pieces_and_decode_steps_alternate(open_rollout: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    prefill, decode = Runner.prefill, Runner.decode

    def noted_prefill(self: Runner, *args: Any) -> None:
        calls.append("p")
        prefill(self, *args)

    def noted_decode(self: Runner, *args: Any) -> Tensor:
        calls.append("d")
        return decode(self, *args)

    rollout = await open_rollout(prefill_token_budget=20, slot_count=2)
    monkeypatch.setattr(Runner, "prefill", noted_prefill)
    monkeypatch.setattr(Runner, "decode", noted_decode)
    await rollout.engine.pause("keep")
    both = [request(0, max_tokens=40, prompt=PROMPT[:5]), request(1, 1, tuple(range(3, 103)), max_tokens=3)]
    task = asyncio.create_task(answers(rollout, both))
    await asyncio.sleep(0.05)
    await rollout.engine.resume()
    await task
    # 4 tokens of the first, then 99 of the second in five pieces, each with a step of the first after it.
    assert "".join(calls).startswith("pd" + "pd" * 5 + "d")


async def test_an_aborted_long_prompt_leaves_nothing_behind(open_rollout: Open) -> None:
    rollout = await open_rollout(prefill_token_budget=1, slot_count=1)
    long = request(1, 1, tuple(range(3, 243)))
    task = asyncio.create_task(answers(rollout, [long]))
    await asyncio.sleep(0.01)
    await rollout.engine.abort({long.key})
    await task
    assert (await answers(rollout, [request(0)]))[0].finish_reason is FinishReason.LENGTH


@pytest.fixture
def fresh() -> Any:
    """The library is looked for again, before and after."""
    load_library.cache_clear()
    yield
    load_library.cache_clear()


@pytest.mark.usefixtures("fresh")
def test_without_a_compiler_the_models_own_code_runs(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert load(tiny).native is None
    assert "no C++ compiler" in caplog.text


@pytest.mark.usefixtures("fresh")
def test_a_compiler_that_fails_is_told_and_done_without(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source = tmp_path / "broken.cpp"
    source.write_text("no code")
    monkeypatch.setattr(compiler, "SOURCE", NativeSource(source, "the compiled passes"))
    assert load(tiny).native is None
    assert "can't compile" in caplog.text


@pytest.mark.usefixtures("fresh")
def test_a_damaged_kept_library_is_compiled_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source = tmp_path / "small.cpp"
    source.write_text("".join(f'extern "C" int {name}() {{ return 1; }}\n' for name in EXPORTS))
    monkeypatch.setattr(compiler, "SOURCE", NativeSource(source, "the compiled passes"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "cache" / "argosy" / "kernels"
    folder.mkdir(mode=0o700, parents=True)
    found = os.environ.get("CXX") or next(filter(shutil.which, COMPILERS))
    compiled(compiler.SOURCE, found, cpu_flags(), folder).write_bytes(b"half")
    assert load_library() is not None
    assert "compiling it anew" in caplog.text


@pytest.mark.usefixtures("fresh")
def test_a_folder_that_others_can_write_to_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "small.cpp"
    source.write_text("".join(f'extern "C" int {name}() {{ return 1; }}\n' for name in EXPORTS))
    monkeypatch.setattr(compiler, "SOURCE", NativeSource(source, "the compiled passes"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    folder = tmp_path / "cache" / "argosy" / "kernels"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    assert load_library() is not None
    assert list(folder.iterdir()) == []
    assert not list((tmp_path / "temporary").glob("argosy-kernels-*")), "nor is anything left elsewhere"


@pytest.mark.usefixtures("fresh")
def test_an_older_cpu_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_compiler, "cpu_flags", lambda: frozenset({"avx2"}))
    assert load_library() is None


async def test_one_that_computes_something_else_is_not_used(
    open_rollout: Open, tiny: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    decode = NativeDecoder.decode
    monkeypatch.setattr(NativeDecoder, "decode", lambda self, *args: decode(self, *args) * 1.1)
    rollout = await open_rollout(tiny)
    assert "differs by" in caplog.text
    engine = rollout.engine
    assert isinstance(engine, HfEngine)
    assert engine.model.native is None
    assert (await answers(rollout, [request()]))[0].finish_reason is FinishReason.LENGTH


def test_sizes_that_do_not_fit_run_the_models_own_code(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path, hidden_size=96)  # heads of 24
    assert load(folder).native is None
