"""``rl-training benchmark | plot | compare | export | card``: many runs, and runs for others."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from rl_training.cli.arguments import RunOrCheckpoint
from rl_training.cli.flags import parse_flags
from rl_training.cli.output import tell
from rl_training.cli.paths import require_run_or_checkpoint, require_runs
from rl_training.errors import UserError, nearest

if TYPE_CHECKING:
    from rl_training.experiments.manager import ExperimentManager

ManifestName = Annotated[str, tyro.conf.arg(metavar="MANIFEST")]
HELP = """\
usage: rl-training benchmark COMMAND ...

  rl-training benchmark list     [MANIFEST]               the zoo's manifests, or one's runs
  rl-training benchmark run      MANIFEST [--jobs N]      start, or go on with, what is not done
                                 [--backend ray]          ... on a Ray cluster
  rl-training benchmark status   MANIFEST [--json]        how far each run is
  rl-training benchmark report   MANIFEST [--no-plots]    tables, plots; exit 1: a score was missed
  rl-training benchmark annotate MANIFEST                 scores into presets and zoo/README.md
  rl-training benchmark pack     MANIFEST [--output FILE] what the report is made of, as one file

MANIFEST is a file or the name of one of the zoo. COMMAND --help shows every flag.
"""


@dataclass(kw_only=True)
class ManifestArguments:
    """A manifest and its folder."""

    manifest: ManifestName
    """A file, or the name of a manifest of the zoo."""
    output_dir: str | None = None
    """Folder of the runs; by default runs/benchmarks/<name>."""
    presets: list[str] = field(default_factory=list)
    """These presets of it alone."""
    seeds: list[int] = field(default_factory=list)
    """These seeds of it alone."""

    def manager(self) -> ExperimentManager:
        """Return the manager of the manifest's runs."""
        from rl_training.experiments.manager import ExperimentManager

        return ExperimentManager(
            self.manifest, output_dir=self.output_dir, presets=self.presets, seeds=self.seeds
        )


@dataclass(kw_only=True)
class RunArguments(ManifestArguments):
    """Run what is not done: start it, go on with what was stopped, try again what failed."""

    jobs: int | None = None
    """Processes at a time; by default 1, on Ray one for each CPU of the cluster."""
    backend: Literal["local", "ray"] = "local"
    """Where they run: on this machine, or on a Ray cluster that exists already."""
    ray_address: str | None = None
    """The cluster's, host:port or ray://host:port; by default this machine's or RAY_ADDRESS."""

    def validate(self) -> None:
        """Refuse values that do not go together."""
        if self.ray_address is not None and self.backend != "ray":
            raise UserError("--ray-address needs --backend ray.")


@dataclass(kw_only=True)
class StatusArguments(ManifestArguments):
    """Show how far each run is."""

    json: bool = False
    """Print one JSON object and nothing else."""


@dataclass(kw_only=True)
class ReportArguments(ManifestArguments):
    """Write tables and plots of the results; the exit status is 1 when an expected score is missed
    or not all of its seeds are done.
    """

    report_dir: str | None = None
    """Where to; by default report/ in the folder of the runs."""
    no_plots: bool = False
    """Tables alone."""


@dataclass(kw_only=True)
class AnnotateArguments(ManifestArguments):
    """Write the measured scores into the presets' first lines and into zoo/README.md."""

    machine: str | None = None
    """What the machine is called there; by default its processor."""


@dataclass(kw_only=True)
class PackArguments(ManifestArguments):
    """Write what the report is made of as one file, without checkpoints. Unpacked, it is a folder
    of runs again.
    """

    output: str | None = None
    """The file; by default <name>.tar.xz in the folder of the runs."""


@dataclass(kw_only=True)
class PlotArguments:
    """Draw learning curves: a line for each algorithm and setting, its seeds taken together."""

    runs: Annotated[tuple[str, ...], tyro.conf.arg(metavar="RUN")]
    """Run directories."""
    output: str = "learning_curves"
    """Name of the files, in the current directory or with a path; .png and .svg are put on."""
    metric: str | None = None
    """A name of metrics.jsonl, or eval/NAME; by default the mean return."""


