import numpy as np
import pytest
import safetensors.numpy
from choices import some
from graphs import COUNTER, RAW, make_config, workers
from handles import by_name

from drl_cli.algos.function_policy import FunctionPolicy
from drl_cli.envs.make import read_spec
from drl_cli.run_folder.checkpoint import save_model
from drl_cli.runtime.factories import make_trainer
from drl_cli.runtime.place.handles import get
from drl_cli.runtime.roles.trainer import Trainer
from drl_cli.types import LoadParams, PreviousStep

MODES = ("single", "sync", "async")
SAC = (COUNTER, "network.hidden=[16,16]")
DQN = ("env=drl_cli.envs.probes:Choose-v0", "algo=dqn", "network.hidden=[16,16]")
NORMALIZED = ("env.normalize_obs=true", "env.normalize_reward=true")
PPO = (COUNTER, "algo=ppo", "network.hidden=[16,16]")
CNN = ("env=drl_cli.envs.probes:Frames-v0", "+env.kwargs.size=12", "algo=dqn", "network.hidden=[16,16]")
LSTM = (*DQN, "network=lstm", "network.memory_size=8", "replay=sequences", "replay.seq_len=6", "replay.overlap=2")
KINDS = pytest.mark.parametrize(
    "kind",
    [
        *(pytest.param(kind, marks=pytest.mark.exhaustive) for kind in (SAC, DQN, PPO)),
        *((*SAC, *NORMALIZED), CNN, LSTM),
    ],
    ids=["sac", "dqn", "ppo", "normalized", "cnn", "lstm"],
)


def saved(folder, kind, seed=50):
    config = make_config(*RAW, *kind, f"seed={seed}")
    trainer = make_trainer(config, read_spec(config.env), "cpu", 0)
    vector = trainer.publish(0, 0)[1]
    if trainer.normalizer is not None:
        size = trainer.normalizer.layout.size
        vector[-2 * size - 1 :] = [1000, *np.linspace(-3, 3, size), *np.linspace(0.1, 2, size)]
    return save_model(folder / "saved", LoadParams(7, 96, 5000), vector, {}), vector


def loads_of(graph):
    loads = []
    for member in graph.pool.members:
        worker = member.handle.role

        def collect(params_header, *params, collect=worker.collect):
            loads.append(params_header)
            return collect(params_header, *params)

        worker.collect = collect
    return loads


@KINDS
@pytest.mark.parametrize(("mode", "proxies"), some([("single", 0), ("async", 1)], ("async", 1)))
def test_version_0_is_exactly_what_was_saved(run_graph, tmp_path, kind, mode, proxies):
    folder, vector = saved(tmp_path, kind)
    graph = run_graph(
        *(*kind, f"mode={mode}", f"load_weights={folder}", f"worker.proxies={proxies}"),
        *("orchestrator.min_inserts=2000", "trainer.batch_size=512", "total_env_steps=64", "worker.block_rows=32"),
    )
    assert (graph.learning.params_header.version, graph.learning.params_header.opt_steps) == (0, 0)
    assert get(graph.learning.params).tobytes() == vector.tobytes()
    assert graph.learning.server.role.pull()[1].tobytes() == vector.tobytes()
    model = safetensors.numpy.load_file(graph.folder / "checkpoints/last/model.safetensors")
    assert model["policy"].tobytes() == vector.tobytes()


BOX = (COUNTER, "network.hidden=[16,16]", "trainer.batch_size=16")
RUN = ("mode=single", "total_env_steps=64", "orchestrator.min_inserts=32", "checkpoint.period=16")


@pytest.mark.parametrize(
    ("before", "now"),
    [("cql", "wsrl"), ("td3_bc", "td3"), ("iql", "iql"), pytest.param("cal_ql", "sac", marks=pytest.mark.exhaustive)],
)
def test_critics_and_target_networks_of_a_checkpoint_are_loaded(run_graph, build_graph, before, now):
    old = run_graph(*BOX, *RUN, f"algo={before}")
    checkpoint = old.folder / "checkpoints/last"
    graph = build_graph(*BOX, "mode=single", f"algo={now}", f"load_weights={checkpoint}")
    params, others = (each.trainers["trainer"].role.algorithm.params for each in (graph, old))
    tensors = params.tensors()
    assert tensors.keys() == others.tensors().keys()
    assert {name.partition(".")[0] for name in tensors} == {"params", "target"}
    for name, tensor in others.tensors().items():
        np.testing.assert_array_equal(tensors[name], tensor)
    state = graph.trainers["trainer"].role.algorithm.state()
    assert not any(tensor.any() for name, tensor in state.items() if name.endswith(("mean", "square", "count")))


