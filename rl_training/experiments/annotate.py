"""Measured scores into the zoo: the first lines of presets, and the tables of its README.

Nothing is written that the runs in the folder do not show: all seeds of a preset, trained with the
preset as it stands now.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rl_training.config import TrainConfig, config_to_dict, find_preset, load_config
from rl_training.errors import UserError
from rl_training.experiments.document import Table, markdown_table
from rl_training.experiments.manifest import Manifest, PeerScore
from rl_training.experiments.pages import number, span
from rl_training.experiments.results import PresetResult, load_results
from rl_training.experiments.statistics import summarise
from rl_training.runtime.files import replace_durable, writing_to

SECTION = "## Scores"
"""Where the tables stand in ``zoo/README.md``."""
PEER = "RL Baselines3 Zoo"
"""The source whose scores have a column there."""
_PEER_COLUMN = "RL Zoo, one agent"
_COLUMNS = ["preset", "steps", "mean return, each seed", "mean", _PEER_COLUMN, "seconds a run"]
_MEASURED = re.compile(r"^# Measured:.*\n(?:#   .*\n)*", re.MULTILINE)
_COUNTS = {1: "one", 2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven", 8: "eight"}
Row = dict[str, str]


@dataclass
class Annotation:
    """What was written, and what was not."""

    written: list[str] = field(default_factory=list)
    """Presets whose scores were written."""
    skipped: dict[str, str] = field(default_factory=dict)
    """The others, with the reason."""
    files: list[Path] = field(default_factory=list)
    """Files that changed."""


def annotate(
    manifest: Manifest, runs: Path, *, readme: Path, machine: str | None = None
) -> Annotation:
    """Write the scores of a manifest's runs into its presets and into the zoo's README.

    Args:
        manifest: what was run.
        runs: the folder of the runs.
        readme: the zoo's.
        machine: what the machine is called; None: by its processor.

    Raises:
        UserError: a file cannot be read or written, or has no place for the scores.
    """
    done = Annotation()
    rows: dict[str, Row] = {}
    texts: dict[Path, str] = {}
    for each in load_results(manifest, runs):
        reason = why_not(each)
        if reason is not None:
            done.skipped[each.preset] = reason
            continue
        path = find_preset(each.preset)
        texts[path] = with_header(_read(path), header(each, machine), source=str(path))
        rows[each.preset] = row(manifest, each)
        done.written.append(each.preset)
    if rows:
        texts[readme] = with_rows(_read(readme), rows, source=str(readme))
    for path, text in texts.items():
        if text != _read(path):
            _write(path, text)
            done.files.append(path)
    return done


def why_not(result: PresetResult) -> str | None:
    """Return why a preset's scores are not to be written; None when they are."""
    if result.entry.preset is not None or result.entry.env_id is not None:
        return "it has no preset of its own"
    if not result.done:
        return "not measured"
    if not result.complete:
        return result.seeds_done
    if not result.as_now:
        return "the preset or the manifest changed since"
    if _trained(result.config) != _trained(load_config(result.preset)):
        return "the manifest trains it with other settings than the preset's"
    return None


def _trained(config: TrainConfig) -> dict[str, object]:
    """Return the part of a configuration that shapes the final policy."""
    content = config_to_dict(config)
    for name in ("evaluation", "checkpoint", "tracking", "seed", "output_dir", "tags"):
        del content[name]
    evaluation = config.evaluation
    stops = (evaluation.stop_on_return, evaluation.patience)
    # Evaluations shape the policy only where they may end the training.
    return {**content, "stops": None if stops == (None, None) else (*stops, evaluation.interval)}


def header(result: PresetResult, machine: str | None = None) -> str:
    """Return the lines of a preset that say what was measured."""
    config, scores = result.config, result.scores()
    episodes = result.episodes
    how = "deterministic" if config.evaluation.deterministic else "stochastic"
    seeds = ", ".join(str(each.seed) for each in result.done)
    listed = ", ".join(number(score) for score in scores)
    seconds = span([each.seconds for each in result.done])
    threads = config.torch_threads
    place = f"{_count(threads)} thread{'s' * (threads > 1)} of {machine or _machine(result)}"
    return (
        f"# Measured: mean return of {episodes} {how} episodes of the final policy, "
        f"seeds {seeds}:\n"
        f"#   {listed} (mean {number(summarise(scores).mean)}); {seconds} s a run, evaluation "
        f"included, {place}{_side_by_side(result)}.\n"
    )


