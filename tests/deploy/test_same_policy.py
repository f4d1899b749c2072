"""A trained policy, its exported torch graph, and the standalone numpy policy act the same."""

import json
import pickle
import zipfile
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from graphs import make_config
from outside import torch_policies
from policies import SMALL, make_policy, observations, row

from drl_cli.deploy import standalone
from drl_cli.deploy.export import FILES, compare, export, write_files
from drl_cli.deploy.formats import NotExported, not_exported
from drl_cli.deploy.graph import make_graph
from drl_cli.deploy.play import play_together
from drl_cli.deploy.policy import TrainedPolicy, action_at
from drl_cli.deploy.standalone import Policy
from drl_cli.envs.make import read_spec
from drl_cli.errors import UsageError
from drl_cli.networks.mlp import num_params
from drl_cli.runtime.roles.evaluator import Evaluator
from drl_cli.types import PreviousStep, random_obs

PROBE = "env=drl_cli.envs.probes"
CASES = {
    "sac": ("env=Pendulum-v1", "algo=sac"),
    "sac-normalized": (f"{PROBE}:Scaled-v0", "algo=sac", "env.normalize_obs=true", "network.layer_norm=true"),
    "sac-free": ("env=everything:Unbounded-v0", "algo=sac", "network.activation=elu"),
    "sac-tree": ("env=everything:Everything-v0", "algo=sac", "env.normalize_obs=true"),
    "td3": ("env=Pendulum-v1", "algo=td3", "network.layer_norm=true"),
    "droq": ("env=Pendulum-v1", "algo=droq"),
    "td3-tree": ("env=everything:Everything-v0", "algo=td3"),
    "dqn": ("env=CartPole-v1", "algo=dqn", "network.activation=tanh"),
    "dqn-start": (f"{PROBE}:Choose-v0", "algo=dqn"),
    "dqn-cnn": (f"{PROBE}:Patch-v0", "algo=dqn"),
    "dqn-frames": ("env=everything:Stacked-v0", "algo=dqn", "network.channels=0.25"),
    "dqn-resnet": ("env=everything:Stacked-v0", "algo=dqn", "network=resnet", "network.channels=0.25"),
    "dqn-flat-image": ("env=everything:Stacked-v0", "algo=dqn", "network=mlp"),
    "dqn-masked": (f"{PROBE}:Masked-v0", "algo=dqn"),
    "dqn-masked-part": (f"{PROBE}:Masked-v0", "algo=dqn", "+env.kwargs.part=true"),
    "rainbow": ("env=CartPole-v1", "algo=rainbow", "network.layer_norm=true"),
    "c51-cvar": ("env=CartPole-v1", "algo=c51", "algo.risk=cvar", "algo.risk_level=0.3"),
    "c51-power": ("env=CartPole-v1", "algo=c51", "algo.risk=power", "algo.risk_level=-0.5"),
    "c51-masked": (f"{PROBE}:Masked-v0", "algo=c51"),
    "qr_dqn": ("env=CartPole-v1", "algo=qr_dqn", "algo.risk=power", "algo.risk_level=0.5"),
    "iqn": ("env=CartPole-v1", "algo=iqn", "algo.risk=cvar", "algo.risk_level=0.3", "network.layer_norm=true"),
    "iqn-one-layer": ("env=CartPole-v1", "algo=iqn", "network.hidden=[16]", "algo.dueling=true", "algo.noisy=true"),
    "iqn-cnn": (f"{PROBE}:Patch-v0", "algo=munchausen_iqn"),
    "ppo-free": ("env=everything:Unbounded-v0", "algo=ppo"),
    "ppo-choices": (f"{PROBE}:Switches-v0", "algo=ppo"),
    "ppo-tree-masked": (
        *("env=everything:Everything-v0", "algo=ppo"),
        *("+env.kwargs.discrete=true", "+env.kwargs.masked=true", "network.memory=gru"),
    ),
    "ppo-lstm": (f"{PROBE}:Cue-v0", "algo=ppo", "network=lstm", "env.normalize_obs=true"),
}


