"""The command line: words in, one call of `rl_training.workflows`, an exit status out.

Exit status: 0 done; 1 a failure inside (with a traceback); 2 a user's mistake (one line); 130 or
143 stopped by SIGINT or SIGTERM, after a checkpoint. Heavy imports wait until a command needs them,
so that ``--help`` answers at once.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import shlex
import shutil
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from rl_training.cli.output import (
    complain,
    flushed,
    os_error,
    print_what_can_be_printed,
    tell,
)
from rl_training.cli.paths import require_run_or_checkpoint
from rl_training.errors import NonFiniteError, UserError, nearest
from rl_training.garbage import freeze_imports
from rl_training.version import __version__

if TYPE_CHECKING:
    from rl_training.config import TrainConfig
    from rl_training.config.layers import Layers
    from rl_training.workflows import TrainResult

HELP = """\
usage: rl-training COMMAND ...

  rl-training train  --config zoo/ppg_cartpole.yaml [--seed 3] [--total-timesteps N] [any field]
  rl-training train  --algo ppo --env-id CartPole-v1      the preset for both, else the defaults
  rl-training eval   RUN_OR_CHECKPOINT [--best] [--episodes 20] [--stochastic] [--render] [--json]
  rl-training resume RUN_OR_CHECKPOINT [--total-timesteps N] [--reschedule]
  rl-training list   [algorithms | presets]
  rl-training check-env ID [--env-kwargs YAML] [--json]   what will be done with an environment
  rl-training benchmark list | run | status | report | annotate | pack MANIFEST [--jobs N]
  rl-training tune   --config ppo_cartpole --trials 50    hyperparameters, searched for
  rl-training plot RUN... [--output FILE]                 learning curves
  rl-training compare RUN RUN                             two runs side by side
  rl-training export RUN_OR_CHECKPOINT [--format safetensors | onnx] [--output PATH]
  rl-training card   RUN                                  a model card: score, config, how to load