def _machine(result: PresetResult) -> str:
    machines = [each.metadata.get("machine") or {} for each in result.done]
    names = {str(each.get("processor_name") or "an unknown processor") for each in machines}
    return " or ".join(sorted(names))


def _side_by_side(result: PresetResult) -> str:
    counts = {each.side_by_side or 1 for each in result.done}
    if counts == {1}:
        return ""
    return f", {' or '.join(_count(count) for count in sorted(counts))} runs at a time"


def _count(count: int) -> str:
    return _COUNTS.get(count, str(count))


def with_header(text: str, measured: str, *, source: str) -> str:
    """Return a preset's text with other lines about what was measured.

    Raises:
        UserError: it has no line ``# Measured:`` before its first key.
    """
    top, gap, rest = text.partition("\n\n")
    top += "\n"
    if len(_MEASURED.findall(top)) != 1:
        raise UserError(f"{source} has no single '# Measured:' in its first lines.")
    return _MEASURED.sub(lambda _: measured, top).removesuffix("\n") + gap + rest


def row(manifest: Manifest, result: PresetResult) -> Row:
    """Return a preset's row in the README."""
    scores = result.scores()
    cells = [
        f"`{result.preset}`",
        f"{max(each.steps for each in result.done):,}",
        ", ".join(number(score) for score in scores),
        number(summarise(scores).mean),
        ", ".join(
            _published(peer, result.config.env_id)
            for peer in result.entry.peers
            if manifest.sources[peer.source].name == PEER
        ),
        span([each.seconds for each in result.done]),
    ]
    return dict(zip(_COLUMNS, cells, strict=True))


def _published(peer: PeerScore, env_id: str) -> str:
    """Write a published score as ``242.1 @ 1M (v2)``."""
    steps = f"{peer.steps / 1e6:g}M" if peer.steps >= 1_000_000 else f"{peer.steps / 1e3:g}k"
    version = ""
    if peer.env_id is not None and peer.env_id != env_id:
        version = f" ({peer.env_id.rpartition('-')[2]})"
    return f"{peer.score:g} @ {steps}{version}"


def with_rows(text: str, rows: Mapping[str, Row], *, source: str) -> str:
    """Return the README with other rows in the tables under `SECTION`: a table for each algorithm.
    Rows of other presets stay.

    Raises:
        UserError: it has no such section.
    """
    before, found, rest = text.partition(f"{SECTION}\n")
    if not found:
        raise UserError(f"{source} has no section {SECTION!r}.")
    section, next_heading, after = _until_heading(rest)
    prose = [line for line in section.splitlines() if not line.startswith("|")]
    merged = {**_existing(section), **rows}
    tables = [_table(group) for group in _by_algorithm(merged)]
    body = "\n\n".join(["\n".join(prose).strip("\n"), *tables])
    gap = "\n" if next_heading else ""
    return f"{before}{found}\n{body}\n{gap}{next_heading}{after}"


def _until_heading(text: str) -> tuple[str, str, str]:
    match = re.search(r"^#{1,2} ", text, re.MULTILINE)
    if match is None:
        return text, "", ""
    return text[: match.start()], match[0], text[match.end() :]


def _existing(section: str) -> dict[str, Row]:
    """Return the rows that the tables of a section have, by preset."""
    rows: dict[str, Row] = {}
    header: list[str] = []
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|") or set(line) <= set("|-: "):
            continue
        if cells[0] == _COLUMNS[0]:
            header = cells
        else:
            rows[cells[0].strip("`")] = dict(zip(header, cells, strict=True))
    return rows


def _by_algorithm(rows: Mapping[str, Row]) -> list[list[Row]]:
    groups: dict[str, list[Row]] = {}
    for preset, cells in rows.items():
        groups.setdefault(load_config(preset).algo, []).append(cells)
    return list(groups.values())


def _table(rows: Sequence[Row]) -> str:
    columns = [name for name in _COLUMNS if name != _PEER_COLUMN or any(map(_has_peer, rows))]
    return markdown_table(Table(columns, [[row.get(name, "") for name in columns] for row in rows]))


def _has_peer(cells: Row) -> bool:
    return bool(cells.get(_PEER_COLUMN))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}.") from error


def _write(path: Path, text: str) -> None:
    with writing_to(path):
        replace_durable(path, text.encode("utf-8"))
