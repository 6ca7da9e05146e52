"""LoRA (Hu et al. 2021, arXiv:2106.09685) through peft: W·x + (alpha/rank)·B·A·x, where only A and B train.

peft puts its layers into the model in place, so that the packed pass, checkpointing and sharding see an ordinary model.
Engines and exports see one too: `merged` gives the weights W + (alpha/rank)·B·A under their own names. It computes them
anew each time and never touches the training weights, so that nothing drifts.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from argosy.types.batch import TrajectoryBatch
from argosy.types.errors import ConfigError, InvalidInputError
from argosy.weightsync.tensors import bytes_of

if TYPE_CHECKING:
    from argosy.trainer.options import LoraOptions

ADAPTER = "default"
"""peft's name of the adapter: one is all there is."""
ADAPTER_FOLDER = "adapter"
"""Where in an export the adapter stands alone, in peft's format."""
BASE_LOG_PROBS = "base_log_probs"
"""Column of `evaluate`: log-probs with the adapter off, which are those of the start model."""

_PROBED = 256
"""Elements of a tensor that its fingerprint looks at, about."""
_BASE, _A, _B = ".base_layer", f".lora_A.{ADAPTER}.weight", f".lora_B.{ADAPTER}.weight"
_PEFT_PREFIX = "base_model.model."
BASE_FINGERPRINT = "base_fingerprint"
"""Counter of a checkpoint: `LoraAdapter.base_fingerprint` of the model that it was saved from."""

_INSTALL = "pip install 'argosy[trainer]', or peft by itself"


@dataclass(frozen=True, slots=True)
class AdapterForm:
    """How an adapter's matrices are applied, where it is one way for all modules."""

    rank: int
    alpha: float
    target_modules: tuple[str, ...]
    """Full names."""


