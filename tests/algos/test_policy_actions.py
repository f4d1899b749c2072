import numpy as np
import pytest
import torch
from frequencies import check_frequencies
from learners import ACTIONS, LOOKS, VECTOR, Learner

from drl_cli import api as drl
from drl_cli.algos.torch_policy import RandomActions, TorchPolicy
from drl_cli.networks.config import NetworkConfig
from drl_cli.types import Column, EnvSpec, PreviousStep

NETWORK = NetworkConfig((4,), "relu", "uniform")
MASK = np.array([[True, False, True, True, False, True, True]])


class Drawing(RandomActions):
    def load(self, params): ...

    def act(self, obs, last=None): ...

    def random(self, obs, last=None): ...

    def greedy(self, obs, last=None): ...


def drawing(kind, seed=0):
    return Drawing(EnvSpec("x", VECTOR, ACTIONS[kind]), seed)


def test_random_actions_are_uniform():
    obs = np.zeros((40_000, 3), np.float32)
    box = drawing("box").draw(obs)
    assert (box.dtype, box.shape) == (np.float32, (40_000, 2))
    for low in np.linspace(-1, 0.5, 4):
        assert ((box >= low) & (box < low + 0.5)).mean() == pytest.approx(0.25, abs=0.01)
    one = drawing("discrete").draw(obs)
    assert (one.dtype, one.shape) == (np.int64, (40_000,))
    check_frequencies(one, np.full(4, 1 / 4))
    several = drawing("multidiscrete").draw(obs)
    assert (several.dtype, several.shape) == (np.int64, (40_000, 2))
    check_frequencies(several[:, 0], np.full(4, 1 / 4))
    check_frequencies(several[:, 1], np.full(3, 1 / 3))
    assert np.array_equal(one, np.random.default_rng(0).integers(4, size=40_000))
    assert not np.array_equal(one, drawing("discrete", 1).draw(obs))


def test_random_actions_are_uniform_over_legal_actions():
    obs = {"camera": np.zeros((40_000, 3)), "action_mask": np.repeat(MASK[:, :4], 40_000, 0)}
    check_frequencies(drawing("discrete").draw(obs), np.array([1, 0, 1, 1]) / 3)
    obs["action_mask"] = np.repeat(MASK, 40_000, 0)
    several = drawing("multidiscrete").draw(obs)
    check_frequencies(several[:, 0], np.array([1, 0, 1, 1]) / 3)
    check_frequencies(several[:, 1], np.array([0, 1, 1]) / 2)


class Net(TorchPolicy):
    """A linear layer, and dropout that must be off in a policy."""

    @staticmethod
    def build(config, network, spec):
        return {"first": torch.nn.Linear(3, 2), "second": torch.nn.Dropout(0.9)}

    def choose(self, obs):
        self.seen = obs, torch.is_grad_enabled(), torch.get_num_threads()
        x = obs["x"] if isinstance(obs, dict) else obs
        return self.modules["second"](self.modules["first"](x)).clamp(-1, 1)


def test_a_policy_of_modules_acts_on_one_thread_without_autograd():
    policy = Net("config", NETWORK, EnvSpec("x", Column((3,), "float32"), ACTIONS["box"]), 0)
    params = np.linspace(-1, 1, 8, dtype=np.float32)
    policy.load(params)
    assert policy.config == "config"
    layer = policy.modules["first"]
    assert np.array_equal(torch.cat([layer.weight.flatten(), layer.bias]).detach().numpy(), params)
    obs, threads = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        greedy = policy.greedy(obs)
        assert (policy.seen[1:], torch.get_num_threads()) == ((False, 1), 2)
    finally:
        torch.set_num_threads(threads)
    expected = np.clip(obs @ params[:6].reshape(2, 3).T + params[6:], -1, 1)
    np.testing.assert_allclose(greedy, expected, rtol=1e-5, atol=1e-6)
    assert np.array_equal(policy.greedy({"x": obs}), greedy)
    assert isinstance(policy.seen[0]["x"], torch.Tensor)
    assert np.array_equal(policy.act(obs)["action"], greedy)
    policy.explored = lambda action, seen: action + len(seen)
    assert np.array_equal(policy.act(obs)["action"], greedy + 5)
    assert policy.random(obs).keys() == policy.act(obs).keys() == {"action"}
    again = Net("config", NETWORK, EnvSpec("x", Column((3,), "float32"), ACTIONS["box"]), 0)
    assert np.array_equal(again.random(obs)["action"], np.random.default_rng(0).uniform(-1, 1, (5, 2)).astype("f4"))


