"""``rl-training tune``: hyperparameters of a preset, searched for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from rl_training.cli.flags import parse_flags
from rl_training.cli.output import tell
from rl_training.errors import UserError

if TYPE_CHECKING:
    from rl_training.experiments.study import Study, StudyOutcome


@dataclass(kw_only=True)
class TuneArguments:
    """Search for hyperparameters with Optuna. The same command goes on with a study."""

    config: Annotated[list[str], tyro.conf.UseAppendAction] = field(default_factory=list)
    """What is tuned: a preset or a file; repeats, and a later file changes what an earlier one
    says, such as total_timesteps."""
    trials: int = 50
    """Trials of the whole study, those that are done included."""
    jobs: int = 1
    """Runs at a time."""
    seeds: list[int] = field(default_factory=lambda: [1, 2])
    """Seeds of every trial's runs."""
    evaluations: int = 10
    """Evaluations during a run; a trial can be pruned at each of them."""
    episodes: int = 20
    """Deterministic episodes that score a final policy."""
    space: str | None = None
    """A YAML file with the search space; by default the algorithm's own."""
    sampler: Literal["tpe", "random"] = "tpe"
    """How values are drawn."""
    pruner: Literal["median", "none"] = "median"
    """What stops a trial early: being below the median of those before."""
    sampler_seed: int = 0
    """Fixes what is drawn, for one job at a time."""
    output_dir: str | None = None
    """Folder of the study; by default runs/studies/<preset>."""

    def study(self) -> Study:
        """Return the study."""
        from rl_training.experiments.search_space import read_space
        from rl_training.experiments.study import Study

        if not self.config:
            raise UserError("what to tune is missing: give --config PRESET.")
        return Study(
            self.config,
            output_dir=self.output_dir,
            space=None if self.space is None else read_space(self.space),
            seeds=self.seeds,
            evaluations=self.evaluations,
            episodes=self.episodes,
            sampler=self.sampler,
            pruner=self.pruner,
            sampler_seed=self.sampler_seed,
        )


def tune(arguments: list[str]) -> int:
    """Run ``rl-training tune`` with the words after it."""
    given: TuneArguments = parse_flags(
        TuneArguments, arguments, program="rl-training tune", positional=True
    )
    study = given.study()
    outcome = study.run(given.trials, jobs=given.jobs, say=tell)
    tell("\n" + "\n".join(_summary(study, outcome)))
    return outcome.exit_code


def _summary(study: Study, outcome: StudyOutcome) -> list[str]:
    from rl_training.experiments.study_results import counted

    lines = [f"{counted(outcome.trials, 'trial')} in {study.directory}"]
    lines += [f"  failed  trial {trial}: {error}" for trial, error in outcome.failed.items()]
    if outcome.best_trial is None:
        return [*lines, "  no trial was finished"]
    score = f"{outcome.best_score:.1f}"
    lines.append(f"  best    trial {outcome.best_trial}: {score}, mean over the seeds")
    lines += [f"          {name}: {value}" for name, value in outcome.best_values.items()]
    # By the seed that chose it, a score would flatter.
    return [*lines, f"  train   rl-training train --config {outcome.preset} --seed 101"]
