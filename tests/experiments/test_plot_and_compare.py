from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_training.cli import main
from rl_training.config import dump_yaml, load_config, replace_config
from rl_training.experiments import plot_runs as plot_runs_module
from rl_training.experiments import plots
from rl_training.experiments.card import card
from rl_training.experiments.compare import compare, grouped, read_run
from rl_training.experiments.line_styles import style_numbers
from rl_training.experiments.plots import shared_steps
from rl_training.experiments.results import load_results
from tests.experiments.stand_in import write_manifest, write_runs


def write_run(directory: Path, *, preset: str = "ppo_cartpole", **changes: Any) -> str:
    directory.mkdir(parents=True)
    config = replace_config(load_config(preset), output_dir=str(directory.parent), **changes)
    (directory / "config.yaml").write_text(dump_yaml(config), encoding="utf-8")
    lines = [{"step": 100 * n, "train/return_mean": float(config.seed + n)} for n in range(1, 4)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (directory / "metrics.jsonl").write_text(text + '{"step": 4', encoding="utf-8")
    metadata = {"status": "finished", "versions": {"torch": "2"}, "machine": {"processor": "x"}}
    (directory / "metadata.json").write_text(json.dumps(metadata), encoding="utf-8")
    result = {"status": "finished", "global_step": 300, "eval": {"return_mean": 10.0 + config.seed}}
    (directory / "result.json").write_text(json.dumps(result), encoding="utf-8")
    return str(directory)


def test_differences_stand_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = write_run(tmp_path / "a")
    second = write_run(tmp_path / "b", seed=2, learning_rate=0.5)
    content = compare(read_run(first), read_run(second))
    assert content["config"] == {"seed": [1, 2], "algorithm.learning_rate": [0.001, 0.5]}
    assert content["result"]["eval.return_mean"] == [11.0, 12.0]
    assert content["result"]["version of torch"] == ["2", "2"]
    assert main(["compare", first, second, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == content
    assert main(["compare", first, second]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["algorithm.learning_rate", "0.001", "0.5"] in lines
    assert ["*", "eval.return_mean", "11", "12"] in lines
    assert ["global_step", "300", "300"] in lines
    assert main(["compare", first, first]) == 0
    assert "config: the same" in capsys.readouterr().out


def test_runs_of_equal_settings_are_one_line(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / f"a{seed}", seed=seed) for seed in (1, 2)]
    paths.append(write_run(tmp_path / "b", learning_rate=0.5))
    paths.append(write_run(tmp_path / "c", preset="ppg_cartpole"))
    [(env_id, lines)] = grouped([read_run(path) for path in paths]).items()
    assert env_id == "CartPole-v1"
    assert {name: [run.path.name for run in runs] for name, runs in lines.items()} == {
        "ppo, learning_rate 0.001": ["a1", "a2"],
        "ppo, learning_rate 0.5": ["b"],
        "ppg": ["c"],
    }


MANY: dict[str, Any] = {"discount": 0.5, "max_gradient_norm": 0.25, "total_timesteps": 4096}


def test_lines_of_many_settings_are_named_by_those_that_tell_them_apart(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / "a"), write_run(tmp_path / "b", learning_rate=0.5, **MANY)]
    paths.append(write_run(tmp_path / "c", learning_rate=0.25, **MANY))
    [lines] = grouped([read_run(path) for path in paths]).values()
    assert {name: [run.path.name for run in runs] for name, runs in lines.items()} == {
        "ppo, learning_rate 0.001 (+3 settings)": ["a"],
        "ppo, learning_rate 0.5 (+3 settings)": ["b"],
        "ppo, learning_rate 0.25 (+3 settings)": ["c"],
    }


def test_lines_that_few_settings_do_not_tell_apart_are_named_by_their_runs(tmp_path: Path) -> None:
    names = ("a", "b/run", "c/run", "ppo__d")
    paths = [
        write_run(tmp_path / name, **{key: MANY[key] for key in list(MANY)[:count]})
        for count, name in enumerate(names)
    ]
    paths.append(write_run(tmp_path / "e", hidden_sizes=[32] * 40))
    [lines] = grouped([read_run(path) for path in paths]).values()
    top = tmp_path.name
    assert list(lines) == [
        *(f"ppo, {name}" for name in (f"{top}/a", "b/run", "c/run", f"{top}/ppo__d", f"{top}/e")),
    ]


def test_a_legend_covers_no_line(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    pytest.importorskip("matplotlib")
    from rl_training.experiments.plots import draw_curves, save

    for count, length, below in ((2, 10, False), (2, 90, True), (12, 10, True), (12, 90, True)):
        names = [f"{number:02}{'_' * length}" for number in range(count)]
        panel = {name: [[(0, 1.0), (100, 2.0)]] for name in names}
        panels = {f"Environment-v{number}": panel for number in range(1 if count == 2 else 4)}
        styles = {name: number for number, name in enumerate(names)}
        figure = draw_curves(panels, "return", styles)
        if below and count == 2:
            save(figure, tmp_path / "curves")
        figure.draw_without_rendering()  # at its own resolution
        for axis in figure.axes:
            box, legend = axis.get_window_extent(), axis.get_legend().get_window_extent()
            assert box.height / figure.dpi > 2.0 and box.width / figure.dpi > 3.0
            assert legend.x0 >= 0 and legend.x1 <= figure.bbox.x1 and legend.y0 >= 0
            assert (legend.y1 < axis.xaxis.label.get_window_extent().y0) == below
    assert not recwarn.list, "matplotlib warns where the layout has no room"


def test_curves_share_steps_or_are_drawn_between_their_points() -> None:
    steps, values = shared_steps([[(1, 1.0), (2, 2.0), (3, 3.0)], [(1, 5.0), (3, 7.0)]])
    assert steps == [1, 3]
    assert values.tolist() == [[1.0, 3.0], [5.0, 7.0]]
    steps, values = shared_steps([[(0, 0.0), (10, 10.0), (20, 20.0)], [(5, 1.0), (15, 3.0)]])
    assert steps == [10]
    assert values.tolist() == [[10.0], [2.0]]


def test_plot_draws_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    paths = [write_run(tmp_path / f"a{seed}", seed=seed) for seed in (1, 2)]
    output = tmp_path / "plots" / "curves.png"
    assert main(["plot", *paths, "--output", str(output)]) == 0
    written = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert written == [output, output.with_suffix(".svg")]
    assert all(path.stat().st_size > 1000 for path in written)
    assert main(["plot", *paths, "--output", str(output), "--metric", "train/return_meen"]) == 2
    assert "Did you mean 'train/return_mean'?" in capsys.readouterr().err


def test_a_run_without_values_is_left_out_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    paths = [write_run(tmp_path / f"a{seed}", seed=seed) for seed in (1, 2)]
    Path(paths[0], "metrics.jsonl").unlink()
    output = tmp_path / "curves.png"
    assert main(["plot", *paths, "--output", str(output)]) == 0
    assert f"{paths[0]} is left out: it has no values of 'train/return_mean'" in caplog.text
    assert output.exists()
    assert main(["plot", paths[0]]) == 2
    assert main(["plot", paths[1], "--metric", "nothing like it"]) == 2
    assert capsys.readouterr().err.endswith(" It has: train/return_mean.\n")


@pytest.mark.parametrize(
    ("evaluated", "resumes", "drawn"),
    [
        ([300], 0, "train/return_mean"),
        ([200, 300], 1, "train/return_mean"),  # at the end, and at the end again
        ([300, 300], 0, "train/return_mean"),
        ([100, 300], 0, "eval/return_mean"),
        ([100, 200, 300], 1, "eval/return_mean"),
    ],
)
def test_evaluations_at_the_end_alone_are_no_curve(
    evaluated: list[int], resumes: int, drawn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    figures: list[Any] = []

    def keep(figure: Any, base: Path) -> Path:
        figures.append(figure)
        return base.with_suffix(".svg")

    monkeypatch.setattr(plot_runs_module, "save", keep)
    run = Path(write_run(tmp_path / "run"))
    lines = [json.dumps({"step": step, "return_mean": 5.0}) + "\n" for step in evaluated]
    (run / "evaluations.jsonl").write_text("".join(lines), encoding="utf-8")
    metadata = {"status": "finished", "resumes": [{}] * resumes}
    (run / "metadata.json").write_text(json.dumps(metadata), encoding="utf-8")
    plot_runs_module.plot_runs([run], tmp_path / "curves")
    [axis] = figures[0].axes
    steps = [100, 200, 300] if drawn.startswith("train") else evaluated
    assert axis.get_ylabel().endswith(f"({drawn})")
    assert list(axis.lines[0].get_xdata()) == steps
    (run / "metrics.jsonl").unlink()
    plot_runs_module.plot_runs([run], tmp_path / "curves")
    label = figures[1].axes[0].get_ylabel()
    assert label.endswith("(eval/return_mean)"), "there is nothing else"


def test_plots_go_to_the_current_directory_and_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    run = write_run(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    assert main(["plot", run]) == 0
    assert capsys.readouterr().out.split() == ["learning_curves.png", "learning_curves.svg"]
    assert {path.name for path in tmp_path.glob("*.*g")} == {
        "learning_curves.png",
        "learning_curves.svg",
    }
    with pytest.raises(SystemExit):
        main(["plot", "--help"])
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "in the current directory" in said and "learning_curves" in said


def test_a_line_is_the_interquartile_mean_of_its_runs(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from rl_training.experiments.plots import draw_curves

    curves = [[(100, value), (200, 2 * value)] for value in (1.0, 2.0, 3.0, 100.0)]
    figure = draw_curves({"A-v0": {"ppo": curves}}, "return", {"ppo": 0})
    [line] = figure.axes[0].lines
    assert np.asarray(line.get_data()).tolist() == [[100, 200], [2.5, 5.0]]
    [band] = figure.axes[0].collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert 1.0 <= heights.min() < 2.5 and 5.0 < heights.max() <= 200.0


def styles_of(figure: Any) -> dict[str, Any]:
    lines = [line for axis in figure.axes for line in axis.get_lines()]
    return {
        str(line.get_label()).partition(" ")[0]: (line.get_color(), line.get_linestyle())
        for line in lines
    }


def test_an_algorithm_looks_alike_in_every_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    figures: dict[str, Any] = {}

    def keep(figure: Any, path: Path) -> Path:
        figures[path.name] = figure
        return path.with_suffix(".svg")

    monkeypatch.setattr(plot_runs_module, "save", keep)
    monkeypatch.setattr(plots, "save", keep)
    ppo, ppg = (write_run(tmp_path / each, preset=f"{each}_cartpole") for each in ("ppo", "ppg"))
    for name, runs in (("both", [ppo, ppg]), ("turned", [ppg, ppo]), ("alone", [ppg])):
        plot_runs_module.plot_runs(runs, tmp_path / name)
    manifest = write_manifest(tmp_path).select(["ppg_cartpole"], [])
    write_runs(manifest, tmp_path / "runs", {"ppg_cartpole": {1: 3.0, 2: 4.0, 3: 5.0}})
    plots.draw_benchmark(manifest, load_results(manifest, tmp_path / "runs"), tmp_path)
    expected = styles_of(figures["both"])
    assert expected["ppo"] != expected["ppg"]
    assert styles_of(figures["turned"]) == expected
    assert styles_of(figures["alone"])["ppg"] == expected["ppg"]
    assert styles_of(figures["learning_curves"])["ppg_cartpole"] == expected["ppg"]
    assert styles_of(figures["profiles"])["ppg"] == expected["ppg"]
    [bar] = figures["scores"].axes[0].patches
    assert matplotlib_hex(bar.get_edgecolor()) == expected["ppg"][0]


def matplotlib_hex(color: Any) -> str:
    from matplotlib.colors import to_hex

    return to_hex(color)


def test_lines_of_one_figure_have_styles_of_their_own() -> None:
    lines = {"mine": "a2c", "ppo, x 1": "ppo", "ppg": "ppg", "ppo, x 2": "ppo"}
    assert style_numbers(lines) == {"mine": 2, "ppo, x 1": 0, "ppg": 1, "ppo, x 2": 3}


def test_a_card_says_what_was_measured_and_how_to_load_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(write_run(tmp_path / "job" / "run"))
    result = json.loads((run / "result.json").read_text("utf-8"))
    evaluation = {"return_mean": 11.0, "return_std": 2.0, "episodes": 20}
    (run / "result.json").write_text(json.dumps({**result, "eval": evaluation}), encoding="utf-8")
    assert main(["card", str(run)]) == 0
    assert capsys.readouterr().out == f"{run / 'MODEL_CARD.md'}\n"
    text = (run / "MODEL_CARD.md").read_text("utf-8")
    assert text.startswith("---\nlibrary_name: rl_training\ntags:\n")
    assert "| last evaluation in training, 20 episodes | 11.0 | 2.0 |" in text
    assert "rl-training eval RUN" in text and "learning_rate: 0.001" in text
    final = {"return_mean": 12.5, "return_std": 1.0, "episodes": 100}
    (run.parent / "scores.json").write_text(json.dumps({"final": final}), encoding="utf-8")
    assert main(["card", str(run), "--output", str(tmp_path / "card.md")]) == 0
    text = (tmp_path / "card.md").read_text("utf-8")
    assert "| final policy, 100 episodes on seeds of their own | 12.5 | 1.0 |" in text
    (run / "result.json").unlink()
    (run.parent / "scores.json").unlink()
    assert main(["card", str(run)]) == 0
    assert "It was not evaluated." in (run / "MODEL_CARD.md").read_text("utf-8")


def test_a_card_has_the_final_and_the_best_score(tmp_path: Path) -> None:
    run = Path(write_run(tmp_path / "job" / "run"))
    result = json.loads((run / "result.json").read_text("utf-8"))
    final = {"return_mean": 11.0, "return_std": 2.0, "episodes": 20}
    (run / "result.json").write_text(json.dumps({**result, "eval": final}), encoding="utf-8")
    lines = [
        {"step": step, "return_mean": mean, "return_std": 1.5, "episodes": 20}
        for step, mean in ((100, 4.0), (200, 17.0), (300, 11.0))
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (run / "evaluations.jsonl").write_text(text, encoding="utf-8")
    assert "best checkpoint" not in card(read_run(run))
    for name in ("step_000000000200", "step_000000000300"):
        (run / "checkpoints" / name).mkdir(parents=True)
    (run / "checkpoints" / "best").write_text("step_000000000200\n", encoding="utf-8")
    text = card(read_run(run))
    assert "| last evaluation in training, 20 episodes | 11.0 | 2.0 |" in text
    best = (
        "| best checkpoint (step 200): the evaluation of 20 episodes that chose it, which favours"
    )
    assert f"{best} it | 17.0 | 1.5 |" in text
    assert "rl-training eval RUN --episodes 100  # the best checkpoint: --best" in text
    (run / "checkpoints" / "best").write_text("step_000000000300\n", encoding="utf-8")
    assert "best checkpoint" not in card(read_run(run)), "the final policy is the best"


def test_a_card_of_code_of_ones_own_and_of_a_memory_says_how_to_load_it(tmp_path: Path) -> None:
    preset = "recurrent_ppo_tmaze"
    run = Path(write_run(tmp_path / "run", preset=preset, env_id="my_package:Robot-v0"))
    (run / "result.json").unlink()
    text = card(read_run(run))
    assert "rl-training eval RUN --episodes 100 --trust-modules" in text
    assert 'load_algorithm("RUN", trust_modules=True)' in text and "stateful_policy()" in text
    assert "loading\nthem runs no code but that of `my_package`" in text


STRANGE_LINES = [
    {"train/return_mean": 5.0},
    {"step": "64", "train/return_mean": 5.0},
    {"step": 64, "train/return_mean": "5"},
    {"step": 64, "train/return_mean": 10**400},
]


def test_strange_records_are_passed_over(tmp_path: Path) -> None:
    run, same = Path(write_run(tmp_path / "a")), Path(write_run(tmp_path / "b"))
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.writelines("\n" + json.dumps(line) for line in STRANGE_LINES)
    metric = "train/return_mean"
    assert read_run(run).curve(metric) == read_run(same).curve(metric) != []
    (run / "metadata.json").write_text('{"machine": 3, "versions": []}')
    for evaluation in ([1], {"return_mean": "x"}, {"return_mean": 1.0}):
        (run / "result.json").write_text(json.dumps({"eval": evaluation, "global_step": "x"}))
        assert main(["plot", str(run), "--output", str(tmp_path / "curve")]) == 0
        assert main(["compare", str(run), str(same)]) == 0
        assert main(["card", str(run)]) == 0
        assert "It was not evaluated." in (run / "MODEL_CARD.md").read_text()


def test_a_metric_without_a_number_is_not_proposed_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(write_run(tmp_path / "a"))
    (run / "metrics.jsonl").write_text('{"step": 64, "train/return_mean": null}\n')
    assert main(["plot", str(run)]) == 2
    assert capsys.readouterr().err.endswith("has no values of 'train/return_mean'.\n")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["plot"], "there is no run to plot"),
        (["plot", "nowhere"], "there is no run nowhere"),
        (["compare", "nowhere"], "RUN"),
        (["compare", "nowhere", "nowhere"], "there is no run nowhere"),
    ],
)
def test_a_mistake_is_one_line(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    err = capsys.readouterr().err
    assert complaint in err and err.count("\n") == 1