MASKED = ("dqn-masked", "ppo-tree-masked")
MEMORY = ("ppo-tree-masked", "ppo-lstm")


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("run")
    trained = make_policy(tmp_path, *CASES[request.param])
    write_files(trained, "numpy", tmp_path)
    json.loads((tmp_path / "spec.json").read_text(), parse_constant=pytest.fail)  # NaN and Infinity are no json
    in_numpy, in_torch = Policy(tmp_path), Policy(tmp_path)
    graph = make_graph(trained)

    def run(inputs):
        with torch.no_grad():
            return [output.numpy() for output in graph(*map(torch.from_numpy, inputs))]

    in_torch._run = run
    return trained, in_torch, in_numpy


def started(case):
    for policy in case:
        policy.reset()
    return case


@contextmanager
def recorded(trained):
    """Record the scores or the modes of the policy's distributions in a list."""
    policy, given = getattr(trained.policy, "policy", trained.policy), []
    distribution = policy.distribution

    def record(*args, **options):
        found, columns = distribution(*args, **options)
        given.append(found.mode if found.scores is None else found.scores)
        return found, columns

    policy.distribution = record
    yield given
    del policy.distribution


def assert_same(trained, actions, others):
    for part in trained.units.outputs:
        one, other = action_at(actions, part.path), action_at(others, part.path)
        assert np.asarray(one).dtype == np.asarray(other).dtype
        if part.choices:
            np.testing.assert_array_equal(one, other)
        else:
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_batches_of_real_observations(case):
    trained, *exported = started(case)
    obs, masks = observations(trained, 40)
    with recorded(trained) as given:
        actions = trained(obs, masks)
    for policy in exported:
        assert_same(trained, policy(obs, masks), actions)
        if trained.spec.action.kind != "box":
            allowed = policy.values > -1e8
            np.testing.assert_allclose(policy.values[allowed], given[0][allowed], rtol=1e-5, atol=1e-5)
            assert allowed.all() == all(part.name != "action_mask" for part in trained.units.inputs)
    assert np.ptp(given[0], axis=0).min() > 1e-3  # the outputs differ between observations


def test_the_action_of_one_observation_is_in_the_space(case):
    obs, masks = observations(case[0], 5)
    for policy in case:
        policy.reset()
        batch = policy(obs, masks)
        policy.reset()
        mask = None if masks is None else masks[3]
        one = policy(row(obs, 3), mask)
        assert case[0].units.actions.contains(one), one
        assert_same(case[0], one, row(batch, 3))


@pytest.mark.parametrize("case", MASKED, indirect=True)
def test_a_mask_that_forbids_everything_allows_everything(case):
    trained, *exported = started(case)
    obs, masks = observations(trained, 30)
    free = trained(obs, np.ones_like(masks))
    trained.reset()
    assert_same(trained, trained(obs, np.zeros_like(masks)), free)
    for policy in exported:
        assert_same(trained, policy(obs, np.zeros_like(masks)), free)
    with pytest.raises(ValueError, match="action_mask"):
        trained(obs)


@pytest.mark.parametrize("case", MEMORY, indirect=True)
def test_the_state_of_a_memory_continues_and_is_reset(case):
    trained, *exported = started(case)
    steps = [observations(trained, 6, seed) for seed in range(5)]
    ended = np.array([False, True, False, False, True, False])
    for i, (obs, masks) in enumerate(steps):
        if i == 3:
            for policy in case:
                policy.reset(ended)
        actions = trained(obs, masks)
        for policy in exported:
            assert_same(trained, policy(obs, masks), actions)
            np.testing.assert_allclose(policy._state, trained_state(trained), rtol=1e-4, atol=1e-5)
    before = trained_state(trained)
    trained.reset()
    for obs, masks in steps[3:]:
        trained(obs, masks)
    after = trained_state(trained)
    np.testing.assert_allclose(after[ended], before[ended], rtol=1e-5, atol=1e-6)
    assert (np.abs(after - before)[~ended] > 1e-5).any(1).all()
    with pytest.raises(ValueError, match="remembers 6 episodes"):
        trained(*observations(trained, 2))
    obs, last = random_obs(trained.spec.obs, 2, np.random.default_rng(0)), PreviousStep.none(trained.spec, 2)
    with pytest.raises(ValueError, match="broadcast"):  # the number of episodes can't shrink before they end
        trained.policy.greedy(obs, last._replace(begins=np.array([True, False])))


