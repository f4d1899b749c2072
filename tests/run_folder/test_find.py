import json

import pytest

from drl_cli.errors import UsageError
from drl_cli.run_folder.find import (
    all_runs,
    find_run,
    find_runs,
    find_saved_run,
    find_step,
    is_folder_of_runs,
    read_config,
)

IDS = ("20260101-100000-000000-s0", "20260102-100000-000000-s1", "20260102-120000-000000-s0")


@pytest.fixture
def outputs(tmp_path):
    """Three runs, the newest in the first folder of the alphabet, and a folder that is not a run."""
    for env, run in zip(("Zebra", "Middle", "Ant"), IDS, strict=True):
        folder = tmp_path / env / "sac-async" / run
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps({"id": run}))
    (tmp_path / "multirun" / "x" / "29990101").mkdir(parents=True)
    return tmp_path


def test_all_runs_oldest_first(outputs):
    assert [path.name for path in all_runs(str(outputs))] == list(IDS)
    assert all_runs(str(outputs / "nowhere")) == []


@pytest.mark.parametrize(
    ("run", "found", "output_dir"),
    [
        *[("latest", IDS[2], ""), (IDS[0], IDS[0], ""), ("20260101", IDS[0], "")],
        ("{outputs}/Zebra/*/*", IDS[0], "elsewhere"),
        ("{outputs}/Middle/sac-async/20260102-100000-000000-s1", IDS[1], "elsewhere"),
    ],
)
def test_one_run_by_latest_id_glob_or_path(outputs, run, found, output_dir):
    assert find_run(run.format(outputs=outputs), str(outputs / output_dir)).name == found


def test_a_glob_of_several_runs_is_answered_by_their_returns(outputs):
    run = next(outputs.glob(f"*/*/{IDS[1]}"))
    (run / "summary.json").write_text('{"best_return": 12.34}')
    with pytest.raises(UsageError) as caught:
        find_run(f"{outputs}/*/*/*", str(outputs))
    names = f"{IDS[2]}, {IDS[1]} (best return 12.3), {IDS[0]}"
    assert caught.value.problems == [f"'{outputs}/*/*/*' stands for 3 runs: {names}; say which one"]


def test_latest_is_the_newest_run_that_fits(outputs):
    assert find_run("latest", str(outputs), lambda run: run.name != IDS[2]).name == IDS[1]
    assert find_run("latest", str(outputs), lambda run: False).name == IDS[2]


def test_without_a_best_model_the_last_checkpoint_is_taken(outputs, capsys):
    save(outputs, IDS[0])
    run = next(outputs.glob(f"*/*/{IDS[0]}"))
    assert find_step(run, "best").name == "step_000000100"
    assert capsys.readouterr().err == "note: this run has no best model yet; taking step_000000100\n"


def test_the_config_of_a_run(small_run):
    config = read_config(small_run.folder)
    assert (config.env.id, config.seed, config.worker.envs) == ("Pendulum-v1", 3, 2)


@pytest.mark.parametrize("content", [None, "a: [1", "", "3"])
def test_a_missing_or_damaged_config(tmp_path, content):
    if content is not None:
        (tmp_path / "config.yaml").write_text(content)
    with pytest.raises(UsageError, match=r"config\.yaml") as caught:
        read_config(tmp_path)
    assert caught.value.exit_code == 8


@pytest.mark.parametrize(
    ("patterns", "found"),
    [
        *[(["latest"], [2]), (["20260102"], [1, 2]), (["{outputs}"], [0, 1, 2])],
        *[(["{outputs}/Middle/sac-async"], [1]), (["{outputs}/*/*/*-s0"], [0, 2]), (["[ZA]*"], [0, 2])],
        (["{outputs}/Zebra/sac-async/20260101-100000-000000-s0", "latest", "20260101"], [0, 2]),
    ],
)
def test_each_run_that_matches_a_pattern_once(outputs, patterns, found):
    runs = find_runs([pattern.format(outputs=outputs) for pattern in patterns], str(outputs))
    assert [run.name for run in runs] == [IDS[i] for i in found]


def test_each_pattern_without_a_run_is_named(outputs):
    with pytest.raises(UsageError, match="no run") as caught:
        find_runs(["nope", "latest", "multirun"], str(outputs))
    assert ["'nope'" in caught.value.problems[0], "'multirun'" in caught.value.problems[1]] == [True, True]
    with pytest.raises(UsageError, match="no run 'latest'"):
        find_run("latest", str(outputs / "nowhere"))


