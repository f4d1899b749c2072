import numpy as np
import pytest
import yaml
from run_folders import make_run

from drl_cli.runs.comparison import compare
from drl_cli.runs.end_text import end_text
from drl_cli.runs.figure import make_figure
from drl_cli.runs.groups import grouped
from drl_cli.runs.resume import named_run, resume, with_config_of
from drl_cli.runs.run import Run
from drl_cli.runs.statistics import interval
from drl_cli.settings.command_line import read_command
from drl_cli.settings.compose import compose


def test_the_next_commands_stand_below_each_other(tmp_path):
    (tmp_path / "events.out.tfevents.1").touch()
    text = end_text({"status": "done", "checkpoint_best": "checkpoints/x"}, tmp_path)
    assert [line[:12] for line in text.splitlines()[1:]] == [
        "next: drl-ev", "      drl-pl", "      drl-ex", "      tensor",
    ]  # fmt: skip


def test_resume_in_a_sweep_names_a_sweep_and_from_config_a_run(copied):
    assert named_run(read_command(["-m", "resume=latest"])) is None
    assert named_run(read_command(["-m", "from_config=latest", "seed=1,2"])).resolve() == copied.resolve()


@pytest.mark.parametrize("word", ["resume=small", "resume=name=small", "from_config=small"])
def test_a_run_may_be_resumed_by_its_name(copied, word):
    assert named_run(read_command([word])).resolve() == copied.resolve()


def test_weights_are_loaded_only_before_the_first_checkpoint(copied):
    config = yaml.safe_load((copied / "config.yaml").read_text())
    config["load_weights"] = "elsewhere"
    (copied / "config.yaml").write_text(yaml.safe_dump(config))
    command = with_config_of(copied, read_command(["resume=latest", "total_env_steps=320"]))
    composed = compose(command.overrides, command.config_file)
    assert composed.load_weights == "elsewhere"
    resumed = resume(composed, [])
    assert (resumed.config.load_weights, resumed.config.random_steps) == (None, composed.random_steps)


def legend(tmp_path, by=()):
    groups = grouped([Run(path) for path in tmp_path.glob("*/*/*")], by)
    return [text.get_text() for text in make_figure([compare(group, None) for group in groups]).legends[0].get_texts()]


def test_the_legend_omits_the_values_that_all_groups_share(tmp_path):
    make_run(tmp_path, "a", [(10, 1.0, 0.0)], algo__lr=0.1)
    make_run(tmp_path, "b", [(10, 1.0, 0.0)], algo__lr=0.2)
    assert legend(tmp_path, ["mode", "algo.lr"]) == ["algo.lr=0.1 (1 seed)", "algo.lr=0.2 (1 seed)"]


def test_single_runs_are_in_the_legend_only_if_a_group_has_several(tmp_path):
    make_run(tmp_path, "a", [(10, 1.0, 0.0)])
    assert "single runs" not in legend(tmp_path)
    make_run(tmp_path, "b", [(10, 1.0, 2.0)], seed=1)
    assert "single runs" in legend(tmp_path)


def test_resamples_are_drawn_in_parts_of_32_megabytes():
    sizes = []

    def first_column(values, axis):
        sizes.append(values.nbytes)
        return values[:, 0]

    interval([np.zeros((2, 1500))], first_column)
    assert 31e6 < max(sizes) <= 32 * 2**20


@pytest.mark.parametrize(
    ("last", "unit"), [(299.0, "s"), (300.0, "min"), (7199.0, "min"), (7200.0, "h"), (9000.0, "h")]
)
def test_the_longest_run_gives_the_unit_of_time(tmp_path, last, unit):
    make_run(tmp_path, "a", [(10, last / 2, 1.0), (20, last, 2.0)])
    figure = make_figure([compare(group, 5.0) for group in grouped([Run(next(tmp_path.glob("*/*/*")))])])
    assert figure.axes[1].get_xlabel() == f"wall-clock time [{unit}]"


def test_a_group_is_known_by_its_values_and_not_by_its_runs(tmp_path):
    runs = [Run(make_run(tmp_path, name, [(10, 1.0, 1.0)], seed=seed)) for seed, name in enumerate("ab")]
    (first,), (second,) = (grouped([run]) for run in runs)
    assert first.runs != second.runs
    assert first == second