def trained_state(trained):
    policy = getattr(trained.policy, "policy", trained.policy)
    return policy.encoder.states


@pytest.mark.parametrize("case", ["dqn-frames", "dqn-masked-part", "ppo-tree-masked"], indirect=True)
def test_episodes_equal_those_of_an_evaluation(case):
    trained, *_ = started(case)
    seeds = [3, 4, 5, 6]
    expected = Evaluator(trained.config, trained.spec, seeds).evaluate(trained.params).returns
    trained(*observations(trained, 2))  # a state of other episodes
    returns = play_together(trained, trained, seeds)
    np.testing.assert_allclose(returns, expected, rtol=1e-6)
    assert len(np.unique(expected)) > 1


@pytest.mark.parametrize("case", ["ppo-tree-masked"], indirect=True)
def test_observations_outside_their_space(case):
    for policy in started(case):
        obs, masks = observations(policy if policy is case[0] else case[0], 3)
        step, pair, bits = obs["inner"]
        for wrong, words in (
            ({**obs, "inner": (step + 4, pair, bits)}, r"obs\.inner\.0 is outside"),
            ({**obs, "inner": (step - 4, pair, bits)}, r"obs\.inner\.0 is outside"),
            ({**obs, "inner": (step, pair + np.array([0, 2]), bits)}, r"obs\.inner\.1 is outside"),
            ({**obs, "camera": obs["camera"] / 255}, r"obs\.camera is float64, expected uint8"),
            ({**obs, "camera": obs["camera"].astype(str)}, r"obs\.camera is <U3, expected uint8"),
            ({**obs, "who": obs["who"][:2]}, r"obs\.who has shape \(2, 2\), expected \(2,\)"),
            ({**obs, "who": None}, r"obs\.who has shape \(\), expected \(2,\)"),
            ({name: obs[name] for name in ("camera", "inner", "none")}, "no part 'who'"),
            ({**obs, "inner": (step, pair)}, r"no part 'inner\.2'"),
        ):
            with pytest.raises(ValueError, match=words):
                policy(wrong, masks)
        with pytest.raises(ValueError, match="action_mask has shape"):
            policy(obs, masks[:, :5])
        policy(obs, masks)


@pytest.mark.parametrize("case", ["sac-tree", *MEMORY], indirect=True)
def test_episodes_played_by_the_exported_policy(case):
    trained, _, in_numpy = started(case)
    parity = compare(trained, in_numpy, 4, least=100)
    assert 100 <= parity.observations < 150
    assert parity.problem() is None
    assert parity.return_trained == pytest.approx(parity.return_exported, rel=1e-4, abs=1e-4)
    assert parity.standard_error > 0


@pytest.mark.slow
def test_a_graph_for_discrete_observations_takes_any_number_of_rows(tmp_path):
    trained = make_policy(tmp_path, "env=FrozenLake-v1", "algo=dqn", "network.hidden=[8]")
    write_files(trained, "torch", tmp_path)
    program = torch.export.load(tmp_path / FILES["torch"]).module()
    for rows in (1, 5):
        assert len(program(torch.zeros(rows, dtype=torch.int64))[0]) == rows


@pytest.mark.slow
@pytest.mark.parametrize("options", [CASES["sac"], CASES["ppo-lstm"]])
def test_a_torch_export_has_no_pickle_that_torch_would_execute(tmp_path, monkeypatch, options):
    trained = make_policy(tmp_path, *options, "network.hidden=[8]")
    write_files(trained, "torch", tmp_path)

    def refuse(*args, **kwargs):
        raise AssertionError("a pickle")

    monkeypatch.setattr(torch, "load", refuse)
    monkeypatch.setattr(pickle, "loads", refuse)
    torch.export.load(tmp_path / FILES["torch"])
    with zipfile.ZipFile(tmp_path / FILES["torch"]) as file:
        (samples,) = [name for name in file.namelist() if "sample_inputs" in name]
        (weights,) = [name for name in file.namelist() if name.endswith("weights_config.json")]
        assert file.read(samples) == b""
        assert {weight["use_pickle"] for weight in json.loads(file.read(weights))["config"].values()} == {False}


