"""`Study`: hyperparameters of a preset searched for with Optuna, each trial over several seeds.

A trial's runs are jobs like those of a benchmark (`rl_training.experiments.jobs`): processes of
their own, in folders below the study's. This process alone knows Optuna: it draws values, reads the
evaluations of the runs while they are trained, and stops the runs of a trial that is pruned.

```text
<study>/
  study.json              what is searched, and how
  study.db                Optuna's storage, SQLite
  trials.json             every trial: values, scores, state
  best.yaml               the best one as a preset
  trial_0000__seed1/      a job
```
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Literal, get_args

from rl_training.config import (
    TrainConfig,
    config_from_dict,
    config_to_dict,
    load_config,
    replace_config,
)
from rl_training.errors import UserError
from rl_training.experiments.backends import Backend, LocalBackend
from rl_training.experiments.search_space import (
    SearchSpace,
    default_space,
    fitted,
    own_values,
)
from rl_training.runtime.files import read_json, write_json, writing_to
from rl_training.runtime.run_lock import RunLock

DEFAULT_OUTPUT = Path("runs") / "studies"
Sampler = Literal["tpe", "random"]
Pruner = Literal["median", "none"]


@dataclass(frozen=True, kw_only=True)
class StudySettings:
    """How a study measures and searches."""

    seeds: Sequence[int] = (1, 2)
    """Of every trial's runs."""
    evaluations: int = 10
    """During a run, evenly spaced; a trial can be pruned at each of them."""
    episodes: int = 20
    """Deterministic episodes that score a final policy."""
    sampler: Sampler = "tpe"
    """``tpe`` (tree-structured Parzen estimator) or ``random``."""
    pruner: Pruner = "median"
    """``median``: stop what is below the median of the trials before; or ``none``."""
    sampler_seed: int = 0
    """Fixes what is drawn, for one job at a time."""

    def validate(self) -> None:
        """Raise UserError for a value that cannot be."""
        if not self.seeds or len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0:
            raise UserError(f"seeds must be different whole numbers from 0, not {self.seeds}.")
        for name in ("evaluations", "episodes"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, not {getattr(self, name)}.")
        for name, known in (("sampler", get_args(Sampler)), ("pruner", get_args(Pruner))):
            if getattr(self, name) not in known:
                raise UserError(f"{name} must be {' or '.join(known)}, not {getattr(self, name)}.")


@dataclass
class StudyOutcome:
    """How a call of `Study.run` ended."""

    trials: int = 0
    """That ended, those from before included."""
    best_trial: int | None = None
    """Number of the best one; None when none was finished."""
    best_score: float | None = None
    """Its mean score over the seeds."""
    best_values: dict[str, Any] = field(default_factory=dict)
    """Its values, by the names of fields."""
    preset: Path | None = None
    """Where it was written as a preset."""
    failed: dict[int, str] = field(default_factory=dict)
    """Trials that failed, with their errors."""
    exit_code: int = 0
    """0; 1 when no trial was finished; or 128 plus the signal's number."""


class Study:
    """A search for hyperparameters, in a folder. It goes on where it was when it is run again."""

    def __init__(
        self,
        config: TrainConfig | str | PathLike[str] | Sequence[str],
        *,
        output_dir: str | PathLike[str] | None = None,
        space: SearchSpace | None = None,
        **settings: Any,
    ) -> None:
        """Read the preset and the search space.

        Args:
            config: what is tuned: a configuration, a preset, or several files laid over each other.
            output_dir: the folder; by default ``runs/studies/<preset>``.
            space: what may be chosen; None: the algorithm's own space.
            **settings: fields of `StudySettings`.

        Raises:
            UserError: a preset, field or setting that cannot be, or the extra ``tune`` is missing.
        """
        require_optuna()
        self.settings = StudySettings(**settings)
        self.settings.validate()
        self.base = config if isinstance(config, TrainConfig) else load_config(config)
        self.name = _name(config, self.base)
        self.directory = DEFAULT_OUTPUT / self.name if output_dir is None else Path(output_dir)
        chosen = default_space(self.base) if space is None else space
        self.space = fitted(chosen, self.base)

    def run(
        self,
        trials: int,
        *,
        jobs: int = 1,
        say: Callable[[str], None] = print,
        backend: Backend | None = None,
    ) -> StudyOutcome:
        """Run trials until there are so many; those that were stopped or killed are gone on with.

        The first trial has the preset's own values. Ctrl-C and SIGTERM are passed on: every run
        writes a checkpoint first.

        Args:
            trials: of the whole study, those that are done included.
            jobs: runs at a time.
            say: gets a line whenever a trial begins or ends.
            backend: where the runs are; None: on this machine. It is closed at the end.

        Raises:
            UserError: the folder has another study or cannot be written, or another process has it.
        """
        for name, value in (("trials", trials), ("jobs", jobs)):
            if value < 1:
                raise UserError(f"{name} must be at least 1, not {value}.")
        from rl_training.experiments.study_session import StudySession

        with self._folder(), contextlib.closing(backend or LocalBackend()) as place:
            return StudySession(self, trials, jobs, say, place).run()

    @contextlib.contextmanager
    def _folder(self) -> Iterator[None]:
        """Make the folder and hold it."""
        with writing_to(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
            lock = RunLock(self.directory)
            try:
                lock.acquire()
            except UserError as error:
                raise UserError(f"another process works on {self.directory}.") from error
            with lock:
                self._require_same()
                yield

    def _require_same(self) -> None:
        path, planned = self.directory / "study.json", self.description()
        there = read_json(path)
        if there is None and path.exists():
            raise UserError(
                f"{path} is damaged, so what the study's trials were is not known: "
                "delete the study, or take another --output-dir."
            )
        if there is not None and isinstance(there.get("config"), dict):
            # A field that is new since the study was begun has its default there.
            with contextlib.suppress(UserError):
                earlier = config_from_dict(there["config"], source=str(path))
                there = {**there, "config": config_to_dict(earlier)}
        if there is not None and there != planned:
            keys = [key for key in planned if there.get(key) != planned[key]]
            raise UserError(
                f"{self.directory} has a study with other settings ({', '.join(keys)}): "
                "delete it, or take another --output-dir."
            )
        write_json(path, planned)

    def description(self) -> dict[str, Any]:
        """Return what makes the study, as plain values."""
        settings = {**vars(self.settings), "seeds": list(self.settings.seeds)}
        space = {name: vars(each) for name, each in self.space.items()}
        return {"config": config_to_dict(self.base), "space": space, **settings}

    def config(self, drawn: dict[str, Any], seed: int, directory: Path) -> TrainConfig:
        """Return the configuration of one run.

        Raises:
            UserError: the values do not fit together.
        """
        return replace_config(
            self.base,
            **self.values(drawn),
            seed=seed,
            output_dir=str(directory),
            evaluation={
                "interval": self.evaluation_interval,
                "episodes": self.settings.episodes,
                "stop_on_return": None,
                "patience": None,
            },
            checkpoint={"keep_last": 1, "keep_best": False},
            tracking={"wandb_group": self.base.tracking.wandb_group or self.name},
        )

    @property
    def evaluation_interval(self) -> int:
        """Environment steps between two evaluations."""
        return -(-self.base.total_timesteps // self.settings.evaluations)

    def values(self, drawn: dict[str, Any]) -> dict[str, Any]:
        """Return what Optuna drew as values of fields."""
        return {name: self.space[name].value(each) for name, each in drawn.items()}

    def own(self) -> dict[str, Any] | None:
        """Return the preset's own values as Optuna would draw them; None where it cannot."""
        return own_values(self.space, self.base)


def require_optuna() -> Any:
    """Return Optuna, quiet.

    Raises:
        UserError: it is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise UserError(
            'tuning needs the extra "tune": pip install "rl_training[tune]".'
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _name(given: Any, config: TrainConfig) -> str:
    if isinstance(given, TrainConfig):
        return re.sub(r"[^A-Za-z0-9._-]+", "-", f"{config.algo}_{config.env_id}")
    files = [given] if isinstance(given, str | PathLike) else given
    return "_".join(Path(each).stem for each in files)
