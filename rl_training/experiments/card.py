"""A model card of a run: what it is, its score, how it was made, how to load it."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

from rl_training.arguments import named_modules
from rl_training.config import load_config
from rl_training.config.yaml_text import format_yaml
from rl_training.experiments.compare import RunSummary, is_score, read_run
from rl_training.experiments.document import Table, markdown_table
from rl_training.experiments.jobs import read_lines
from rl_training.runtime.best_checkpoint import best_step
from rl_training.runtime.files import read_json, replace_durable, writing_to


def write_card(run: str | PathLike[str], output: str | PathLike[str] | None = None) -> Path:
    """Write the model card of a run, by default as ``MODEL_CARD.md`` in its directory.

    Raises:
        UserError: there is no run, or the file cannot be written.
    """
    summary = read_run(run)
    path = summary.path / "MODEL_CARD.md" if output is None else Path(output)
    with writing_to(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_durable(path, card(summary).encode("utf-8"))
    return path


def card(run: RunSummary) -> str:
    """Return a run's model card as Markdown, with the front matter that model hubs read."""
    config, scores = run.config, _scores(run)
    algo, env_id = config["algo"], config["env_id"]
    metadata: dict[str, Any] = {
        "library_name": "rl_training",
        "tags": ["reinforcement-learning", algo, env_id],
    }
    steps = run.result.get("global_step")
    trained = f"It was trained for {steps:,} environment steps" if steps else "It is not finished"
    text = [
        f"---\n{format_yaml(metadata)}---",
        f"# {algo} on {env_id}",
        f"A policy of `{algo}` for the environment `{env_id}`, seed {config['seed']}. {trained}.",
        "## Score",
        _score_table(scores) if scores else "It was not evaluated.",
        "## How to use it",
        _usage(run),
        "## How it was made",
        markdown_table(Table(["", ""], [[name, value] for name, value in _facts(run)])),
        "## Configuration",
        f"```yaml\n{(run.path / 'config.yaml').read_text('utf-8')}```",
    ]
    return "\n\n".join(text) + "\n"


_USAGE = """\
```bash
rl-training eval RUN --episodes 100{flag}{best}
rl-training resume RUN{flag}
```

```python
{python}
```

`RUN` is this directory. Checkpoints are safetensors and JSON with a hash for every file: loading
them runs no code{but}."""
_PREDICT = """\
from rl_training import predict_checkpoint

action = predict_checkpoint("RUN", observation{argument})"""
_REMEMBER = """\
from rl_training.workflows import load_algorithm

agent, _ = load_algorithm("RUN"{argument})
policy = agent.stateful_policy()  # it keeps what it remembers; policy.reset() forgets it
action = policy.predict(observation)"""


def _usage(run: RunSummary) -> str:
    modules = named_modules(load_config(run.path / "config.yaml"))
    named = ", ".join(f"`{name}`" for name in modules)
    python = _REMEMBER if str(run.config["algo"]).startswith("recurrent") else _PREDICT
    return _USAGE.format(
        flag=" --trust-modules" if modules else "",
        best="  # the best checkpoint: --best" if _best_evaluation(run) else "",
        python=python.format(argument=", trust_modules=True" if modules else ""),
        but=f" but that of {named}, which the config names" if modules else "",
    )


def _scores(run: RunSummary) -> list[tuple[str, dict[str, Any]]]:
    """Return what was measured: by a benchmark, else by the training itself."""
    played = read_json(run.path.parent / "scores.json") or {}
    found = [
        (f"{which}, {record['episodes']} episodes on seeds of their own", record)
        for which, key in (("final policy", "final"), ("best model", "best"))
        if is_score(record := played.get(key))
    ]
    evaluation = run.result.get("eval")
    if not found and is_score(evaluation):
        found = [(f"last evaluation in training, {evaluation['episodes']} episodes", evaluation)]
    best = _best_evaluation(run)
    if best is not None and not played.get("best"):
        what = (
            f"best checkpoint (step {best['step']:,}): the evaluation of {best['episodes']} "
            "episodes that chose it, which favours it"
        )
        found.append((what, best))
    return found


def _best_evaluation(run: RunSummary) -> dict[str, Any] | None:
    """Return the evaluation that chose the best checkpoint; None: there is none, or it is the end's
    own.
    """
    step = best_step(run.path)
    if step is None:
        return None
    for line in read_lines(run.path / "evaluations.jsonl"):
        if line["step"] == step and is_score(line):
            return line if line["step"] != run.result.get("global_step") else None
    return None


def _score_table(scores: list[tuple[str, dict[str, Any]]]) -> str:
    rows = [
        [what, f"{record['return_mean']:.1f}", f"{record['return_std']:.1f}"]
        for what, record in scores
    ]
    return markdown_table(Table(["measured", "mean return", "deviation over episodes"], rows))


def _facts(run: RunSummary) -> list[tuple[str, str]]:
    machine = run.metadata.get("machine") or {}
    versions = run.metadata.get("versions") or {}
    facts = {
        "status": run.metadata.get("status"),
        "seconds": run.result.get("wall_time_s"),
        "machine": machine.get("processor_name") or machine.get("processor"),
        "threads": run.metadata.get("threads"),
        "commit": run.metadata.get("git_commit"),
        "versions": ", ".join(f"{name} {number}" for name, number in versions.items()),
        "digest": run.result.get("digest"),
    }
    return [(name, str(value)) for name, value in facts.items() if value]