@dataclass(kw_only=True)
class CompareArguments:
    """Show two runs side by side: where their configurations differ, and their results."""

    first: Annotated[str, tyro.conf.arg(metavar="RUN")]
    """A run directory."""
    second: Annotated[str, tyro.conf.arg(metavar="RUN")]
    """Another one."""
    json: bool = False
    """Print one JSON object and nothing else."""


@dataclass(kw_only=True)
class ExportArguments:
    """Write a policy for elsewhere: as a policy directory, or as one ONNX file."""

    run_or_checkpoint: RunOrCheckpoint
    """A run's directory (its latest checkpoint) or a checkpoint's."""
    format: Literal["safetensors", "onnx"] = "safetensors"
    """A directory for rl-training itself, or one file from raw observations to actions."""
    output: str | None = None
    """The directory or file; by default policy or policy.onnx in the run's directory, of one
    checkpoint or the best with its name before.
    """
    best: bool = False
    """The run's best checkpoint instead of the latest."""
    trust_modules: bool = False
    """Import the code that the checkpoint's config names ("module:Class")."""


@dataclass(kw_only=True)
class CardArguments:
    """Write the model card of a run: score, configuration, how to load it."""

    run: Annotated[str, tyro.conf.arg(metavar="RUN")]
    """A run directory."""
    output: str | None = None
    """The file; by default MODEL_CARD.md in the run."""


def benchmark(arguments: list[str]) -> int:
    """Run ``rl-training benchmark`` with the words after it."""
    commands: dict[str, Callable[[list[str]], int]] = {
        "list": _list,
        "run": _run,
        "status": _status,
        "report": _report,
        "annotate": _annotate,
        "pack": _pack,
    }
    name = arguments[0] if arguments else ""
    if name in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0
    if name not in commands:
        what = f"unknown command {name!r}" if name else "a command is missing"
        raise UserError(
            f"benchmark: {what}.{nearest(name, commands)} Known: {', '.join(commands)}."
        )
    return commands[name](arguments[1:])


def _parse(cls: type[Any], arguments: Sequence[str], command: str) -> Any:
    return parse_flags(cls, arguments, program=f"rl-training {command}", positional=True)


def _list(arguments: list[str]) -> int:
    from rl_training.config import manifest_paths
    from rl_training.experiments.manifest import load_manifest

    if {"-h", "--help"} & set(arguments):
        print("usage: rl-training benchmark list [MANIFEST]")
        return 0
    if len(arguments) > 1:
        raise UserError(f"benchmark list takes one manifest, not {' '.join(arguments)!r}.")
    if arguments:
        manifest = load_manifest(arguments[0])
        for preset in manifest.presets:
            seeds = ", ".join(str(seed) for seed in manifest.seeds_of(preset))
            print(f"{preset:<42} seeds {seeds}")
        return 0
    for name, path in manifest_paths().items():
        manifest = load_manifest(path)
        runs = sum(len(manifest.seeds_of(preset)) for preset in manifest.presets)
        print(f"{name:<12} {len(manifest.presets)} presets, {runs} runs: {manifest.title}")
    return 0


def _run(arguments: list[str]) -> int:
    given: RunArguments = _parse(RunArguments, arguments, "benchmark run")
    given.validate()
    manager = given.manager()
    jobs, backend = given.jobs, None
    if given.backend == "ray":
        from rl_training.experiments.ray_backend import RayBackend

        backend = RayBackend(given.ray_address)
        jobs = backend.cpus() if jobs is None else jobs
    outcome = manager.run(
        jobs=1 if jobs is None else jobs,
        say=tell,
        backend=backend,
    )
    counts = {
        "done": len(outcome.done),
        "failed": len(outcome.failed),
        "stopped": len(outcome.stopped),
        "running elsewhere": len(outcome.elsewhere),
    }
    tell("\n" + ", ".join(f"{count} {what}" for what, count in counts.items() if count))
    for job, error in outcome.failed.items():
        tell(f"  failed  {job.name}: {error}\n          {job.directory / 'log.txt'}")
    return outcome.exit_code


