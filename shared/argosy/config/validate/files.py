"""Files and folders that must be there."""

from __future__ import annotations

import glob
from collections.abc import Iterator
from pathlib import Path

from argosy.config.schema import Config
from argosy.config.validate.rewards import functions_of


def check_data_files(config: Config) -> Iterator[str]:
    """Training and validation files: named, there, not empty. A replay has its prompts with it."""
    data, trainer = config.data, config.trainer
    if config.argosy.replay.path is not None:
        return
    if not data.train_files:
        yield "data.train_files: must name at least one Parquet, JSON or JSONL file"
    validates = trainer.val_before_train or trainer.test_freq > 0 or trainer.val_only
    validates = validates and not config.argosy.rollout_only
    if not data.val_files and validates:
        yield (
            f"data.val_files: must name at least one file, since trainer.val_before_train="
            f"{str(trainer.val_before_train).lower()} and trainer.test_freq={trainer.test_freq}; to train without "
            "validation set trainer.val_before_train=false trainer.test_freq=-1"
        )
    for key, files in (("data.train_files", data.train_files), ("data.val_files", data.val_files)):
        for name in files:
            yield from _check_glob(key, name)
        repeated = sorted({name for name in files if files.count(name) > 1})
        if repeated:
            yield f"{key}: names {', '.join(repeated)} more than once"


def check_other_paths(config: Config) -> Iterator[str]:
    """The model's folder, the scorer's file, the checkpoint, etcd's binary, the run folder."""
    model = config.actor_rollout_ref.model
    if not model.path:
        yield "actor_rollout_ref.model.path: must name a model: a folder, or a name on the hub"
    else:
        yield from _check_model("actor_rollout_ref.model.path", model.path, "config.json")
    if model.tokenizer_path is not None:
        yield from _check_model("actor_rollout_ref.model.tokenizer_path", model.tokenizer_path, "tokenizer_config.json")
    if config.needs_critic and config.critic.model.path is not None:
        yield from _check_model("critic.model.path", config.critic.model.path, "config.json")
    for key, path in functions_of(config).items():
        yield from _check_file(key, path)
    if config.trainer.resume_from_path and not Path(config.trainer.resume_from_path).expanduser().is_dir():
        yield f"trainer.resume_from_path: no such folder: {config.trainer.resume_from_path}"
    if config.argosy.membership.etcd_binary is not None:
        yield from _check_file("argosy.membership.etcd_binary", config.argosy.membership.etcd_binary)
    trainer = config.trainer
    if trainer.default_hdfs_dir is not None and "://" not in trainer.default_hdfs_dir:
        yield (
            f"trainer.default_hdfs_dir: got {trainer.default_hdfs_dir!r}; give a URL, such as s3://bucket/run, "
            "hdfs://host/run or file:///mnt/run"
        )
    if trainer.default_hdfs_dir is not None and "://" in trainer.default_local_dir:
        yield "trainer.default_hdfs_dir: trainer.default_local_dir is a URL already, and there is one place for copies"
    if "@" in config.copy_url.partition("://")[2].partition("/")[0]:
        yield (
            "trainer.default_hdfs_dir (or default_local_dir): the URL has a user or a password in it, which logs and "
            "the saved configuration would show; give credentials by the environment (AWS_ACCESS_KEY_ID …)"
        )
    folder = config.run_folder
    blocking = next((parent for parent in (folder, *folder.parents) if parent.exists()), None)
    if blocking is not None and not blocking.is_dir():
        yield f"trainer.default_local_dir: can't make the folder {folder}: {blocking} is a file"


def _check_glob(key: str, name: str) -> Iterator[str]:
    """A path, or a glob with at least one match. A file whose own name has `*` or `[` in it is taken as it is."""
    path = Path(name).expanduser()
    if path.exists() or not glob.has_magic(str(path)):
        yield from _check_file(key, name)
    elif not glob.glob(str(path), recursive=True):
        yield f"{key}: no file matches {name}{_relative_to(path)}"


def _check_file(key: str, name: str) -> Iterator[str]:
    path = Path(name).expanduser()
    if not path.exists():
        yield f"{key}: no such file: {name}{_relative_to(path)}"
    elif path.is_dir():
        yield f"{key}: is a folder: {name}; name the files in it"
    elif path.stat().st_size == 0:
        yield f"{key}: the file is empty: {name}"


def _check_model(key: str, name: str, needed: str) -> Iterator[str]:
    """A folder must hold the file that is needed; a hub name such as `owner/model` is looked up when it is loaded."""
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / needed).is_file():
            yield f"{key}: the folder {name} has no {needed}: it isn't a Hugging Face model folder"
    elif path.is_file():
        yield f"{key}: is a file: {name}; wants a model folder (`argosy model import` makes one of a GGUF file)"
    elif name.startswith(("/", ".", "~")) or name.count("/") > 1:
        yield f"{key}: no such folder: {name}{_relative_to(path)}"


def _relative_to(path: Path) -> str:
    return "" if path.is_absolute() else f" (seen from {Path.cwd()})"