--config repeats: later files override earlier ones. COMMAND --help shows every flag (for train,
those of the algorithm too once --config or --algo names it). --version prints the version.
"""

_MANY_RUNS = {
    **dict.fromkeys(("benchmark", "plot", "compare", "export", "card"), "experiments"),
    "tune": "tune",
}
"""Commands and the modules of `rl_training.cli` that have them."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    Args:
        argv: the words after the program's name; by default those of this process.
    """
    if argv is None:
        freeze_imports()
    if sys.stderr is None:  # closed by whoever started this; what is printed to None goes to stdout
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  for good
    print_what_can_be_printed()
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        with flushed():
            return _dispatch(arguments)
    except UserError as error:
        complain(f"rl-training: error: {' '.join(str(error).splitlines())}")
        return 2
    except NonFiniteError as error:
        what = "evaluation" if arguments[:1] == ["eval"] else "training"
        complain(f"rl-training: {what} failed: {error}")
        return 1
    except OSError as error:
        return os_error(error)
    except KeyboardInterrupt:
        complain("rl-training: interrupted")
        return 130
    except Exception:
        traceback.print_exc()
        return 1


def recipe_main(algo: str) -> NoReturn:
    """Train ``algo`` with the words of this process, and exit: the ``__main__`` of a recipe."""
    freeze_imports()
    raise SystemExit(main(["train", "--algo", algo, *sys.argv[1:]]))


def _dispatch(arguments: list[str]) -> int:
    commands: dict[str, Callable[[list[str]], int]] = {
        "train": _train,
        "eval": _evaluate,
        "resume": _resume,
        "list": _list,
        "check-env": _check_env,
        **{name: functools.partial(_many_runs, name) for name in _MANY_RUNS},
    }
    name = arguments[0] if arguments else ""
    if name in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0
    if name in ("-V", "--version", "version"):
        print(f"rl-training {__version__}")
        return 0
    if not name:
        raise UserError(f"a command is missing: {', '.join(commands)}. --help explains them.")
    if name not in commands:
        raise UserError(
            f"unknown command {name!r}.{nearest(name, commands)} Known: {', '.join(commands)}."
        )
    return commands[name](arguments[1:])


@dataclass(kw_only=True)
class _Choice:
    """The words of ``train`` that decide which flags there are, and the words that are left."""

    files: list[str]
    algo: str | None
    env_id: str | None
    rest: list[str]


_TRAIN = (
    "One training run: an algorithm, an environment and a seed. Everything else has a default.\n"
    "--config FILE reads a YAML file, or a preset by name; it repeats, and later files override "
    "earlier ones. Flags override files. Without it --algo and --env-id are required."
)


def _train(arguments: list[str]) -> int:
    config = parse_train(arguments)
    from rl_training import workflows

    command, here = ["rl-training", "train", *arguments], Path.cwd()
    return _close(workflows.train(config, command=command, progress=True), here)


def parse_train(arguments: Sequence[str]) -> TrainConfig:
    """Return the validated config that the words after ``train`` describe.

    Raises:
        UserError: any mistake in the words or in the files they name.
        SystemExit: with status 0, after ``--help``.
    """
    from rl_training.cli.flags import changed_keys, parse_flags, without_field
    from rl_training.config import TrainConfig, build_config, train_config_class, untyped, validate
    from rl_training.config.groups import ModelConfig

    choice = _choose(arguments)
    program = "rl-training train"
    if not choice.files and choice.algo is None and {"-h", "--help"} & set(choice.rest):
        generic = without_field(TrainConfig, "algorithm", model=ModelConfig)
        parse_flags(generic, ["--help"], program=program, description=_TRAIN)
    layers = _gather(choice)
    loaded = build_config(layers)
    typed = train_config_class(loaded.algo)
    default = typed(**vars(loaded))
    flags = parse_flags(typed, choice.rest, program=program, default=default, description=_TRAIN)
    config = untyped(flags)
    layers.claim(changed_keys(loaded, config), "command line")
    try:
        validate(config)
    except UserError as error:
        raise layers.located(error) from error
    return config


def _choose(arguments: Sequence[str]) -> _Choice:
    found: dict[str, list[str]] = {"config": [], "algo": [], "env_id": []}
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        flag, equals, value = word.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        if not word.startswith("--") or name not in found:
            rest.append(word)
            continue
        value = value if equals else next(words, "")
        if not value or value.startswith("--"):
            raise UserError(f"{flag} needs a value.")
        found[name].append(value)
    for name in ("algo", "env_id"):
        if len(set(found[name])) > 1:
            listing = " and ".join(found[name])
            raise UserError(f"--{name.replace('_', '-')} is given twice, as {listing}.")
    return _Choice(
        files=found["config"], algo=_only(found["algo"]), env_id=_only(found["env_id"]), rest=rest
    )


def _only(values: list[str]) -> str | None:
    return values[0] if values else None


def _gather(choice: _Choice) -> Layers:
    """Lay the files, or the preset, under the algorithm and the environment given as flags."""
    from rl_training.config import preset_for
    from rl_training.config.layers import Layers

    layers = Layers()
    for file in choice.files:
        layers.add_file(file)
    algo = layers.data.get("algo", choice.algo)
    if algo is None:
        raise UserError(
            "what to train is missing: give --config FILE, or --algo NAME and --env-id ID."
        )
    if choice.algo is not None and choice.algo != algo:
        raise UserError(f"{layers.source_of('algo')} is a config of {algo}, not of {choice.algo}.")
    env_id = choice.env_id or layers.data.get("env_id")
    if env_id is None:
        raise UserError(
            f"the environment is missing: give --env-id ID, or --config FILE for {algo}."
        )
    if "algo" not in layers.data:
        preset = preset_for(algo, env_id)
        layers = Layers()
        if preset is not None:
            layers.add_file(preset)
        for file in choice.files:
            layers.add_file(file)
    given = {"algo": choice.algo, "env_id": choice.env_id}
    layers.add({name: value for name, value in given.items() if value is not None}, "command line")
    return layers


def _close(result: TrainResult, here: Path) -> int:
    """Print how the run ended and what can be done with it, from the directory ``here`` in which
    the command was started; return the exit status.
    """
    reason = f": {result.reason}" if result.reason else ""
    tell(f"\n{result.status} at step {int(result.metrics['global_step']):,}{reason}")
    if result.evaluation is not None:
        score = result.evaluation
        mean, spread = score["return_mean"], score["return_std"]
        tell(f"  evaluation  return {mean:.1f} ± {spread:.1f} over {_counted(score)}")
    from rl_training.runtime.best_checkpoint import best_step

    trust, scheduled = _flags_for(result.run_dir / "config.yaml")
    run = result.run_dir
    if run.is_relative_to(here):
        run = run.relative_to(here)
    budget = "" if result.exit_code else f" --total-timesteps N{scheduled}"
    tell(f"  run         {run}")
    best = best_step(result.run_dir)
    if best is not None and best != result.metrics["global_step"]:
        tell(f"  best        at step {best:,}: evaluate it with --best")
    program, quoted = _program(here), shlex.quote(str(run))
    tell(f"  evaluate    {program} eval {quoted}{trust}")
    tell(f"  resume      {program} resume {quoted}{budget}{trust}")
    return result.exit_code


def _program(here: Path) -> str:
    """Return what starts this program from here.

    Its name may be on no path yet. And ``python -m`` finds modules in the current directory, which
    environments of one's own may lie in: whoever began so goes on so.
    """
    as_module = Path(sys.argv[0]).suffix == ".py"
    if not as_module and shutil.which("rl-training"):
        return "rl-training"
    python = shutil.which("python") == sys.executable
    path = "python" if python else os.path.relpath(sys.executable, here)
    return f"{shlex.quote(path)} -m rl_training"


def _flags_for(path: Path) -> tuple[str, str]:
    """Return two flags, or nothing: the one without which code that a run's config names is not
    imported, and the one without which a larger budget finds schedules at their ends.
    """
    from rl_training.arguments import named_modules
    from rl_training.config import load_config

    try:
        config = load_config(path)
    except UserError:  # the run was read from its checkpoint
        return "", ""
    trust = " --trust-modules" if named_modules(config) else ""
    scheduled = getattr(config.algorithm, "scheduled", False)
    return trust, " --reschedule" if scheduled else ""


def _evaluate(arguments: list[str]) -> int:
    from rl_training.cli.arguments import EvaluateArguments
    from rl_training.cli.flags import parse_flags

    given = parse_flags(EvaluateArguments, arguments, program="rl-training eval", positional=True)
    given.validate()
    require_run_or_checkpoint(given.run_or_checkpoint)
    from rl_training import workflows

    report = workflows.evaluate_checkpoint(
        given.run_or_checkpoint,
        best=given.best,
        episodes=given.episodes,
        seed=given.seed,
        deterministic=not given.stochastic,
        max_episode_steps=given.max_episode_steps,
        render=given.render,
        video=given.video,
        device=given.device,
        trust_modules=given.trust_modules,
        progress=True,
    )
    print(json.dumps(report, default=str) if given.json else _describe(report))
    return 0


def _counted(report: dict[str, Any]) -> str:
    """Return what an evaluation counted: episodes, or the games of several agents; and how many of
    them never ended.
    """
    number, agents = report["episodes"], report.get("agents", 1)
    what = "episode" if agents == 1 else "game"
    text = f"{number} {what}{'' if number == 1 else 's'}"
    text += "" if agents == 1 else f" of {agents} agents (the return is their mean)"
    cut = report.get("episodes_cut", 0)
    return text + (f" ({cut} cut by evaluation.max_episode_steps)" if cut else "")


def _describe(report: dict[str, Any]) -> str:
    low, high = report["return_ci95"]
    mean_length = sum(report["lengths"]) / max(len(report["lengths"]), 1)
    how = "deterministic" if report["deterministic"] else "stochastic"
    seed = report["seed"]
    return (
        f"return      {report['return_mean']:.1f} ± {report['return_std']:.1f}"
        f" (interquartile mean {report['return_iqm']:.1f}, 95% interval {low:.1f} to {high:.1f})\n"
        f"played      {_counted(report)}, {mean_length:.1f} steps each, {how}, seed {seed}\n"
        f"checkpoint  {report['checkpoint']}"
        + (f"\nvideos      {report['videos']}" if "videos" in report else "")
    )


def _resume(arguments: list[str]) -> int:
    from rl_training.cli.arguments import ResumeArguments
    from rl_training.cli.flags import parse_flags

    given = parse_flags(ResumeArguments, arguments, program="rl-training resume", positional=True)
    given.validate()
    require_run_or_checkpoint(given.run_or_checkpoint)
    from rl_training import workflows

    here = Path.cwd()
    return _close(
        workflows.resume_checkpoint(
            given.run_or_checkpoint,
            total_timesteps=given.total_timesteps,
            reschedule=given.reschedule,
            approximate=given.resume == "approximate",
            trust_modules=given.trust_modules,
            device=given.device,
            command=["rl-training", "resume", *arguments],
            progress=True,
        ),
        here,
    )


def _check_env(arguments: list[str]) -> int:
    from rl_training.cli.check import check_env

    return check_env(arguments)


def _many_runs(name: str, arguments: list[str]) -> int:
    module = importlib.import_module(f"rl_training.cli.{_MANY_RUNS[name]}")
    command: Callable[[list[str]], int] = getattr(module, name)
    return command(arguments)


def _list(arguments: list[str]) -> int:
    from rl_training.cli.lists import show

    return show(arguments)
