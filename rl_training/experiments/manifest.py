"""Manifests: which presets a benchmark runs, with which seeds and budgets, and what is known of
their scores. Read as strictly as configs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from rl_training.config import TrainConfig, find_manifest, load_config, require
from rl_training.config.coercion import ConfigKeyError, build
from rl_training.config.yaml_text import parse_yaml
from rl_training.errors import UserError, nearest

Metric = Literal["final policy", "training returns", "best of training", "best model"]
"""What a published score is the mean of: episodes of the last policy; returns of the training
episodes at the end; the best evaluation of the whole training; episodes of the best checkpoint.
"""


@dataclass(kw_only=True)
class Source:
    """Where published scores stand, and how they were measured."""

    name: str
    """What the report calls it."""
    metric: Metric
    """What a score is the mean of."""
    runs: str
    """How many runs a score is over."""
    spread_over: Literal["episodes", "seeds"]
    """What the spread is the standard deviation over."""
    url: str
    """The page."""


@dataclass(kw_only=True)
class PeerScore:
    """One published score."""

    source: str
    """Key of the manifest's ``sources``."""
    steps: int
    """Environment steps of the training."""
    score: float
    """Mean return."""
    spread: float | None = None
    """Standard deviation; over what, the source says."""
    env_id: str | None = None
    """The environment, where it is not the preset's own (an earlier version)."""


@dataclass(kw_only=True)
class Reference:
    """Two returns of an environment, between which scores are put on one scale."""

    low: float
    """Scored 0: the return of uniformly random actions."""
    high: float
    """Scored 1: the return at which the environment counts as solved."""


@dataclass(kw_only=True)
class Entry:
    """What a benchmark does with one preset."""

    expected: float | None = None
    """Score that the final policies must reach; None: none is known."""
    expected_of: Literal["mean", "every seed"] = "mean"
    """What must reach it."""
    seeds: list[int] | None = None
    """None: the manifest's."""
    total_timesteps: int | None = None
    """Budget in environment steps; None: the preset's."""
    preset: str | None = None
    """The preset; None: the one that the key names."""
    env_id: str | None = None
    """Its environment; None: the preset's."""
    overlays: list[str] = field(default_factory=list)
    """Configs laid over the preset and over the manifest's overlays."""
    peers: list[PeerScore] = field(default_factory=list)
    """Published scores of the same algorithm on the same task."""
    note: str = ""
    """What the report says under its scores: why a published one is not reached, say."""


@dataclass(kw_only=True)
class Manifest:
    """A benchmark: presets times seeds."""

    name: str
    """Of its file."""
    title: str
    """Heading of the report."""
    description: str = ""
    """A paragraph under it."""
    seeds: list[int]
    """Of every preset that does not give its own."""
    episodes: int = 100
    """Deterministic episodes that score a final policy."""
    evaluations: int = 10
    """Evaluations during a training, evenly spaced: the learning curve; 0: the preset's own."""
    overlays: list[str] = field(default_factory=list)
    """Configs laid over every preset."""
    sources: dict[str, Source] = field(default_factory=dict)
    """Where the peers' scores stand."""
    references: dict[str, Reference] = field(default_factory=dict)
    """By environment: the scale on which scores of several environments are put together."""
    presets: dict[str, Entry]
    """What to run: a preset of the zoo each, or under another name what the entry says."""

    def seeds_of(self, preset: str) -> list[int]:
        """Return the seeds of one preset."""
        seeds = self.presets[preset].seeds
        return self.seeds if seeds is None else seeds

    def config(self, preset: str) -> TrainConfig:
        """Return the configuration of a preset's runs, but for seed and place.

        Raises:
            UserError: the preset or an overlay does not exist, or they do not fit.
        """
        entry = self.presets[preset]
        files = [entry.preset or preset, *self.overlays, *entry.overlays]
        own = {"total_timesteps": entry.total_timesteps, "env_id": entry.env_id}
        changes: dict[str, Any] = {key: value for key, value in own.items() if value is not None}
        config = load_config(files, changes)
        if self.evaluations:
            interval = -(-config.total_timesteps // self.evaluations)
            config = load_config(files, {**changes, "evaluation": {"interval": interval}})
        return config

    def select(self, presets: Sequence[str] = (), seeds: Sequence[int] = ()) -> Manifest:
        """Return the manifest with some of its presets and seeds alone; empty: all of them.

        Raises:
            UserError: one that it does not have.
        """
        for name in presets:
            if name not in self.presets:
                known = ", ".join(self.presets)
                raise UserError(
                    f"{self.name} has no preset {name!r}."
                    f"{nearest(name, self.presets) or f' It has {known}.'}"
                )
        chosen = {name: self.presets[name] for name in presets or self.presets}
        every = {seed for name in chosen for seed in self.seeds_of(name)}
        for seed in seeds:
            if seed not in every:
                raise UserError(f"{self.name} has no seed {seed}. It has {_listing(every)}.")
        kept = {
            name: _with_seeds(entry, [s for s in self.seeds_of(name) if not seeds or s in seeds])
            for name, entry in chosen.items()
        }
        return Manifest(**{**vars(self), "presets": kept})


def load_manifest(name_or_path: str | PathLike[str]) -> Manifest:
    """Read a manifest by path, or one of the zoo by name.

    Raises:
        UserError: it does not exist, is not YAML, or has an unknown key or an impossible value.
    """
    path = find_manifest(name_or_path)
    try:
        data = parse_yaml(path.read_text(encoding="utf-8"), source=str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}.") from error
    if not isinstance(data, Mapping):
        raise UserError(f"{path}: expected keys and values, not {type(data).__name__}.")
    try:
        if "name" in data:
            raise ConfigKeyError("name", "name is that of the file; leave the key out.")
        manifest = build(Manifest, {**data, "name": _name(path)})
        _validate(manifest)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    return manifest


def _name(path: Path) -> str:
    return path.parent.name if path.name == "benchmark.yaml" else path.stem


def _with_seeds(entry: Entry, seeds: list[int]) -> Entry:
    return Entry(**{**vars(entry), "seeds": seeds})


def _listing(seeds: set[int]) -> str:
    return ", ".join(str(seed) for seed in sorted(seeds))


def _validate(manifest: Manifest) -> None:
    require(bool(manifest.presets), "presets", "must name at least one preset")
    require(manifest.episodes >= 1, "episodes", f"must be at least 1, not {manifest.episodes}")
    require(manifest.evaluations >= 0, "evaluations", "must not be negative")
    for name, reference in manifest.references.items():
        key = f"references.{name}"
        require(reference.low < reference.high, key, "needs a low below its high")
    for name, entry in manifest.presets.items():
        key = f"presets.{name}"
        seeds = manifest.seeds_of(name)
        require(bool(seeds), f"{key}.seeds", "must name at least one seed")
        require(len(seeds) == len(set(seeds)), f"{key}.seeds", "names a seed twice")
        require(min(seeds) >= 0, f"{key}.seeds", "must not be negative")
        for peer in entry.peers:
            known = ", ".join(manifest.sources) or "none"
            require(
                peer.source in manifest.sources,
                f"{key}.peers",
                f"names the source {peer.source!r}, which sources does not have ({known})",
            )