@pytest.mark.parametrize("method", ["act", "random"])
def test_a_memory_is_part_of_the_state_and_of_each_row(method):
    learner = Learner("sac", "box", *LOOKS["memory"])
    policy, rng = learner.policy(learner.algorithm()), np.random.default_rng(0)
    obs, begins = learner.obs(3, rng), PreviousStep.none(learner.spec, 3)
    assert policy.state().keys() == {"rng"}
    first = getattr(policy, method)(obs, begins)
    assert not first["state"].any()
    goes_on, state = begins._replace(begins=np.zeros(3, bool)), policy.state()
    second = getattr(policy, method)(obs, goes_on)
    assert np.array_equal(second["state"], state["memory"])
    assert state["memory"].any()
    other = learner.policy(learner.algorithm(), seed=9)
    other.load_state(state)
    state["memory"][:] = 7.0
    again = getattr(other, method)(obs, goes_on)
    assert again.keys() == second.keys() == {"action", "state"}
    assert all(np.array_equal(again[name], second[name]) for name in again)
    other.load_state({"rng": state["rng"]})
    assert not getattr(other, method)(obs, goes_on)["state"].any()


class Stochastic(TorchPolicy):
    """Samples from a softmax, with values and a memory that counts steps."""

    memory_size = 2

    @staticmethod
    def build(config, network, spec):
        return {"net": torch.nn.Linear(5, spec.action.size)}

    @staticmethod
    def extra_columns(config, network, spec):
        one = Column((), "float32")
        return {"log_prob": one, "value": one, "state": Column((2,), "float32")}

    def distribution(self, obs, last):
        self.calls = getattr(self, "calls", 0) + 1
        assert isinstance(last.reward, torch.Tensor)
        assert torch.get_num_threads() == 1
        assert not torch.is_grad_enabled()
        logits = self.modules["net"](torch.cat([obs, self.memory], -1))
        self.memory = self.memory + 1
        return drl.Categorical(logits), {"value": obs.sum(-1)}


def test_a_stochastic_policy_with_a_memory_makes_one_forward_pass_per_step():
    spec = EnvSpec("x", Column((3,), "float32"), ACTIONS["discrete"])
    policy = Stochastic("config", NETWORK, spec, 0)
    obs = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    last = PreviousStep.none(spec, 4)
    first = policy.act(obs, last)
    assert (policy.calls, first.keys()) == (1, {"action", "log_prob", "value", "state"})
    assert (first["action"].dtype, first["action"].shape) == (np.int64, (4,))
    np.testing.assert_allclose(first["value"], obs.sum(1), rtol=1e-6)
    assert not first["state"].any()
    net = policy.modules["net"]
    with torch.no_grad():
        log_probs = net(torch.cat([torch.from_numpy(obs), torch.zeros(4, 2)], 1)).log_softmax(-1).numpy()
    np.testing.assert_allclose(first["log_prob"], log_probs[np.arange(4), first["action"]], rtol=1e-5)

    saved = policy.state()
    begins = PreviousStep.of(first["action"], np.zeros(4, np.float32), [2])
    second = policy.act(obs, begins)
    assert second["state"].tolist() == [[1, 1], [1, 1], [0, 0], [1, 1]]
    again = Stochastic("config", NETWORK, spec, 5)
    again.load(policy.params.vector(["net"]))
    again.load_state(saved)
    for name, column in again.act(obs, begins).items():
        assert np.array_equal(column, second[name])

    drawn = policy.random(obs, begins)
    assert drawn.keys() == first.keys()
    assert drawn["log_prob"].tolist() == pytest.approx([-np.log(4)] * 4)
    assert drawn["state"].tolist() == [[2, 2], [2, 2], [0, 0], [2, 2]]
    with torch.no_grad():
        state = torch.tensor([[3.0, 3], [3, 3], [0, 0], [3, 3]])
        best = net(torch.cat([torch.from_numpy(obs), state], 1)).argmax(-1)
    assert np.array_equal(policy.greedy(obs, begins), best.numpy())
    assert policy.calls == 4


def test_random_actions_know_the_number_of_legal_choices():
    class Masked(Stochastic):
        memory_size = 0

        @staticmethod
        def extra_columns(config, network, spec):
            return {"log_prob": Column((), "float32")}

        def distribution(self, obs, last):
            return drl.MultiCategorical(torch.zeros(1, 7), (4, 3), obs["action_mask"]), {}

    policy = Masked("config", NETWORK, EnvSpec("x", VECTOR, ACTIONS["multidiscrete"]), 0)
    columns = policy.random({"x": np.zeros((1, 3), np.float32), "action_mask": MASK})
    assert columns["log_prob"].tolist() == pytest.approx([-np.log(3 * 2)])
    assert policy.act({"x": np.zeros((1, 3), np.float32), "action_mask": MASK})["log_prob"][0] == pytest.approx(
        -np.log(6)
    )