def _status(arguments: list[str]) -> int:
    given: StatusArguments = _parse(StatusArguments, arguments, "benchmark status")
    from rl_training.experiments.results import progress

    manager = given.manager()
    lines = [progress(job, state) for job, state in manager.status().items()]
    if given.json:
        print(json.dumps({"directory": str(manager.directory), "runs": lines}))
        return 0
    for line in lines:
        what = f"{line['preset']} seed {line['seed']}"
        score = "" if line["score"] is None else f"  {line['score']:.1f}"
        error = f"  {line['error']}" if line["error"] else ""
        print(f"{line['status']:<8} {what:<48} step {line['step']:>12,}{score}{error}")
    return 0


def _report(arguments: list[str]) -> int:
    given: ReportArguments = _parse(ReportArguments, arguments, "benchmark report")
    from rl_training.experiments.report import report_summary

    report = given.manager().report(given.report_dir, plots=not given.no_plots)
    print(report_summary(report))
    return report.exit_code


def _annotate(arguments: list[str]) -> int:
    given: AnnotateArguments = _parse(AnnotateArguments, arguments, "benchmark annotate")
    from rl_training.config.presets import zoo_directory
    from rl_training.experiments.annotate import annotate

    manager = given.manager()
    done = annotate(
        manager.manifest,
        manager.directory,
        readme=zoo_directory() / "README.md",
        machine=given.machine,
    )
    for preset in done.written:
        print(f"{'written':<10}{preset}")
    for preset, reason in done.skipped.items():
        print(f"{'left out':<10}{preset}: {reason}")
    for path in done.files:
        print(path)
    return 0


def _pack(arguments: list[str]) -> int:
    given: PackArguments = _parse(PackArguments, arguments, "benchmark pack")
    from pathlib import Path

    from rl_training.experiments.records import pack_records

    manager = given.manager()
    name = f"{manager.manifest.name}.tar.xz"
    path = Path(given.output) if given.output else manager.directory / name
    count = pack_records(manager.manifest, manager.directory, path)
    print(f"{count} runs: {path}")
    return 0


def plot(arguments: list[str]) -> int:
    """Run ``rl-training plot`` with the words after it."""
    given: PlotArguments = _parse(PlotArguments, arguments, "plot")
    require_runs(*given.runs)
    from rl_training.experiments.plot_runs import plot_runs

    for path in plot_runs(given.runs, given.output, metric=given.metric):
        print(path)
    return 0


def compare(arguments: list[str]) -> int:
    """Run ``rl-training compare`` with the words after it."""
    given: CompareArguments = _parse(CompareArguments, arguments, "compare")
    require_runs(given.first, given.second)
    from rl_training.experiments import compare as runs

    first, second = runs.read_run(given.first), runs.read_run(given.second)
    if given.json:
        print(json.dumps(runs.compare(first, second)))
        return 0
    print("\n".join(runs.comparison_lines(first, second)))
    return 0


def export(arguments: list[str]) -> int:
    """Run ``rl-training export`` with the words after it."""
    given: ExportArguments = _parse(ExportArguments, arguments, "export")
    require_run_or_checkpoint(given.run_or_checkpoint)
    from rl_training.experiments.export import export_policy

    print(
        export_policy(
            given.run_or_checkpoint,
            given.output,
            format=given.format,
            best=given.best,
            trust_modules=given.trust_modules,
        )
    )
    return 0


def card(arguments: list[str]) -> int:
    """Run ``rl-training card`` with the words after it."""
    given: CardArguments = _parse(CardArguments, arguments, "card")
    require_runs(given.run)
    from rl_training.experiments.card import write_card

    print(write_card(given.run, given.output))
    return 0
