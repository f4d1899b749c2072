"""Images, parts, masks, components and memory are learned from in the whole graph, in one process: small probes.

Beside what solves a probe stands what can't: the same network without memory, or one that averages over positions.
"""

import json
import re
import sys
from pathlib import Path

import pytest
import torch
from pages import blocks

PAGE = Path(__file__).parents[2] / "docs" / "networks.md"
PROBES = "env=drl_cli.envs.probes:"
SMALL_IMAGE = ("+env.kwargs.size=36", "network.channels=0.25")
DQN = (
    *("algo=dqn", "network.hidden=[32]", "algo.lr=1e-3", "algo.gamma=0.9", "algo.epsilon_steps=1500"),
    *("algo.target_period=20", "trainer.batch_size=32", "orchestrator.sample_insert_ratio=0.125"),
    *("orchestrator.min_inserts=256", "worker.envs=16", "worker.block_rows=64"),
)
PPO = (
    *("algo=ppo", "network.hidden=[32]", "algo.lr=3e-3", "algo.entropy_coef=0.02", "algo.epochs=4"),
    *("algo.minibatch_size=64", "trainer.batch_size=256", "worker.envs=16"),
)
SAC = (
    *("algo=sac", "network.hidden=[64]", "algo.lr=2e-3", "algo.alpha_lr=2e-3", "algo.tau=0.05", "algo.gamma=0.9"),
    *("algo.initial_alpha=0.02", "trainer.batch_size=32", "orchestrator.sample_insert_ratio=0.25"),
    *("orchestrator.min_inserts=256", "worker.envs=16", "worker.block_rows=64"),
)
CUE = (f"{PROBES}Cue-v0", "+env.kwargs.delay=3", "network.memory_size=16")
CUE_PPO = (
    *(*CUE, *PPO, "algo.minibatch_size=128", "trainer.batch_size=512", "algo.seq_len=4", "algo.gamma=0.99"),
    *("algo.lr=5e-3", "optimizer.schedule=linear", "algo.entropy_coef=0.1"),
)
CUE_DQN = (
    *(*CUE, *DQN, "replay=sequences", "replay.capacity=4000", "replay.seq_len=4", "replay.burn_in=0"),
    *("replay.overlap=0", "algo.lr=5e-3", "algo.epsilon_steps=3000"),
)


@pytest.fixture
def pooled(tmp_path_factory, monkeypatch):
    """The torso of docs/networks.md, which averages over positions."""
    folder = tmp_path_factory.mktemp("nets")
    (folder / "my_net.py").write_text(blocks("networks.md")[0])
    monkeypatch.syspath_prepend(folder)
    yield "network.torso=my_net:Pooled"
    sys.modules.pop("my_net", None)


@pytest.fixture
def learn(run_graph):
    """Train for `steps` steps; return the statistics of the last evaluation, 64 greedy episodes."""

    def learn_it(steps, *overrides):
        graph = run_graph(
            *("mode=single", *overrides, f"total_env_steps={steps}", f"manage.eval_period={steps}"),
            "manage.eval_episodes=64",
        )
        return graph.progress.last.statistics

    return learn_it


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "steps", "probe"),
    [
        pytest.param(DQN, 3000, "Patch", id="dqn-where"),
        pytest.param(PPO, 3000, "Patch", id="ppo-where", marks=pytest.mark.exhaustive),
        pytest.param(DQN, 10_000, "Both", id="dqn-both", marks=[pytest.mark.slow, pytest.mark.exhaustive]),
        pytest.param(PPO, 10_000, "Both", id="ppo-both", marks=[pytest.mark.slow, pytest.mark.exhaustive]),
    ],
)
def test_where_something_is_in_an_image(learn, steps, probe, algo):
    assert learn(steps, f"{PROBES}{probe}-v0", *algo, *SMALL_IMAGE)["mean"] == 1.0


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("algo", [DQN, PPO], ids=["dqn", "ppo"])
def test_an_average_over_positions_says_nothing_of_it(learn, pooled, algo):
    assert learn(3000, f"{PROBES}Patch-v0", *algo, *SMALL_IMAGE, pooled)["mean"] < 0.42  # 0.25 and three errors


def test_such_an_average_does_not_depend_on_the_place(pooled):
    from my_net import Pooled

    images = torch.zeros(5, 36, 36, 4, dtype=torch.uint8)
    for image, (y, x) in zip(images, [(0, 0), (6, 6), (0, 24), (24, 0), (24, 24)], strict=True):
        image[y : y + 12, x : x + 12] = 255
    features = Pooled(images[0], None)(images)
    torch.testing.assert_close(features, features[:1].expand_as(features))


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("probe", ["PatchReach", "BothReach"])
def test_continuous_actions_from_an_image(learn, probe):
    assert learn(5000, f"{PROBES}{probe}-v0", *SAC, *SMALL_IMAGE)["mean"] > -0.06  # -2/3 and -1/3 without looking


def test_several_choices_at_once(learn):
    assert learn(4000, f"{PROBES}Switches-v0", *PPO)["mean"] == 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "part"),
    [
        pytest.param(DQN, True, marks=pytest.mark.exhaustive),
        (PPO, False),
        pytest.param(DQN, False, marks=pytest.mark.exhaustive),
        pytest.param(PPO, True, marks=pytest.mark.exhaustive),
    ],
)
def test_what_is_not_allowed_is_never_done(learn, algo, part):
    assert learn(4000, f"{PROBES}Masked-v0", f"+env.kwargs.part={part}", *algo)["mean"] == 1.0
    untrained = learn(64, f"{PROBES}Masked-v0", f"+env.kwargs.part={part}", *algo, "orchestrator.min_inserts=64")
    assert untrained["min"] == 0.0  # -1 for what is not allowed
    assert untrained["mean"] < 0.9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("memory", "steps", "algo"),
    [
        pytest.param("lstm", 8000, CUE_DQN, id="dqn"),
        pytest.param("gru", 32_000, CUE_PPO, id="ppo", marks=pytest.mark.exhaustive),
    ],
)
def test_what_was_seen_once_is_remembered(learn, steps, algo, memory):
    assert learn(steps, *algo, f"network.memory={memory}")["mean"] == 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "algo", [pytest.param(CUE_DQN, id="dqn"), pytest.param(CUE_PPO, id="ppo", marks=pytest.mark.exhaustive)]
)
def test_without_memory_it_is_not(learn, algo):
    assert learn(8000, *algo)["mean"] < 0.7


def commands():
    """The arguments of the page's proofs, by probe and algorithm."""
    lines = PAGE.read_text().replace("\\\n", " ").splitlines()
    found = [line.split()[1:] for line in lines if line.startswith("drl-train ")]
    return {re.search(r":(\w+)-v0 algo=(\w+)", " ".join(args)).group(1, 2): args for args in found}


IN_ASYNC = (("PatchReach", "sac"),)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("proof", "mode"), [*((proof, "single") for proof in [*commands()][::3]), *((proof, "async") for proof in IN_ASYNC)]
)
def test_a_command_of_the_page_reaches_the_optimum(start, proof, mode):
    args = commands()[proof]
    run = start(*args, f"mode={mode}", "ray.object_store_mb=200")
    assert run.wait(500.0) == 0
    summary = json.loads((run.folder / "summary.json").read_text())
    (goal,) = [float(arg.split("=")[1]) for arg in args if arg.startswith("stop.return=")]
    assert summary["best_return"] >= goal
    assert summary["time_to_return_env_steps"] is not None