def test_a_command_that_needs_a_checkpoint_passes_over_newer_runs_without_one(outputs, capsys):
    save(outputs, IDS[1])
    assert find_saved_run("latest", str(outputs)).name == IDS[1]
    warning = f"warning: 'latest' is {IDS[1]}; newer runs without a checkpoint: {IDS[2]} (unknown)\n"
    assert capsys.readouterr().err == warning
    assert find_saved_run("latest", str(outputs), is_quiet=True).name == IDS[1]
    assert find_saved_run(f"{outputs}/Zebra/*/*", str(outputs)).name == IDS[0]
    assert capsys.readouterr().err == ""


def test_the_newest_run_where_no_run_has_a_checkpoint_or_the_newest_has(outputs, capsys):
    assert find_saved_run("latest", str(outputs)).name == IDS[2]
    save(outputs, IDS[2])
    assert find_saved_run("latest", str(outputs)).name == IDS[2]
    assert capsys.readouterr().err == ""


@pytest.fixture
def named(outputs):
    """The runs have names: the first and the last one `wide`, the other one `narrow net`."""
    for run, name in zip(IDS, ("wide", "narrow net", "wide"), strict=True):
        next(outputs.glob(f"*/*/{run}/run.json")).write_text(json.dumps({"id": run, "name": name}))
    return outputs


@pytest.mark.parametrize(
    ("run", "found"), [("wide", [2, 0]), ("name=wide", [2, 0]), ("narrow net", [1, 1]), ("name=narrow net", [1, 1])]
)
def test_runs_by_their_name(named, run, found):
    assert find_run(run, str(named)).name == IDS[found[0]]
    every = find_runs([run], str(named))
    assert [run.name for run in every] == [IDS[i] for i in sorted({*found})]


def test_a_name_stands_behind_ids_and_is_suggested(named):
    next(named.glob(f"*/*/{IDS[1]}/run.json")).write_text(json.dumps({"name": IDS[0]}))
    assert find_run(IDS[0], str(named)).name == IDS[0]
    assert find_run(f"name={IDS[0]}", str(named)).name == IDS[1]
    for find in (find_run, lambda run, place: find_runs([run], place)):
        for run in ("wied", "name=wied"):
            with pytest.raises(UsageError, match=r"\. Did you mean wide\?"):
                find(run, str(named))
    with pytest.raises(UsageError, match=r"\)$"):
        find_runs(["nothing_like_it"], str(named))


def test_a_name_finds_the_newest_run_with_a_checkpoint(named, capsys):
    save(named, IDS[0])
    assert find_saved_run("wide", str(named)).name == IDS[0]
    assert "newer runs without a checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize("find", [find_run, find_saved_run])
@pytest.mark.parametrize("word", ["wide", "name=wide"])
def test_a_name_of_several_runs_says_which_run_is_taken_and_how_to_take_another(named, capsys, find, word):
    for run in IDS:
        save(named, run)
    assert find(word, str(named)).name == IDS[2]
    note = f"note: {word} is {IDS[2]}; 1 other run has this name; to take it, type its id: {IDS[0]}\n"
    assert capsys.readouterr() == ("", note)
    find_saved_run(word, str(named), is_quiet=True)
    next(named.glob(f"*/*/{IDS[2]}/run.json")).write_text('{"name": "latest"}')
    for run in ("narrow net", "latest", IDS[0], f"{named}/*/*/{IDS[2]}"):
        find(run, str(named))
    assert capsys.readouterr().err == ""


def test_runs_of_all_sweeps_in_a_folder(outputs):
    for i, sweep in enumerate(("20260101-1", "20260102-1")):
        folder = outputs / "multirun" / sweep
        folder.mkdir()
        jobs = [{"run": str(next(outputs.glob(f"*/*/{IDS[i]}")))}, {"run": None}]
        (folder / "sweep.json").write_text(json.dumps({"jobs": jobs}))
    assert [run.name for run in find_runs([f"{outputs}/multirun"], "elsewhere")] == [*IDS[:2]]
    assert [run.name for run in find_runs([f"{outputs}/multirun/20260102-1"], "elsewhere")] == [IDS[1]]
    assert is_folder_of_runs(f"{outputs}/multirun", "elsewhere")


def test_a_folder_of_runs_is_neither_a_run_nor_a_checkpoint_nor_empty(outputs):
    save(outputs, IDS[0])
    run = next(outputs.glob(f"*/*/{IDS[0]}"))
    assert is_folder_of_runs(str(run.parent), "elsewhere")
    assert is_folder_of_runs("Zebra", str(outputs))
    for other in (str(run), f"{run}/checkpoints/step_000000100", "", "latest", f"{outputs}/multirun/x", "wide"):
        assert not is_folder_of_runs(other, str(outputs)), other


def save(outputs, run):
    step = next(outputs.glob(f"*/*/{run}")) / "checkpoints" / "step_000000100"
    step.mkdir(parents=True)
    (step / "manifest.json").write_text("{}")
