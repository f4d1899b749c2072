import pytest
from run_folders import make_run

from drl_cli.run_folder.saved_run import Run
from drl_cli.runs.groups import differences, grouped, key_hint, pooled_keys, unshown_keys, without_repeats

LANDER = {"env__name": "Lander"}


@pytest.fixture
def group(tmp_path):
    """Make runs with these changes of a plain config, and return their groups."""

    def make(*changes, by=(), commands=()):
        pairs = zip(changes, commands or [()] * len(changes), strict=True)
        runs = [Run(make_run(tmp_path, f"r{i}", command=typed, **change)) for i, (change, typed) in enumerate(pairs)]
        return grouped(runs, by)

    return make


def seeds(groups):
    return {group.label: [run.config["seed"] for run in group.runs] for group in groups}


def test_runs_that_differ_in_seed_and_output_are_one_group(group):
    found = group({"seed": 0}, {"seed": 1, "output_dir": "x", "logger__console_s": 1.0, "checkpoint__period": 5})
    assert (seeds(found), found[0].env) == ({"algo=dqn mode=single": [0, 1]}, "Pole")


@pytest.mark.parametrize(
    ("changes", "labels"),
    [
        (
            ({"algo__lr": 1e-2}, {"algo__lr": 1e-3}, {"algo__lr": 9e-5}),
            ["algo.lr=9e-05", "algo.lr=0.001", "algo.lr=0.01"],
        ),
        (
            ({"mode": "sync", "algo__lr": 1e-2}, {"mode": "async", "algo__lr": 1e-3}),
            ["algo.lr=0.001 mode=async", "algo.lr=0.01 mode=sync"],
        ),
        (
            ({}, {"replay__sampler": "prioritized", "replay__alpha": 0.6}),
            ["replay.sampler=prioritized", "replay.sampler=uniform"],
        ),
        (({}, {"env__kwargs": {"g": 5.0}}), ["env.kwargs.g=5", "env.kwargs.g=null"]),
        (
            ({"stop__return": None, "network__hidden": [64, 64]}, {"stop__return": 200.0, "network__hidden": [8]}),
            ["stop.return=200 network.hidden=[8]", "stop.return=null network.hidden=[64,64]"],
        ),
    ],
    ids=["sorted-by-value", "two-keys", "options-follow-from-a-sampler", "free-key", "as-typed"],
)
def test_a_label_has_the_keys_that_differ(group, changes, labels):
    found = group(*changes)
    assert ([one.label for one in found], unshown_keys(found)) == (labels, [])


ONLINE = {"total_env_steps": 900, "total_updates": 10, "data__source": None, "worker__envs": 4}
OFFLINE = ONLINE | {"mode": "offline", "data__source": "a.npz", "total_updates": 30, "orchestrator__min_inserts": 5}


def test_a_key_that_a_run_does_not_read_is_not_compared(group):
    found = group(ONLINE, OFFLINE | {"total_env_steps": 7, "worker__envs": 1}, OFFLINE | {"seed": 1})
    assert seeds(found) == {"mode=offline data.source=a.npz": [0, 1], "mode=single data.source=null": [0]}
    assert (unshown_keys(found), pooled_keys(found)) == ([], [])


def test_runs_with_and_without_a_dataset_are_two_groups(group):
    found = group(ONLINE | {"data__share": 0.5}, ONLINE | {"data__source": "a.npz"}, ONLINE | {"total_updates": 20})
    assert {one.label: len(one.runs) for one in found} == {"data.source=a.npz": 1, "data.source=null": 2}


def test_the_name_of_an_algorithm_stands_for_its_options(group):
    ppo = {"algo__name": "ppo", "algo__gae_lambda": 0.9, "replay__sampler": "fifo-once"}
    found = group({}, ppo, ppo | {"algo__lr": 1e-4})
    assert [one.label for one in found] == ["algo=dqn", "algo=ppo algo.lr=0.0001", "algo=ppo algo.lr=0.001"]
    assert (unshown_keys(found), pooled_keys(found)) == (["replay.sampler"], [])


ICM = {"reward__name": "icm", "reward__coef": 1.0, "reward__hidden": [64, 64], "algo__name": "ppo"}
NO_REWARD = {"reward__name": "none", "reward__coef": None, "reward__hidden": None, "algo__name": "ppo"}


def test_the_name_of_a_reward_module_stands_for_its_options(group):
    found = group(NO_REWARD, ICM, ICM | {"seed": 1})
    assert seeds(found) == {"reward=icm": [0, 1], "reward=none": [0]}
    assert (unshown_keys(found), pooled_keys(found)) == ([], [])
    runs = [run for one in found for run in one.runs]
    assert differences(runs) == [{"reward.name": run.config["reward.name"]} for run in runs]
    assert seeds(grouped(runs, ["reward"])) == seeds(found)


