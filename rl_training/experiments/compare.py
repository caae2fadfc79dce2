"""Runs beside each other: what differs in their configurations and in their results."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, TypeGuard

from rl_training.config import config_to_dict, load_config
from rl_training.errors import UserError
from rl_training.experiments.jobs import is_number, read_curve
from rl_training.experiments.line_names import Settings, bare_keys, line_names
from rl_training.runtime.files import read_json

_APART = ("seed", "output_dir", "tags", "tracking", "checkpoint")
_NOT_TRAINED_BY = ("evaluation.interval", "evaluation.final", "evaluation.num_envs")
"""What runs of one experiment may differ in: groups and keys."""
Curve = list[tuple[int, float]]


@dataclass(frozen=True)
class RunSummary:
    """What a run directory holds."""

    path: Path
    config: dict[str, Any]
    """Dotted key to value."""
    metadata: dict[str, Any]
    result: dict[str, Any]
    """Content of ``result.json``; empty before the end."""

    def curve(self, metric: str) -> Curve:
        """Return step and value of each line of the logs that has a metric.

        Args:
            metric: a name of ``metrics.jsonl``, or ``eval/<name>`` of ``evaluations.jsonl``.
        """
        evaluated = metric.startswith("eval/")
        file = "evaluations.jsonl" if evaluated else "metrics.jsonl"
        return read_curve(self.path / file, metric.removeprefix("eval/"))


def read_run(path: str | PathLike[str]) -> RunSummary:
    """Return what a run directory holds.

    Raises:
        UserError: there is no run, or its configuration cannot be read.
    """
    directory = Path(path)
    if not (directory / "config.yaml").is_file():
        raise UserError(f"{directory} is not a run directory: it has no config.yaml.")
    return RunSummary(
        path=directory,
        config=flatten(config_to_dict(load_config(directory / "config.yaml"))),
        metadata=metadata_of(directory),
        result=result_of(directory),
    )


def metadata_of(run: Path) -> dict[str, Any]:
    """Return the content of a run's ``metadata.json``; empty when it cannot be read."""
    content = read_json(run / "metadata.json")
    return _without_strange(content, machine=_is_mapping, versions=_is_mapping)


def result_of(run: Path) -> dict[str, Any]:
    """Return the content of a run's ``result.json``; empty before the end, or when it cannot be
    read.
    """
    numbers = ("global_step", "wall_time_s", "steps_per_second")
    kinds = {"eval": _is_mapping, **dict.fromkeys(numbers, is_number)}
    return _without_strange(read_json(run / "result.json"), **kinds)


def _without_strange(
    content: dict[str, Any] | None, **kinds: Callable[[Any], bool]
) -> dict[str, Any]:
    """Return what a file holds, but for values of another kind than they are read as."""
    held = (content or {}).items()
    return {key: value for key, value in held if key not in kinds or kinds[key](value)}


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


def is_score(record: Any) -> TypeGuard[dict[str, Any]]:
    """Return whether a record has what is told of an evaluation."""
    told = ("return_mean", "return_std", "episodes")
    return isinstance(record, Mapping) and all(is_number(record.get(name)) for name in told)


def flatten(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested data as dotted keys and values; an empty mapping is a value."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{name}.")
        else:
            flat[name] = value
    return flat


def compare(first: RunSummary, second: RunSummary) -> dict[str, dict[str, list[Any]]]:
    """Return, for ``config`` the keys in which two runs differ, and for ``result`` everything that
    a run ended with: each with both values, None where a run has none.
    """
    configs = _pairs(first.config, second.config)
    differing = {key: pair for key, pair in configs.items() if pair[0] != pair[1]}
    return {"config": differing, "result": _pairs(_results(first), _results(second))}


def _pairs(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, list[Any]]:
    keys = dict.fromkeys([*first, *second])
    return {key: [first.get(key), second.get(key)] for key in keys}


def _results(run: RunSummary) -> dict[str, Any]:
    result, metadata = dict(run.result), run.metadata
    evaluation = result.pop("eval", None) or {}
    machine = metadata.get("machine") or {}
    versions = metadata.get("versions") or {}
    return {
        "status": metadata.get("status"),
        **{f"eval.{name}": value for name, value in evaluation.items()},
        **{key: value for key, value in result.items() if key != "status"},
        "machine": machine.get("processor_name") or machine.get("processor"),
        "threads": metadata.get("threads"),
        "git_commit": metadata.get("git_commit"),
        **{f"version of {name}": number for name, number in versions.items()},
    }


def comparison_lines(first: RunSummary, second: RunSummary) -> list[str]:
    """Return the comparison as lines of three columns."""
    content = compare(first, second)
    same = "" if content["config"] else ": the same"
    lines = [("", str(first.path), str(second.path)), (f"config{same}", "", "")]
    lines += [(f"  {key}", _write(a), _write(b)) for key, (a, b) in content["config"].items()]
    lines.append(("result", "", ""))
    for key, (a, b) in content["result"].items():
        lines.append((f"{'  ' if a == b else '* '}{key}", _write(a), _write(b)))
    lines.append(("*: they differ", "", ""))
    widths = [max(len(line[place]) for line in lines) for place in (0, 1)]
    return [f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c}".rstrip() for a, b, c in lines]


def _write(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str):
        return value[:12] + "..." if len(value) == 64 else value
    return json.dumps(value)


def grouped(runs: Sequence[RunSummary]) -> dict[str, dict[str, list[RunSummary]]]:
    """Return runs by environment and by name: the algorithm, with settings that tell its lines
    apart. Runs that differ in their seeds alone share a name.
    """
    kinds: dict[tuple[str, str], list[RunSummary]] = {}
    for run in runs:
        kinds.setdefault((run.config["env_id"], run.config["algo"]), []).append(run)
    panels: dict[str, dict[str, list[RunSummary]]] = {}
    for (env_id, algo), kin in kinds.items():
        lines: dict[Settings, list[RunSummary]] = {}
        for run, settings in zip(kin, _differing(kin), strict=True):
            lines.setdefault(settings, []).append(run)
        names = line_names(algo, lines)
        panels.setdefault(env_id, {}).update({names[key]: lines[key] for key in lines})
    return panels


def _differing(runs: Sequence[RunSummary]) -> list[Settings]:
    """Return of each run the settings in which it differs from any other."""
    keys = dict.fromkeys(key for run in runs for key in run.config)
    names = bare_keys(list(keys))
    differing = [
        key
        for key in keys
        if not _is_apart(key) and len({repr(run.config.get(key)) for run in runs}) > 1
    ]
    return [tuple((names[key], _write(run.config.get(key))) for key in differing) for run in runs]


def _is_apart(key: str) -> bool:
    return key.partition(".")[0] in _APART or key in _NOT_TRAINED_BY
