"""Runs of several algorithms and networks, exported in every format and compared with drl-eval."""

import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest

import drl_cli
from drl_cli.cli.eval import Options as EvalOptions
from drl_cli.cli.eval import evaluate
from drl_cli.cli.export import Options, export
from drl_cli.deploy.standalone import Policy

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

FEW = (
    *("mode=single", "debug.in_process=true", "worker.num=1", "worker.envs=4", "worker.block_rows=64"),
    *("replay.capacity=4000", "manage.eval_period=400", "manage.eval_episodes=5", "total_env_steps=800"),
    *("tuned=none", "logger.tensorboard=false"),
)
TINY = (*FEW, "orchestrator.min_inserts=128", "trainer.batch_size=64")
ON_POLICY = (*FEW, "trainer.batch_size=256")
RUNS = {
    "sac": ("env=Pendulum-v1", "algo=sac", "env.normalize_obs=true", "network.hidden=[64,64]", *TINY),
    "dqn": ("env=CartPole-v1", "algo=dqn", "network.hidden=[64,64]", *TINY),
    "rainbow": ("env=CartPole-v1", "algo=rainbow", "network.hidden=[64,64]", *TINY),
    "iqn": ("env=CartPole-v1", "algo=iqn", "network.hidden=[64,64]", *TINY),
    "ppo": ("env=Pendulum-v1", "algo=ppo", "network.hidden=[64,64]", *ON_POLICY),
    "image": ("env=drl_cli.envs.probes:Patch-v0", "algo=dqn", "network.hidden=[64]", "network.channels=0.5", *TINY),
    "memory": ("env=drl_cli.envs.probes:Cue-v0", "algo=ppo", "network=lstm", "network.memory_size=16", *ON_POLICY),
}


@pytest.fixture(scope="module", params=RUNS)
def run(request, tmp_path_factory):
    """The folder of a trained run, and the result of drl-eval."""
    root = tmp_path_factory.mktemp(request.param)
    summary = drl_cli.train([*RUNS[request.param], f"output_dir={root}"])
    (folder,) = root.glob(f"*/*/{summary['run_id']}")
    return folder, evaluate(folder, EvalOptions(episodes=20, checkpoint="last"), {})


@pytest.mark.parametrize("format", ["numpy", "torch", "onnx"])
def test_an_export_is_the_same_policy(run, format):
    folder, evaluated = run
    export(Options(run=str(folder), format=format, checkpoint="last"))
    (exported,) = (folder / "export").glob(f"{format}-*")
    parity = json.loads((exported / "spec.json").read_text())["parity"]
    assert parity["observations"] >= 1000
    assert parity["largest_difference"] <= 1e-5
    noise = 3 * math.sqrt(2) * evaluated["std"] / math.sqrt(20) + 1e-3 * abs(evaluated["mean"])
    assert abs(parity["return_exported"] - evaluated["mean"]) <= noise
    assert parity["return_trained"] == pytest.approx(evaluated["mean"], abs=noise)
    policy, trained = Policy(exported), drl_cli.load(str(folder), checkpoint="last")
    trained.units.observations.seed(1)
    obs = trained.units.joined([trained.units.observations.sample() for _ in range(64)])
    ours, theirs = policy(obs), trained(obs)
    if trained.spec.action.kind == "box":
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=2e-5)
    else:
        best = np.sort(policy.values, 1)
        is_close = best[:, -1] - best[:, -2] < 1e-5
        assert ((ours == theirs) | is_close).all()


def test_the_policy_is_loaded_in_a_new_interpreter(run):
    folder, _ = run
    trained = drl_cli.load(str(folder), checkpoint="last")
    trained.units.observations.seed(2)
    obs = np.stack([trained.units.observations.sample() for _ in range(3)])
    code = (
        "import drl_cli, json, sys; import numpy as np; "
        f"policy = drl_cli.load({str(folder)!r}, checkpoint='last'); "
        "print(json.dumps(policy(np.array(json.load(sys.stdin), policy.units.inputs[0].dtype)).tolist()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(obs.tolist()), env=os.environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(json.loads(done.stdout), trained(obs), rtol=1e-6)
