"""Presets by name: the files of ``zoo/``, wherever the package is installed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from rl_training.config.yaml_text import parse_yaml
from rl_training.errors import UserError, nearest

_PACKAGE = Path(__file__).parent.parent
_OVERLAYS = ("tiny", "tiny_replay", "tiny_sequences")
"""Smoke tests of seconds: of PPO and PPG, of algorithms with replay, of PPG on whole sequences."""


def zoo_directory() -> Path:
    """Return the presets' directory: the installed package's, or the repository's if editable."""
    packaged = _PACKAGE / "zoo"
    return packaged if packaged.is_dir() else _PACKAGE.parent / "zoo"


def preset_paths() -> dict[str, Path]:
    """Return every preset and overlay by name (``ppo_cartpole``, ``atari/dqn_breakout``)."""
    zoo = zoo_directory()
    return {
        path.relative_to(zoo).with_suffix("").as_posix(): path
        for path in sorted(zoo.rglob("*.yaml"))
        if not is_manifest(path)
    }


def is_manifest(path: Path) -> bool:
    """Return whether a file of the zoo lists a benchmark's runs instead of one run's settings:
    ``benchmarks/<name>.yaml`` and ``<folder>/benchmark.yaml``.
    """
    return path.parent.name == "benchmarks" or path.name == "benchmark.yaml"


def manifest_paths() -> dict[str, Path]:
    """Return every benchmark manifest of the zoo by name (``classic``, ``atari``)."""
    return {
        path.parent.name if path.name == "benchmark.yaml" else path.stem: path
        for path in sorted(zoo_directory().rglob("*.yaml"))
        if is_manifest(path)
    }


def find_manifest(name_or_path: str | PathLike[str]) -> Path:
    """Return the manifest a user names: a path, else a manifest of the zoo.

    Raises:
        UserError: there is neither; names the nearest manifest.
    """
    path = Path(name_or_path)
    if path.is_file():
        return path
    manifests = manifest_paths()
    name = path.as_posix().removeprefix("zoo/").removesuffix(".yaml").removeprefix("benchmarks/")
    name = name.removesuffix("/benchmark")
    if name in manifests:
        return manifests[name]
    hint = nearest(name, manifests) or f" The zoo has {', '.join(manifests)}."
    raise UserError(f"there is no file or manifest {str(name_or_path)!r}.{hint}")


def find_preset(name_or_path: str | PathLike[str]) -> Path:
    """Return the file a user names: a path, else a preset (``zoo/`` and ``.yaml`` optional).

    Raises:
        UserError: there is neither; names the nearest preset.
    """
    text = str(name_or_path)
    path = Path(text)
    if path.is_file():
        return path
    if path.is_dir():
        raise UserError(f"{text} is a directory, not a config file.")
    name = path.as_posix().removeprefix("zoo/").removesuffix(".yaml")
    presets = preset_paths()
    if name in presets:
        return presets[name]
    hint = nearest(name, presets) or " `rl-training list presets` shows them."
    raise UserError(f"there is no file or preset {text!r}.{hint}")


def overlay_mistake(source: str, data: Mapping[str, Any], fields: Collection[str]) -> str:
    """Return what to say of an overlay of the zoo that is for presets of other algorithms; empty
    where it is none, or fits.

    Args:
        source: the file.
        data: the whole config, as far as it was read.
        fields: of the algorithm's group.
    """
    path = Path(source)
    if path.parent != zoo_directory() or path.stem not in _OVERLAYS:
        return ""
    given = data.get("algorithm")
    sequences = isinstance(given, Mapping) and "auxiliary_minibatches" in given
    if "replay_capacity" in fields:
        fitting = "tiny_replay"
    elif sequences and "auxiliary_minibatches" in fields:
        fitting = "tiny_sequences"
    else:
        fitting = "tiny"
    if fitting == path.stem:
        return ""
    return (
        f"the overlay {path.stem!r} does not fit this config of {data.get('algo')}: "
        f"give --config {fitting} instead."
    )


def preset_for(algo: str, env_id: str) -> Path | None:
    """Return the preset written for this algorithm and environment, or None."""
    for path in preset_paths().values():
        data = parse_yaml(path.read_text(encoding="utf-8"), source=str(path))
        if isinstance(data, dict) and data.get("algo") == algo and data.get("env_id") == env_id:
            return path
    return None