def test_an_option_of_a_reward_module_that_was_changed_is_in_the_label(group):
    found = group(NO_REWARD, ICM, ICM | {"reward__coef": 2.0})
    labels = ["reward=icm reward.coef=1", "reward=icm reward.coef=2", "reward=none reward.coef=null"]
    assert [one.label for one in found] == labels
    only = grouped(run for one in found[:2] for run in one.runs)
    assert [one.label for one in only] == ["reward.coef=1", "reward.coef=2"]


def test_algorithms_with_and_without_a_reward_module_differ_in_its_name(group):
    assert unshown_keys(group(NO_REWARD | {"algo__name": "dqn"}, ICM)) == ["reward.name"]


def test_one_seed_counts_once_also_if_other_keys_differ(group):
    (one,) = group({"seed": 0}, {"seed": 0, "new__key": 1}, {"seed": 1}, {"seed": None}, {"seed": None})
    assert [run.id for run in without_repeats(one.runs)] == ["r1", "r2", "r3", "r4"]


def test_environments_are_never_pooled_and_their_options_do_not_mix(group):
    found = group({}, LANDER | {"algo__lr": 0.5}, LANDER | {"algo__lr": 0.5, "seed": 1})
    assert [(one.env, one.label, len(one.runs)) for one in found] == [
        ("Lander", "algo=dqn mode=single", 2),
        ("Pole", "algo=dqn mode=single", 1),
    ]
    assert unshown_keys(found) == []


@pytest.mark.parametrize("is_typed", [False, True])
@pytest.mark.parametrize(("key", "one", "other"), [("trainer.threads", 1, 2), ("device", "cpu", "cuda")])
def test_what_depends_on_the_machine_separates_runs_only_if_it_was_typed(group, key, one, other, is_typed):
    words, field = (f"{key}={one}", f"{key}={other}"), key.replace(".", "__")
    changes = ({field: one}, {field: other, "seed": 1})
    found = group(*changes, commands=[[word] for word in words] if is_typed else ())
    separate = {words[0]: [0], words[1]: [1]}
    assert seeds(found) == (separate if is_typed else {"algo=dqn mode=single": [0, 1]})


def test_by_groups_by_its_keys_only(group):
    changes = [{"mode": mode, "algo__lr": lr} for mode in ("sync", "async") for lr in (0.1, 0.2)]
    found = group(*changes, LANDER | {"mode": "sync", "algo__name": "ppo"}, by=["mode"])
    assert [(one.env, one.label, len(one.runs)) for one in found] == [
        ("Lander", "mode=sync", 1),
        ("Pole", "mode=async", 2),
        ("Pole", "mode=sync", 2),
    ]
    assert (pooled_keys(found), unshown_keys(found)) == (["algo.lr"], [])
    assert (found[1].common("mode"), found[1].common("algo.lr")) == ("async", None)
    runs = [run for one in found for run in one.runs]
    assert [one.label for one in grouped(runs, ["algo"])] == ["algo=ppo", "algo=dqn"]


def test_a_named_group_is_labelled_by_its_name(group):
    base = [{"name": "base", "seed": seed, "tags": [f"t{seed}"], "notes": f"n{seed}"} for seed in (0, 1)]
    found = group(*base, {"name": "wide", "algo__lr": 0.1}, {"name": "again"}, {"seed": 5})
    labels = {"base": [0, 1], "again": [0], "wide": [0], "algo.lr=0.001": [5]}
    assert (seeds(found), unshown_keys(found), pooled_keys(found)) == (labels, [], [])
    assert found[-1].label_without(["algo.lr"]) == "wide"


def test_groups_of_one_name_also_show_what_differs(group):
    found = group({"name": "base"}, {"name": "base", "algo__lr": 0.1}, LANDER | {"name": "base"}, by=())
    assert [(one.env, one.label) for one in found] == [
        ("Lander", "base"),
        ("Pole", "base algo.lr=0.001"),
        ("Pole", "base algo.lr=0.1"),
    ]
    runs = [run for one in found for run in one.runs]
    assert {one.label for one in grouped(runs, ["mode"])} == {"mode=single"}


def test_the_last_part_of_a_key_is_a_hint_and_a_reward_module_is_the_last_choice():
    keys = ["reward.lr", "algo.lr", "seed"]
    assert key_hint("lr", keys) == " Did you mean algo.lr?"
    assert key_hint("lr", ["reward.lr"]) == " Did you mean reward.lr?"
    assert key_hint("lr", ["reward.lr", "teacher.lr"]) == " Did you mean teacher.lr?"
    assert key_hint("sed", keys, ["sort"]) == " Did you mean seed?"
    assert (key_hint("srot", keys, ["sort"]), key_hint("n_epochs", keys)) == (" Did you mean sort?", "")
