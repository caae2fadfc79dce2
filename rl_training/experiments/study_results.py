"""What a study found: every trial as plain values, and the best one as a preset."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rl_training.config import TrainConfig, config_to_dict
from rl_training.config.yaml_text import format_yaml
from rl_training.experiments.pages import number
from rl_training.experiments.study import Study, StudyOutcome
from rl_training.runtime.files import replace_durable, write_json

if TYPE_CHECKING:
    from pathlib import Path

_STATES = {"COMPLETE": "done", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running"}
_WIDTH = 118


def write_results(study: Study, trials: Sequence[Any]) -> StudyOutcome:
    """Write ``trials.json`` and, once a trial is finished, ``best.yaml``; return what is in them.

    Args:
        study: the study.
        trials: Optuna's.
    """
    rows = [_row(study, each) for each in trials if each.state.name in _STATES]
    write_json(study.directory / "trials.json", {"trials": rows})
    ended = [row for row in rows if row["state"] not in ("running", "refused")]
    done = [row for row in ended if row["state"] == "done"]
    outcome = StudyOutcome(
        trials=len(ended),
        failed={row["trial"]: row["error"] or "" for row in ended if row["state"] == "failed"},
        exit_code=0 if done else 1,
    )
    if done:
        best = max(done, key=lambda row: row["score"])
        outcome.best_trial, outcome.best_score = best["trial"], best["score"]
        outcome.best_values = best["values"]
        outcome.preset = study.directory / "best.yaml"
        text = preset_text(study, best, ended, outcome.preset)
        replace_durable(outcome.preset, text.encode("utf-8"))
    return outcome


def _row(study: Study, trial: Any) -> dict[str, Any]:
    attributes = trial.user_attrs
    refused = "refused" in attributes
    return {
        "trial": trial.number,
        "state": "refused" if refused else _STATES[trial.state.name],
        "score": trial.value if trial.state.name == "COMPLETE" else None,
        "scores": attributes.get("scores"),
        "error": attributes.get("refused") or attributes.get("error"),
        "own": bool(attributes.get("own")),
        "values": study.values(trial.params),
        "evaluations": list(trial.intermediate_values.values()),
    }


def preset_text(
    study: Study, best: dict[str, Any], ended: Sequence[dict[str, Any]], path: Path
) -> str:
    """Return the best trial as a preset whose first lines say what was measured.

    Args:
        study: the study.
        best: the trial's row.
        ended: the rows of all trials that ended.
        path: where it will be.
    """
    config = study.base if best["own"] else _tuned(study, best)
    lines = [
        f"# {config.algo.upper()} on {config.env_id}, tuned.",
        *_comment(_origin(study, best, ended)),
        "#",
        f"# Command: rl-training train --config {path}",
        *_comment(_measured(study, best)),
    ]
    own = next((row for row in ended if row["own"] and row["state"] == "done"), None)
    if own is not None and not best["own"]:
        scores = ", ".join(number(score) for score in own["scores"])
        text = f"The settings before, by the same measure: {scores} (mean {number(own['score'])})."
        lines += _comment(text)
    lines += _comment(
        "The best of many by these very seeds, it is too good for a comparison: train and evaluate "
        "with other seeds before you report it."
    )
    return "\n".join(lines) + "\n\n" + format_yaml(_changes(config))


def _tuned(study: Study, row: dict[str, Any]) -> TrainConfig:
    from rl_training.config import replace_config

    return replace_config(study.base, **row["values"])


def _origin(study: Study, best: dict[str, Any], ended: Sequence[dict[str, Any]]) -> str:
    settings = study.settings
    states = [row["state"] for row in ended]
    if best["own"]:
        if len(ended) == 1:
            return "Hyperparameters: as before: there was no other trial."
        return f"Hyperparameters: as before: none of {len(ended)} trials was better."
    return (
        f"Hyperparameters: trial {best['trial']}, the best of {counted(len(ended), 'trial')} of "
        f"rl-training tune, from {study.name} ({_count(states, 'pruned')} pruned, "
        f"{states.count('failed')} failed; sampler {settings.sampler}, "
        f"seed {settings.sampler_seed})."
    )


def _count(states: Sequence[str], state: str) -> str:
    number = states.count(state)
    return f"{number} {'was' if number == 1 else 'were'}"


def counted(number: int, what: str) -> str:
    """Return ``"1 trial"`` or ``"2 trials"``."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def _measured(study: Study, best: dict[str, Any]) -> str:
    settings = study.settings
    seeds = ", ".join(str(seed) for seed in settings.seeds)
    scores = ", ".join(number(score) for score in best["scores"])
    how = "" if study.base.evaluation.deterministic else "stochastic "
    return (
        f"Measured: mean return of {settings.episodes} {how or 'deterministic '}episodes of the "
        f"final policy, seeds {seeds}: {scores} (mean {number(statistics.fmean(best['scores']))})."
    )


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="#   ")


def _changes(config: TrainConfig) -> dict[str, Any]:
    """Return a configuration as a preset has it: what is not the default."""
    default = config_to_dict(TrainConfig(algo=config.algo, env_id=config.env_id))
    given = config_to_dict(config)
    always = {key: given[key] for key in ("algo", "env_id", "total_timesteps", "num_envs")}
    return {**always, **_different(given, default)}


def _different(given: dict[str, Any], default: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in given.items():
        other = default.get(key)
        if isinstance(value, dict) and isinstance(other, dict):
            inner = _different(value, other)
            if inner:
                found[key] = inner
        elif value != other:
            found[key] = value
    return found