@pytest.fixture
def make(tmp_path):
    def make_it(kind, env="drl_cli.envs.probes:Choose-v0"):
        config = make_config(*SMALL, f"env={env}", "algo=dqn")
        spec = read_spec(config.env)

        class Trained(TrainedPolicy):
            def fresh(self, in_torch=False):
                policy = kind(config.algo, config.network, spec, 0)
                policy.load(self.params)
                return policy

        own = kind(config.algo, config.network, spec, 0)
        acting = getattr(own, "acting", None)
        size = num_params(acting["q"].layers.shapes) if acting else 0
        if size == 0 and own.params is not None:
            size = len(own.params.vector(["net"]))
        params = np.random.default_rng(0).standard_normal(int(size)).astype(np.float32)
        return Trained(config, spec, params, tmp_path / "checkpoints" / "step_1", {"env_steps": 1, "opt_steps": 1})

    return make_it


@pytest.mark.slow
@pytest.mark.parametrize("kind", [torch_policies.Chooses, torch_policies.Remembers])
def test_a_torch_policy_is_exported_by_torch_and_onnx(make, kind):
    trained = make(kind)
    for format in ("torch", "onnx"):
        _, parity = export(trained, format, 20)
        assert parity.largest_difference <= 1e-5
    with pytest.raises(UsageError, match=r"torch.export can't trace its modules .*x\.shape\[0\]"):
        export(make(torch_policies.Fixed), "torch", 20)


def test_an_algorithm_with_modules_and_a_memory_of_its_own_is_exported_to_numpy(tmp_path):
    options = ("algo=outside.my_memory", "network=lstm", "replay=sequences")
    trained = make_policy(tmp_path, f"{PROBE}:Cue-v0", *options)
    write_files(trained, "numpy", tmp_path)
    exported = Policy(tmp_path)
    for seed in range(4):
        obs, _ = observations(trained, 30, seed)
        assert np.array_equal(exported(obs), trained(obs))
        np.testing.assert_allclose(exported._state, trained.policy.policy.memory, rtol=1e-5, atol=1e-6)
    assert np.ptp(exported.values, axis=0).min() > 1e-3


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (torch_policies.Reads, r"Python reads a tensor's values: Tensor\.tolist; say format=onnx or format=torch"),
        (torch_policies.Sorts, r"aten\.sort has no numpy form; say format=onnx or format=torch"),
        (torch_policies.Continues, r"reads `reward` of the previous step, .* use drl_cli\.load"),
        (torch_policies.Own, r"Own has its own greedy\(\).* drl_cli\.load"),
    ],
)
def test_a_failed_export_leaves_nothing(make, kind, words, tmp_path):
    trained = make(kind)
    with pytest.raises(NotExported, match=words):
        export(trained, "numpy", 20)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert trained(np.eye(3)[1]) in (3, 4, 5)


@pytest.mark.slow
def test_a_policy_with_a_search_exports_its_prior(make):
    trained = make(torch_policies.Searches)
    obs, _ = observations(trained, 30)
    searched, prior = trained(obs), make(torch_policies.Chooses)(obs)
    assert not (searched == prior).any()
    folder, parity = export(trained, "torch", 20)
    assert parity.largest_difference == 0
    assert np.array_equal(standalone.Policy(folder)(obs), prior)
    assert "the search of outside.torch_policies.Searches is not exported" in not_exported(torch_policies.Searches)
    assert not_exported(torch_policies.Chooses) is None


def test_a_policy_with_its_own_memory_gets_the_last_action_and_reward(make):
    kind = type("Memory", (torch_policies.Memory,), {"params": None, "shapes": [(1,)], "load": lambda *args: None})
    kind.__abstractmethods__ = frozenset()
    trained = make(kind)
    obs = np.zeros((2, 3))
    assert trained(obs).tolist() == [3, 3]  # choices start at 3
    assert trained(obs).tolist() == [4, 4]
    assert trained(obs, reward=[0.0, 2.0]).tolist() == [3, 5]  # 2 steps, action 1, and reward: 3 and 5 of 3
    trained.reset([False, True])
    # 3 steps, action 0 and reward 1 are 4 of 3; after a reset 3
    assert trained(obs, reward=[1.0, 1.0]).tolist() == [4, 3]
    trained.reset([True, False])
    trained.reset([False, True])
    assert trained(obs, reward=[2.0, 2.0]).tolist() == [3, 3]