class LoraAdapter:
    """An adapter in a model.

    Args:
        peft_model: peft's wrapper, for its files; the model in it has the adapter's layers in place.
        scaling: alpha/rank of each adapted module, by its name.
        ranks: Rank of each, by its name.
        base_fingerprint: See the attribute.
    """

    def __init__(
        self, peft_model: Any, scaling: Mapping[str, float], ranks: Mapping[str, int], base_fingerprint: int
    ) -> None:
        self._peft_model = peft_model
        self._scaling = dict(scaling)
        one = len(set(scaling.values())) == 1 and len(set(ranks.values())) == 1
        rank, factor = next(iter(ranks.values())), next(iter(scaling.values()))
        self.form = AdapterForm(rank, factor * rank, tuple(scaling)) if one else None
        """None where modules differ in rank or scaling (patterns in an adapter's files)."""
        self.base_fingerprint = base_fingerprint
        """Of the frozen weights, which a checkpoint doesn't hold."""

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Within it the model computes, without gradients, as the start model.

        (peft's own `disable_adapter` also freezes the adapter meanwhile. FSDP remembers whether a parameter trains from
        the first pass on, and after a frozen one the adapter would never train.)
        """
        layers = [module for module in self._peft_model.modules() if hasattr(module, "lora_A")]
        for layer in layers:
            layer._disable_adapters = True
        try:
            with torch.no_grad():
                yield
        finally:
            for layer in layers:
                layer._disable_adapters = False

    def own(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The adapter's tensors of a model's state dict: all that trains."""
        return {name: tensor for name, tensor in state.items() if name.endswith((_A, _B))}

    def alone(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The adapter's tensors of a model's state dict as they are published: MODULE.lora_A.weight and lora_B."""
        return {name.replace(f".{ADAPTER}.weight", ".weight"): tensor for name, tensor in self.own(state).items()}

    def base(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A model's state dict as it would be without the adapter; the tensors are those given."""
        return {name.replace(f"{_BASE}.", "."): t for name, t in state.items() if not name.endswith((_A, _B))}

    def check_base(self, counters: Mapping[str, int]) -> None:
        """Refuse the checkpoint of an adapter to other weights: it would load, and mean nothing."""
        saved = counters.get(BASE_FINGERPRINT)
        if saved is not None and saved != self.base_fingerprint:
            raise InvalidInputError(
                "the checkpoint's adapter was trained on other weights than this model's; set "
                "actor_rollout_ref.model.path to the model of that run",
                part="model",
            )

    def merged(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A model's state dict as it would be without LoRA, each adapted weight with its update added.

        Adapted weights are new tensors, the others those given (tied ones stay tied). A weight whose tensors aren't in
        `state` is left out.
        """
        found = {}
        for name, tensor in state.items():
            if name.endswith((_A, _B)):
                continue
            module, base, _ = name.rpartition(_BASE)
            if base and name == f"{module}{_BASE}.weight":
                update = state[module + _B] @ state[module + _A]
                found[f"{module}.weight"] = tensor + self._scaling[module] * update.to(tensor.dtype)
            else:
                found[name.replace(f"{_BASE}.", ".")] = tensor
        return found

    def portions(self, state: Mapping[str, Tensor]) -> dict[str, list[str]]:
        """Name that `merged` gives → the names in `state` that it needs for that, the weight itself first."""
        found: dict[str, list[str]] = {}
        for name in state:
            module, base, _ = name.rpartition(_BASE)
            if base and name == f"{module}{_BASE}.weight":
                found[f"{module}.weight"] = [name, module + _A, module + _B]
            elif not name.endswith((_A, _B)):
                found[name.replace(f"{_BASE}.", ".")] = [name]
        return found

    def save(self, folder: Path, state: Mapping[str, Tensor]) -> None:
        """Write the adapter in peft's format (adapter_config.json, adapter_model.safetensors) below `folder`."""
        named = {f"{_PEFT_PREFIX}{name}": tensor for name, tensor in self.own(state).items()}
        self._peft_model.save_pretrained(folder, state_dict=named, safe_serialization=True)


def add_lora(model: Any, options: LoraOptions, model_path: str) -> LoraAdapter:
    """Put an adapter into a transformers model, in place, and freeze all else.

    A new one starts at B = 0, so the model computes as before; A is drawn from `options.seed`.

    Raises:
        ConfigError: peft isn't installed, no module has such a name, a module can't be adapted, or the rank is above
            that of a weight.
        InvalidInputError: `options.adapter_path` is no adapter for this model, or of another rank.
    """
    try:
        import peft
    except ImportError as error:
        raise ConfigError(f"LoRA needs peft, which is not installed: {_INSTALL}") from error
    fingerprint = _fingerprint(model.state_dict())
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(options.seed)
            wrapped = _loaded(peft, model, options) if options.adapter_path else _new(peft, model, options, model_path)
    except (ValueError, RuntimeError, KeyError, OSError) as error:
        raise ConfigError(f"LoRA can't be put into {type(model).__name__}: {error}") from error
    model.eval()
    scaling = _scaling_of(model)
    ranks = {name: int(module.r[ADAPTER]) for name, module in model.named_modules() if name in scaling}
    _check_ranks(model, ranks)
    return LoraAdapter(wrapped, scaling, ranks, fingerprint)


def _fingerprint(state: Mapping[str, Tensor]) -> int:
    """CRC-32 of evenly spaced elements of every tensor: tells models apart without reading all of them."""
    crc = 0
    for tensor in state.values():
        flat = tensor.detach().reshape(-1)
        crc = zlib.crc32(bytes_of(flat[:: max(1, flat.numel() // _PROBED)]).data, crc)
    return crc


def _new(peft: Any, model: Any, options: LoraOptions, model_path: str) -> Any:
    config = peft.LoraConfig(
        task_type="CAUSAL_LM",
        base_model_name_or_path=model_path,
        r=options.rank,
        lora_alpha=options.alpha,
        target_modules=options.target_modules if isinstance(options.target_modules, str) else [*options.target_modules],
        exclude_modules=options.exclude_modules
        if options.exclude_modules is None or isinstance(options.exclude_modules, str)
        else [*options.exclude_modules],
        lora_dropout=0.0,
        bias="none",
    )
    return peft.get_peft_model(model, config)


def _loaded(peft: Any, model: Any, options: LoraOptions) -> Any:
    """An adapter from peft's files; only safetensors, since the other format is pickle."""
    assert options.adapter_path is not None
    folder = Path(options.adapter_path).expanduser()
    missing = [name for name in ("adapter_config.json", "adapter_model.safetensors") if not (folder / name).is_file()]
    if missing:
        raise InvalidInputError(f"lora_adapter_path {str(folder)!r} lacks {', '.join(missing)}")
    saved = json.loads((folder / "adapter_config.json").read_text())
    if saved.get("peft_type") != "LORA" or (options.rank and saved.get("r") != options.rank):
        raise InvalidInputError(
            f"the adapter in {str(folder)!r} is {saved.get('peft_type')} of rank {saved.get('r')}, but lora_rank is "
            f"{options.rank}; set lora_rank to its rank or leave it out"
        )
    return peft.PeftModel.from_pretrained(model, str(folder), is_trainable=True)


def _scaling_of(model: nn.Module) -> dict[str, float]:
    """alpha/rank of each adapted module. Refuses what `merged` doesn't know how to merge."""
    found = {}
    state = dict(model.named_parameters(remove_duplicate=False))
    tied = {tensor.data_ptr() for tensor in _tied(state)}
    for name, module in model.named_modules():
        if not hasattr(module, "lora_A"):
            continue
        linear = isinstance(getattr(module, "base_layer", None), nn.Linear)
        if not linear or module.lora_variant or module.fan_in_fan_out or module.lora_bias.get(ADAPTER):
            raise ConfigError(f"LoRA of {name}: only plain LoRA of linear layers can be merged for the engines")
        if module.base_layer.weight.data_ptr() in tied:
            raise ConfigError(f"LoRA of {name}: its weight is tied to another; leave it out with exclude_modules")
        found[name] = float(module.scaling[ADAPTER])
    return found


def _check_ranks(model: nn.Module, ranks: Mapping[str, int]) -> None:
    """Refuse B·A of a higher rank than the weight: slower than training all of it, for nothing."""
    for name, rank in ranks.items():
        module: Any = model.get_submodule(name)
        outputs, inputs = module.base_layer.weight.shape
        if rank > min(outputs, inputs):
            raise ConfigError(
                f"actor_rollout_ref.model.lora_rank: got {rank}, more than the rank of {name} "
                f"({outputs} × {inputs}); set at most {min(outputs, inputs)}, or leave it out with exclude_modules"
            )


def _tied(state: Mapping[str, Tensor]) -> list[Tensor]:
    seen: set[int] = set()
    return [tensor for tensor in state.values() if tensor.data_ptr() in seen or seen.add(tensor.data_ptr())]  # type: ignore[func-returns-value]


def evaluate(
    run: Callable[[Sequence[str]], TrajectoryBatch], adapter: LoraAdapter | None, columns: Sequence[str]
) -> TrajectoryBatch:
    """What `run` gives for the columns; and of a model with an adapter, the column BASE_LOG_PROBS.

    Raises InvalidInputError for that column without an adapter: the weights before training are gone then.
    """
    if BASE_LOG_PROBS not in columns:
        return run(columns)
    if adapter is None:
        raise InvalidInputError(
            f"the column {BASE_LOG_PROBS!r} is of a model with LoRA; a reference service has the start model otherwise",
            field="columns",
        )
    with adapter.disabled():
        base = run(["log_probs"])
    others = [name for name in columns if name != BASE_LOG_PROBS]
    answer = run(others) if others else base
    return answer.with_column(BASE_LOG_PROBS, base.ragged("log_probs"))


class MergedExport:
    """What an export needs of a model with an adapter: the merged model and, in a folder of its own, the adapter.

    Args:
        model: The transformers model.
        adapter: In it.
        state: The model's whole state dict, tied names included.
    """

    def __init__(self, model: Any, adapter: LoraAdapter, state: Mapping[str, Tensor]) -> None:
        self._model = model
        self._adapter = adapter
        self._state = state

    def save_pretrained(self, folder: str | Path, **settings: Any) -> None:
        """As transformers' method."""
        self._model.save_pretrained(folder, state_dict=self._adapter.merged(self._state), **settings)
        self._adapter.save(Path(folder) / ADAPTER_FOLDER, self._state)
