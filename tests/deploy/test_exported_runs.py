import json
import math

import pytest

import drl_cli
from drl_cli.cli.eval import Options as EvalOptions
from drl_cli.cli.eval import evaluate
from drl_cli.cli.export import Options, export

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


@pytest.mark.parametrize("format", ["numpy", "onnx"])  # torch has the graph of onnx
def test_an_exported_policy_has_the_return_of_drl_eval(run, format):
    """The export itself compares actions on at least 1000 observations."""
    folder, evaluated = run
    export(Options(run=str(folder), format=format, checkpoint="last"))
    (exported,) = (folder / "export").glob(f"{format}-*")
    parity = json.loads((exported / "spec.json").read_text())["parity"]
    assert parity["observations"] >= 1000
    assert parity["largest_difference"] <= 1e-5
    noise = 3 * math.sqrt(2) * evaluated["std"] / math.sqrt(20) + 1e-3 * abs(evaluated["mean"])
    assert parity["return_exported"] == pytest.approx(evaluated["mean"], abs=noise)
    assert parity["return_trained"] == pytest.approx(evaluated["mean"], abs=noise)