MEMORY = ("network=lstm", "network.memory_size=8", "replay=sequences", "replay.seq_len=6", "replay.overlap=2")


@pytest.mark.parametrize(
    ("before", "now", "options"),
    [
        ("iql", "sac", ("env.normalize_obs=true",)),
        ("awac", "cal_ql", ("network.layer_norm=true", "algo.samples=1")),
        ("iql", "sac", MEMORY),
    ],
)
def test_a_gaussian_actor_and_its_critics_go_on_in_sac(run_graph, build_graph, before, now, options):
    old = run_graph(*BOX, *RUN, f"algo={before}", *(word for word in options if "samples" not in word))
    words = (*BOX, *options, "mode=single", f"algo={now}", "algo.initial_alpha=0.25")
    graph = build_graph(*words, f"load_weights={old.folder / 'checkpoints/last'}")
    algorithm, other = (each.trainers["trainer"].role.algorithm for each in (graph, old))
    for name in {*algorithm.encoder.parts, "critic"}:
        np.testing.assert_array_equal(algorithm.params[name].flat, other.params[name].flat)
        np.testing.assert_array_equal(algorithm.params.targets[name].flat, other.params.targets[name].flat)
    np.testing.assert_allclose(algorithm.params["log_alpha"].flat.exp(), 0.25)
    outs, obs = [], np.eye(3, dtype=np.float32)
    for each in (graph, old):
        policy = workers(each)[0].policy
        policy.load(each.trainers["trainer"].role.publish(0, 0)[1])
        last = PreviousStep.none(read_spec(workers(each)[0].config.env), 3)
        inner, greedy = getattr(policy, "policy", policy), policy.greedy(obs, last)
        is_sac = isinstance(inner, FunctionPolicy)
        inner.last = last
        outs.append((greedy, inner.nets.actor(inner.nets.encoder(obs)) if is_sac else inner.forward(obs, last)[0]))
    np.testing.assert_allclose(outs[0][0], outs[1][0], atol=1e-6)
    log_std = other.params["log_std"].flat.numpy()
    assert log_std[0] != 0
    np.testing.assert_array_equal(outs[0][1][:, 1:], np.broadcast_to(log_std, (3, 1)))


def test_critics_of_other_sizes_start_anew(run_graph, build_graph, tmp_path):
    old = run_graph(*BOX, *RUN, "algo=redq", "algo.critics=3")
    words = (f"load_weights={old.folder / 'checkpoints/last'}", "mode=single", "algo=redq")
    graph = build_graph(*BOX, *words)
    new, first = (each.trainers["trainer"].role.algorithm.params for each in (graph, build_graph(*BOX, *words[1:])))
    np.testing.assert_array_equal(new["actor"].flat, old.trainers["trainer"].role.algorithm.params["actor"].flat)
    np.testing.assert_array_equal(new["critic"].flat, first["critic"].flat)


@pytest.mark.ray
@pytest.mark.exhaustive
def test_version_0_is_exactly_what_was_saved_on_ray(run_graph, tmp_path):
    folder, vector = saved(tmp_path, SAC)
    args = ("mode=async", f"load_weights={folder}", "orchestrator.min_inserts=2000", "total_env_steps=64")
    graph = run_graph(*SAC, *args, on_ray=True)
    assert get(by_name(graph.learning.server, "pull", results=2)[1]).tobytes() == vector.tobytes()


@KINDS
def test_training_continues_from_saved_weights_with_new_optimizers(build_graph, tmp_path, kind):
    folder, vector = saved(tmp_path, kind)
    graph = build_graph(*kind, "mode=sync", f"load_weights={folder}")
    trainer: Trainer = graph.trainers["trainer"].role
    state = trainer.algorithm.state()
    assert not any(tensor.any() for name, tensor in state.items() if name.endswith(("mean", "square", "count")))
    graph.run()
    assert graph.progress.opt_steps > 20
    assert get(graph.learning.params).tobytes() != vector.tobytes()
    if trainer.normalizer is not None:
        assert trainer.normalizer.statistics.count == 1000 + graph.progress.inserts


@pytest.mark.slow
@pytest.mark.parametrize("mode", some(MODES, "async"))
def test_saved_weights_need_no_random_steps(build_graph, tmp_path, mode):
    folder, _ = saved(tmp_path, SAC)
    for more, steps in (((), 0), (("worker.random_steps=96",), 96)):
        graph = build_graph(*SAC, f"mode={mode}", f"load_weights={folder}", *more)
        loads = loads_of(graph)
        graph.run()
        assert len(loads) > 10
        assert sum(params_header.random_actions for params_header in loads) == steps // graph.collector.rows
    graph = build_graph(*SAC, f"mode={mode}")
    loads = loads_of(graph)
    graph.run()
    assert loads[0].random_actions
