import json
from types import SimpleNamespace

import numpy as np
import pytest
from datasets import record
from graphs import quick_compose
from gymnasium import spaces
from recorded_envs import env_config

import drl_cli
from drl_cli.cli.train import answer
from drl_cli.data.dataset import spaces_of
from drl_cli.data.open import RecordedDataset, open_recording
from drl_cli.envs.make import read_spec
from drl_cli.envs.recorded import SpacesOnly, StepMap
from drl_cli.errors import CHECKPOINT, USAGE, UsageError
from drl_cli.run_folder.saved_run import Run
from drl_cli.runs.data_env import with_data_env
from drl_cli.runs.start_text import data_advice, data_text, waiting_text
from drl_cli.settings.command_line import read_command

OFFLINE = "mode=offline data=pendulum.npz env=Pendulum-v1 algo=td3"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with datasets of Pendulum and CartPole, and with a file that is no dataset."""
    folder = tmp_path_factory.mktemp("data")
    record("Pendulum-v1", folder / "pendulum.npz", 400)
    record("CartPole-v1", folder / "cartpole.npz", 400)
    (folder / "words.npz").write_text("no arrays")
    spaces = {
        "observation_space": {"type": "Box", "dtype": "float32", "shape": [4], "low": [-9] * 4, "high": [9] * 4},
        "action_space": {"type": "Discrete", "dtype": "int64", "start": 0, "n": 2},
    }
    named = {key: json.dumps(space) for key, space in spaces.items()}
    named |= {"has_mask": False, "drl_cli": {}, "reference": [9, 500]}
    for env in ("CartPole-v1", "Nowhere-v3"):
        arrays = dict(np.load(folder / "cartpole.npz"))
        np.savez(folder / f"{env}.npz", **arrays, metadata=json.dumps(named | {"env": env}))
    return folder


@pytest.fixture(autouse=True)
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)


def problem(words):
    with pytest.raises(UsageError) as caught:
        answer([*words.split(), "dry_run=true"])
    return caught.value


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("mode=offline env=Pendulum-v1", "mode=offline learns from a dataset: say data=PATH"),
        ("mode=offline data=nosuch.npz env=Pendulum-v1", "no dataset 'nosuch.npz'"),
        ("mode=offline data=words.npz env=Pendulum-v1", "words.npz is damaged or is no .npz file"),
        ("mode=offline data env=Pendulum-v1", "data: has no value"),
        (
            "mode=offline data=pendulum.npz,cartpole.npz env=Pendulum-v1",
            "-m data=pendulum.npz,cartpole.npz; for one run",
        ),
        (f"{OFFLINE} data.share=0.3", "data.share=0.3 has no effect: mode=offline learns from the dataset alone"),
        ("mode=single env=Pendulum-v1 data.share=0.3", "data.share=0.3 has no effect: the run has no dataset"),
        ("mode=single data=pendulum.npz env=Pendulum-v1 data.share=1e-4", "is no row, or all rows; say data.share=0.5"),
        ("mode=single data=pendulum.npz env=Pendulum-v1 algo=ppo", "data=pendulum.npz: PPO is on-policy"),
        ("mode=async data=pendulum.npz env=Pendulum-v1 replay.shards=2", "replay.shards=2: the only shard with data"),
        ("mode=async data=cartpole.npz env=Pendulum-v1", "cartpole.npz"),
        ("mode=single env=none", "env=none: mode=single needs an environment; only mode=offline trains without one"),
        (f"{OFFLINE} worker.num=2", "worker.num=2 has no effect: mode=offline has no workers; leave it out, or say"),
        (f"{OFFLINE} total_env_steps=1000", "steps; say total_updates=N"),
        ("mode=single env=Pendulum-v1 total_updates=10", "total_updates=10 has no effect: mode=single ends after its"),
        (f"{OFFLINE} orchestrator.sample_insert_ratio=1", "=1 has no effect: mode=offline reads the"),
        (f"{OFFLINE} replay.shards=2", "replay.shards=2 has no effect: mode=offline has no workers"),
        (f"{OFFLINE} trainer.num=2", "trainer.num=2 needs processes of their own, and mode=offline has none"),
        (f"{OFFLINE} trainer.batch_size=1000", "trainer.batch_size=1000 is above the 400 steps of pendulum.npz"),
        (f"{OFFLINE} data.reference=[5,1]", "data.reference=[5.0, 1.0]: say [random,expert], the returns of a random"),
        ("mode=offline data=pendulum.npz algo=td3 env=none manage.eval_period=50", "so no evaluations; leave it out"),
        (f"{OFFLINE} data.download=true", "data.download=true has no effect: the run has no dataset minari:ID"),
        ("mode=offline data=minari:no/set-v0 env=Pendulum-v1", "To download it: data.download=true (drl-list data"),
        ("mode=offline data=[pendulum.npz,nosuch.npz] env=Pendulum-v1", "no dataset 'nosuch.npz'"),
        ("mode=offline data=[pendulum.npz,cartpole.npz] env=Pendulum-v1", "cartpole.npz does not fit Pendulum-v1"),
        ("mode=offline data=[pendulum.npz,cartpole.npz]", "cartpole.npz can't be joined with pendulum.npz: its"),
        ("mode=offline data=[] env=Pendulum-v1", "mode=offline learns from a dataset: say data=PATH"),
        ("mode=offline data=pendulum.npz env=Pendulum-v1 algo=ppo", "PPO is on-policy: it learns from the newest"),
        ("mode=offline data=pendulum.npz env=Pendulum-v1 algo=dqn", "DQN needs a discrete action space"),
        ("mode=offline data=cartpole.npz env=Pendulum-v1 algo=td3", "cartpole.npz"),
        ("mode=offline data=pendulum.npz algo=td3 stop.return=-200", "stop.return: without an environment there are"),
        (f"{OFFLINE} replay=fifo-once", "TD3 can't learn from replay=fifo-once; say replay=uniform or replay="),
        (f"-m {OFFLINE} hpo=pbt algo.lr=tag(log,interval(1e-4,1e-3))", "hpo=pbt: a round is a number of environment"),
        ("-m mode=offline data=pendulum.npz,nosuch.npz env=Pendulum-v1", "a file .npz or .hdf5   (job 2 of 2)"),
        (f"-m {OFFLINE} trainer.batch_size=8,1000", "above the 400 steps of pendulum.npz"),
        ("-m data=CartPole-v1.npz,cartpole.npz mode=offline algo=iql env=CartPole-v1", "IQL needs a continuous"),
    ],
)
def test_a_wrong_command_is_refused_before_the_start(words, line):
    error = problem(words)
    assert line in "; ".join(error.problems)
    assert error.exit_code == USAGE


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (OFFLINE, ["Pendulum-v1: (3,) observations, Box(1,) actions; all checks passed"]),
        ("mode=offline data=pendulum.npz algo=td3", ["none: (3,) observations, Box(1,) actions; all checks passed"]),
        ("mode=offline data=cartpole.npz env=CartPole-v1 replay=prioritized", ["CartPole-v1: (4,) observations"]),
        ("mode=single data=pendulum.npz env=Pendulum-v1 algo=sac", ["all checks passed"]),
        ("-m mode=offline data=CartPole-v1.npz,[CartPole-v1.npz] algo=cql_discrete", ["2 jobs; all checks passed"]),
    ],
)
def test_a_right_command_passes_all_checks(words, lines, capsys):
    assert answer([*words.split(), "dry_run=true"]) == 0
    out = capsys.readouterr().out
    assert all(line in out for line in lines)


NO_DATA, FAR = "is made for datasets, and this run has none", "does not keep its actions near those of the dataset"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("algo=iql mode=async", NO_DATA),
        ("algo=td3_bc mode=single", NO_DATA),
        ("algo=iql mode=single data.source=pendulum.npz", None),
        ("algo=iql mode=single load_weights=somewhere", None),
        ("algo=sac mode=async", None),
        ("algo=td3 mode=offline data.source=pendulum.npz", FAR),
        ("algo=rlpd mode=offline data.source=pendulum.npz", FAR),
        ("algo=rlpd mode=single data.source=pendulum.npz", None),
        ("algo=bc mode=offline data.source=pendulum.npz", None),
        ("algo=cal_ql mode=offline data.source=pendulum.npz", None),
    ],
)
def test_a_run_whose_algorithm_and_data_do_not_fit_gives_a_warning(words, said):
    lines = data_advice(quick_compose(["env=Pendulum-v1", *words.split()]))
    assert len(lines) == (said is not None)
    assert all(said in line for line in lines)


@pytest.mark.parametrize(
    ("words", "longest"),
    [
        ("algo=cal_ql worker.envs=16 total_env_steps=3199", 200),
        ("algo=rebrac worker.envs=16 total_env_steps=3199", 200),
        ("algo=cal_ql worker.envs=16 total_env_steps=3200", 0),
        ("algo=cal_ql worker.envs=16 total_env_steps=3199 env.max_episode_steps=50", 0),
        ("algo=cal_ql worker.envs=16 total_env_steps=799 env.max_episode_steps=100 env.action_repeat=2", 50),
        ("algo=sac worker.envs=16 total_env_steps=3199", 0),
        ("algo=cal_ql mode=offline data.source=pendulum.npz total_updates=10", 0),
    ],
)
def test_a_run_that_may_end_before_its_first_episode_is_named(words, longest):
    config = quick_compose(["env=Pendulum-v1", *words.split()])
    lines = waiting_text(config, read_spec(config.env))
    assert len(lines) == (longest > 0)
    assert all(
        f"episode of Pendulum-v1 may have {longest} steps; each of 16 environments takes" in line for line in lines
    )


def test_without_env_the_run_takes_the_environment_that_the_dataset_names():
    names, lines = zip(
        *(with_data_env(read_command(["mode=offline", f"data={name}.npz"])) for name in ("CartPole-v1", "Nowhere-v3")),
        strict=True,
    )
    assert [command.overrides[2:] for command in names] == [["env=CartPole-v1"], ["env=none", "env.name=Nowhere-v3"]]
    assert lines == (None, "no evaluations: Nowhere-v3 is not installed here; env=ID names one")
    command, line = with_data_env(read_command(["mode=offline", "data=pendulum.npz"]))
    assert command.overrides[2:] == ["env=none"]
    assert line == "no evaluations: the dataset does not name its environment; env=ID names one"
    for words in (["mode=offline", "data=CartPole-v1.npz", "env=Pendulum-v1"], ["mode=sync", "data=Nowhere-v3.npz"]):
        command = read_command(words)
        assert with_data_env(command) == (command, None)


def test_a_run_in_python_takes_the_environment_of_the_dataset_too(capsys):
    summary = drl_cli.train("mode=offline data=CartPole-v1.npz algo=cql_discrete dry_run=true")
    assert (summary, "CartPole-v1: (4,) observations" in capsys.readouterr().out) == ({"exit_code": 0}, True)


@pytest.mark.parametrize(("words", "reference"), [((), [9, 500]), (("data.reference=[0,200]",), [0, 200])])
def test_reference_returns_of_the_dataset_are_used_unless_typed(folder, tmp_path, words, reference):
    line = "mode=offline total_updates=1 network.hidden=[8] debug.in_process=true manage.eval_episodes=1 console=quiet"
    assert answer([*line.split(), f"data={folder}/CartPole-v1.npz", f"output_dir={tmp_path}", *words]) == 0
    (run,) = map(Run, tmp_path.glob("*/*/*"))
    low, high = reference
    assert run.config["data.reference"] == reference
    assert run.score == pytest.approx(100 * (run.final - low) / (high - low))


@pytest.mark.slow
def test_a_run_with_another_dataset_can_not_resume(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record("Pendulum-v1", "pendulum.npz", 400)
    words = f"{OFFLINE} total_updates=4 network.hidden=[8] debug.in_process=true manage.eval_episodes=1 console=quiet"
    assert answer(words.split()) == 0
    (run,) = tmp_path.glob("outputs/*/*/*")
    assert json.loads((run / "run.json").read_text())["data"]["steps"] == 400
    record("Pendulum-v1", "pendulum.npz", 400, seed=1)
    error = problem("resume=latest total_updates=8")
    assert error.problems[0].startswith(
        f"resume: {tmp_path}/pendulum.npz has changed since the run began: it has 400 steps in 2"
    )
    assert error.exit_code == CHECKPOINT
    error = problem("resume=latest mode=single total_env_steps=8000")
    assert error.problems[0].startswith("resume: mode=single: the run is of mode=offline, which counts its position in")
    record("Pendulum-v1", "pendulum.npz", 400)
    assert answer(["resume=latest", "total_updates=8"]) == 0
    assert json.loads((run / "summary.json").read_text())["opt_steps"] == 8
    assert np.isfinite(json.loads((run / "summary.json").read_text())["final_return"])


@pytest.mark.parametrize(("pieces", "text"), [([0], ", return {0:.1f} [{0:.1f}, {0:.1f}]"), ([0, 1], "")])
def test_the_start_of_a_run_has_the_returns_of_whole_episodes(pieces, text):
    recording = open_recording("pendulum.npz")
    recording.pieces = pieces
    dataset = RecordedDataset(recording, StepMap.of_env(env_config(id="Pendulum-v1")))
    (line,) = data_text(quick_compose(["env=Pendulum-v1"]), dataset)
    assert line == f"data: pendulum.npz: 400 steps in 2 episodes (0 terminated){text.format(dataset.facts.returns[1])}"


@pytest.mark.parametrize(("kind", "has_mask"), [("box", False), ("masked", True)])
def test_the_saved_spaces_say_whether_a_mask_comes_beside_the_observations(kind, has_mask):
    box, choice = spaces.Box(-1, 1, (2,)), spaces.Discrete(3)
    steps = StepMap.of_spaces("x", box, choice, has_mask=has_mask)
    found = spaces_of(SimpleNamespace(spaces=(box, choice), spec=steps.spec))
    env = SpacesOnly(**found)
    assert (env.observation_space, env.action_space, env.has_mask) == (box, choice, has_mask)
    inside = spaces.Dict({"obs": box, "action_mask": spaces.MultiBinary(3)})
    spec = StepMap.of_spaces("x", inside, choice).spec
    assert spaces_of(SimpleNamespace(spaces=(inside, choice), spec=spec))["has_mask"] is False