def test_a_policy_without_choose_and_distribution_says_what_is_missing():
    class Empty(TorchPolicy):
        @staticmethod
        def build(config, network, spec):
            return {"net": torch.nn.Linear(3, 2)}

    policy = Empty("config", NETWORK, EnvSpec("x", Column((3,), "float32"), ACTIONS["box"]), 0)
    with pytest.raises(NotImplementedError, match="choose or distribution"):
        policy.act(np.zeros((1, 3), np.float32))


class Recalls(TorchPolicy):
    """Chooses the number of the step of the episode, which its memory counts."""

    memory_size = 1

    @staticmethod
    def build(config, network, spec):
        return {"net": torch.nn.Linear(3, 4)}

    @staticmethod
    def extra_columns(config, network, spec):
        return {"state": Column((1,), "float32")}

    def choose(self, obs):
        self.memory = self.memory + 1
        return self.memory[:, 0].long()


def test_a_policy_with_a_memory_may_define_choose_alone():
    spec = EnvSpec("x", Column((3,), "float32"), ACTIONS["discrete"])
    policy, obs, last = Recalls("config", NETWORK, spec, 0), np.zeros((2, 3), np.float32), PreviousStep.none(spec, 2)
    assert policy.greedy(obs, last).tolist() == [1, 1]
    goes_on = last._replace(begins=np.array([False, True]))
    assert policy.greedy(obs, goes_on).tolist() == [2, 1]
    acted = policy.act(obs, goes_on)
    assert (acted["action"].tolist(), acted["state"].tolist()) == ([3, 1], [[2], [0]])
    drawn = policy.random(obs, last._replace(begins=np.zeros(2, bool)))
    assert (drawn.keys(), drawn["state"].tolist()) == ({"action", "state"}, [[3], [1]])
    policy.explored = lambda action, seen: action + len(seen)
    assert policy.act(obs, goes_on)["action"].tolist() == [7, 3]


def test_greedy_calls_choose_wherever_it_is_defined():
    """A policy with a memory and a distribution may search for its best action."""

    class Searches(Stochastic):
        def choose(self, obs):
            self.searched = self.memory.clone()
            return torch.full((len(obs),), 3)

    spec = EnvSpec("x", Column((3,), "float32"), ACTIONS["discrete"])
    policy, last = Searches("config", NETWORK, spec, 0), PreviousStep.none(spec, 2)
    obs = np.zeros((2, 3), np.float32)
    policy.act(obs, last)
    goes_on = last._replace(begins=np.array([False, True]))
    assert (policy.greedy(obs, goes_on).tolist(), policy.searched.tolist()) == ([3, 3], [[1, 1], [0, 0]])


class Warm(TorchPolicy):
    """Marks the rows of the warm-up, and has cheap columns for them."""

    @staticmethod
    def build(config, network, spec):
        return {"net": torch.nn.Linear(3, 4)}

    @staticmethod
    def extra_columns(config, network, spec):
        one = Column((), "float32")
        return {"value": one, "is_random": Column((), "bool"), "log_prob": one}

    def distribution(self, obs, last):
        assert self.may_search, "the warm-up does not need the search"
        return drl.Categorical(self.modules["net"](obs) / self.exploration.get("temperature", 1.0)), {
            "value": obs[:, 0]
        }

    def warm_up(self, obs, last):
        return {"value": torch.full((len(obs),), -7.0)}


def test_a_policy_may_define_its_random_act_and_the_rows_are_marked():
    policy = Warm("config", NETWORK, EnvSpec("x", Column((3,), "float32"), ACTIONS["discrete"]), 0)
    obs, policy.may_search = np.ones((50, 3), np.float32), False
    drawn = policy.random(obs)
    assert (set(drawn["value"].tolist()), drawn["is_random"].all()) == ({-7.0}, True)
    assert set(drawn["action"].tolist()) == {0, 1, 2, 3}
    np.testing.assert_allclose(drawn["log_prob"], -np.log(4))
    policy.may_search = True
    acted = policy.act(obs)
    assert (set(acted["value"].tolist()), acted["is_random"].any()) == ({1.0}, False)
    assert {name: column.dtype for name, column in drawn.items()} == {n: c.dtype for n, c in acted.items()}


def test_a_policy_of_modules_knows_its_exploration_values():
    policy = Warm("config", NETWORK, EnvSpec("x", Column((3,), "float32"), ACTIONS["discrete"]), 0)
    obs, policy.may_search = np.random.default_rng(0).standard_normal((500, 3)).astype(np.float32), True
    assert dict(policy.exploration) == {}
    policy.explore({"temperature": 1e-6})
    assert np.array_equal(policy.act(obs)["action"], policy.greedy(obs))
    policy.explore({"temperature": 1e6})
    assert (policy.act(obs)["action"] != policy.greedy(obs)).mean() > 0.5
