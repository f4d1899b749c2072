"""Policies as users write them: the numpy policy acts as the torch policy, draws the same numbers, or is refused."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from learners import ACTIONS, TREE, VECTOR
from torch import nn

from drl_cli import api as drl
from drl_cli.convert import convert as convert_module
from drl_cli.convert.convert import convert
from drl_cli.convert.program import numpy_policy
from drl_cli.convert.trace import NotConverted
from drl_cli.networks.config import NetworkConfig
from drl_cli.types import Column, EnvSpec, PreviousStep, random_obs

NETWORK = NetworkConfig((8, 8), "relu", "uniform")
NORM = NetworkConfig((8, 8), "tanh", "uniform", layer_norm=True)
MASKED = {"x": Column((3,), "float32"), "action_mask": Column((4,), "bool")}


class Own(drl.TorchPolicy):
    @staticmethod
    def build(config, network, spec):
        return {"net": drl.Network(network, spec, 2 * spec.action.size)}

    def out(self, obs):
        return self.modules["net"](obs)


class Chooses(Own):
    def choose(self, obs):
        return self.out(obs).chunk(2, -1)[0].tanh()


class Explores(Chooses):
    def explored(self, action, obs):
        noise = self.exploration["noise"] * self.rng.standard_normal(action.shape, "float32")
        return (action + noise).clip(-1, 1)


class Softmax(Own):
    """A policy with masks and values. Random actions leave the drawn action out, but not the draw."""

    @staticmethod
    def extra_columns(config, network, spec):
        return {"value": drl.Column((), "float32")}

    def distribution(self, obs, last):
        out = self.out(obs)
        return drl.Categorical(out[:, :4], obs["action_mask"]), {"value": out[:, 4]}


class Several(Own):
    def distribution(self, obs, last):
        return drl.MultiCategorical(self.out(obs)[:, :7], self.action.choices), {}


class Squashed(Own):
    @staticmethod
    def extra_columns(config, network, spec):
        return {name: drl.Column((), kind) for name, kind in (("log_prob", "float32"), ("is_random", "bool"))}

    def distribution(self, obs, last):
        mean, log_std = self.out(obs).chunk(2, -1)
        return drl.TanhGaussian(mean, log_std.clamp(-20, 2)), {}


class Valued(Own):
    """A Gaussian with one standard deviation for all states, and a column."""

    @staticmethod
    def build(config, network, spec):
        class Std(nn.Module):
            def __init__(self):
                super().__init__()
                self.log_std = nn.Parameter(torch.zeros(spec.action.size))

        return {"net": drl.Network(network, spec, 2 * spec.action.size), "std": Std()}

    @staticmethod
    def extra_columns(config, network, spec):
        return {"log_prob": drl.Column((), "float32"), "value": drl.Column((), "float32")}

    def distribution(self, obs, last):
        mean, rest = self.out(obs).chunk(2, -1)
        return drl.Gaussian(mean, self.modules["std"].log_std), {"value": rest.mean(-1)}

    def warm_up(self, obs, last):
        return {"value": torch.zeros(obs.shape[0]), "log_prob": torch.zeros(obs.shape[0])}


class Cell(nn.Module):
    def __init__(self, kind, size):
        super().__init__()
        self.cell, self.head = kind(size + 2, 4), nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4))


class Recurrent(Own):
    """Remembers by an LSTM, of which it also sees the last reward and whether an episode begins."""

    memory_size = 8
    kind = "LSTMCell"

    @classmethod
    def build(cls, config, network, spec):
        return {"net": Cell(getattr(nn, cls.kind), 6)}

    @staticmethod
    def extra_columns(config, network, spec):
        return {"state": drl.Column((8,), "float32")}

    def distribution(self, obs, last):
        net = self.modules["net"]
        x = torch.cat([obs.flatten(1), last.reward[:, None], last.begins[:, None].float()], -1)
        h, c = net.cell(x, tuple(self.memory.chunk(2, -1)))
        self.memory = torch.cat([h, c], -1)
        return drl.Categorical(net.head(h)), {}


class Gated(Recurrent):
    memory_size = 4
    kind = "GRUCell"

    @staticmethod
    def extra_columns(config, network, spec):
        return {}

    def distribution(self, obs, last):
        net = self.modules["net"]
        x = torch.cat([obs.flatten(1), last.action[:, None].float(), last.begins[:, None].float()], -1)
        self.memory = net.cell(x, self.memory)
        return drl.Categorical(net.head(self.memory)), {}


class Layers(Recurrent):
    """An LSTM that takes sequences."""

    kind = "LSTM"

    def distribution(self, obs, last):
        net = self.modules["net"]
        x = torch.cat([obs.flatten(1), last.reward[:, None], last.begins[:, None].float()], -1)
        state = tuple(part[None].contiguous() for part in self.memory.chunk(2, -1))
        out, (h, c) = net.cell(x[None], state)
        self.memory = torch.cat([h[0], c[0]], -1)
        return drl.Categorical(net.head(out[0])), {}


class Noisy(Own):
    """Factored noise, drawn by the policy's generator (Fortunato et al. 2018)."""

    @staticmethod
    def build(config, network, spec):
        return {"net": nn.ModuleDict({"mean": nn.Linear(6, 4), "std": nn.Linear(6, 4)})}

    def values(self, obs, noise):
        net, x = self.modules["net"], obs.flatten(1)
        return net["mean"](x) + (x * noise[0].sign() * noise[0].abs().sqrt()) @ net["std"].weight.t() * noise[1]

    def sample(self, obs, last):
        noise = [torch.from_numpy(self.rng.standard_normal(size, np.float32)) for size in (6, 4)]
        return self.values(obs, noise).argmax(-1), {}

    def choose(self, obs):
        return self.values(obs, (torch.zeros(6), torch.zeros(4))).argmax(-1)


class Fractions(Own):
    """Quantiles at random fractions (IQN, Dabney et al. 2018)."""

    @staticmethod
    def build(config, network, spec):
        return {"net": nn.ModuleDict({"x": nn.Linear(6, 5), "tau": nn.Linear(3, 5), "out": nn.Linear(5, 4)})}

    def values(self, obs, tau):
        net, n = self.modules["net"], obs.shape[0]
        cosines = (tau.unsqueeze(-1) * torch.arange(1, 4) * torch.pi).cos()  # [n, 7, 3]
        joined = net["x"](obs.flatten(1)).relu().unsqueeze(1) * net["tau"](cosines).relu()
        return net["out"](joined.view(7 * n, 5)).view(n, 7, 4).mean(1)

    def sample(self, obs, last):
        return self.values(obs, torch.from_numpy(self.rng.random((obs.shape[0], 7), np.float32))).argmax(-1), {}

    def choose(self, obs):
        return self.values(obs, torch.full((obs.shape[0], 7), 0.5)).argmax(-1)


class Images(Own):
    @staticmethod
    def build(config, network, spec):
        layers = (nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(100, 4))
        return {"net": nn.Sequential(*layers)}

    def choose(self, obs):
        return self.out(obs.permute(0, 3, 1, 2).float() / 255).argmax(-1)


class Residual(Own):
    """Blocks with a shortcut, batch-independent running statistics as buffers, and an integer buffer."""

    @staticmethod
    def build(config, network, spec):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
                self.register_buffer("mean", torch.ones(6))
                self.register_buffer("index", torch.tensor([1, 0, 3, 2]))

            def forward(self, x):
                x = x.flatten(1) - self.mean
                for layer in self.layers:
                    x = x + nn.functional.silu(layer(x))
                return x[:, 2:].index_select(1, self.index)

        return {"net": Net()}

    def choose(self, obs):
        return self.out(obs)[:, :2].tanh()


CONVERTED = {
    Chooses: (VECTOR, "box", NETWORK),
    Explores: (VECTOR, "box", NORM),
    Softmax: (MASKED, "discrete", NETWORK),
    Several: (TREE, "multidiscrete", NetworkConfig((8,), "elu", "orthogonal", torso="mlp")),
    Squashed: (VECTOR, "box", NETWORK),
    Valued: (VECTOR, "box", NORM),
    Recurrent: (VECTOR, "discrete", NETWORK),
    Gated: (VECTOR, "discrete", NETWORK),
    Layers: (VECTOR, "discrete", NETWORK),
    Noisy: (VECTOR, "discrete", NETWORK),
    Fractions: (VECTOR, "discrete", NETWORK),
    Images: (Column((12, 12, 3), "uint8"), "discrete", NETWORK),
    Residual: (VECTOR, "box", NETWORK),
}


def pair(kind, seed=3):
    """Return the torch policy and the numpy policy of a class with the same parameters, and the spec."""
    obs, action, network = CONVERTED[kind]
    spec = EnvSpec("x", obs, ACTIONS[action])
    config = SimpleNamespace()
    program = convert(kind, config, network, spec, ("noise",))
    torch.manual_seed(seed)
    policies = [each(config, network, spec, seed) for each in (kind, numpy_policy(kind, program))]
    vector = policies[0].params.vector(list(policies[0].modules))
    for policy in policies:
        policy.load(vector)
        policy.explore({"noise": 0.3})
    return (*policies, spec)


@pytest.mark.parametrize("kind", CONVERTED, ids=lambda kind: kind.__name__)
def test_the_numpy_policy_acts_as_the_torch_policy(kind):
    """It gets the numbers of the torch policy to 2e-6, for other numbers of rows than those that were compared."""
    in_torch, in_numpy, spec = pair(kind)
    for rows in (4, 9, 1):
        rng, last = np.random.default_rng(rows), PreviousStep.none(spec, rows)
        for step in range(4):
            obs = random_obs(spec.obs, rows, rng)
            if step == 2:  # both policies go on from a state
                in_torch, other, _ = pair(kind, seed=8)
                other.load(in_torch.params.vector(list(in_torch.modules)))
                in_torch.load_state(in_numpy.state())
                other.load_state(in_numpy.state())
                in_numpy = other
            for method in ("random", "act", "greedy"):
                results = [getattr(each, method)(obs, last) for each in (in_torch, in_numpy)]
                expected, found = (each if isinstance(each, dict) else {"action": each} for each in results)
                assert expected.keys() == found.keys()
                for name, column in expected.items():
                    assert (found[name].shape, found[name].dtype) == (column.shape, column.dtype)
                    np.testing.assert_allclose(found[name], column, rtol=2e-6, atol=2e-6)
            last = PreviousStep.of(in_numpy.act(obs, last)["action"], rng.standard_normal(rows, np.float32), [0])
            in_torch.load_state(in_numpy.state())
        np.testing.assert_equal(in_numpy.state(), in_torch.state())


def test_columns_of_earlier_steps_do_not_change():
    _, policy, spec = pair(Recurrent)
    obs, last = random_obs(spec.obs, 3, np.random.default_rng(0)), PreviousStep.none(spec, 3)
    first = policy.act(obs, last)
    before = {name: column.copy() for name, column in first.items()}
    policy.act(obs, last._replace(begins=np.zeros(3, np.bool_)))
    policy.load(np.ones(policy.program.size, np.float32))
    policy.act(obs, last)
    np.testing.assert_equal(first, before)


def test_a_vector_of_another_size_is_refused():
    _, policy, _ = pair(Chooses)
    with pytest.raises(ValueError, match=r"shape \(3,\), the policy needs \(164,\)"):
        policy.load(np.zeros(3, np.float32))


def test_the_program_is_the_same_each_time():
    spec = EnvSpec("x", VECTOR, ACTIONS["box"])
    programs = [convert(Squashed, None, NETWORK, spec) for _ in range(2)]
    assert programs[0].source == programs[1].source
    np.testing.assert_equal(programs[0].constants, programs[1].constants)


def test_each_conversion_compares_the_same_weights():
    """A resumed run must not decide otherwise than the run before."""
    seen = []

    class Watched(Chooses):
        @staticmethod
        def build(config, network, spec):
            modules = Chooses.build(config, network, spec)
            seen.append(modules["net"].mlp.flat.sum().item())
            return modules

    for seed in range(2):
        torch.manual_seed(seed)
        convert(Watched, None, NETWORK, EnvSpec("x", VECTOR, ACTIONS["box"]))
    half = len(seen) // 2
    assert seen[:half] == seen[half:]
    assert len({*seen}) > 1


def test_a_conversion_keeps_the_state_of_torchs_generator():
    before = torch.get_rng_state()
    convert(Chooses, None, NETWORK, EnvSpec("x", VECTOR, ACTIONS["box"]))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch._C._get_mkldnn_enabled()


class Made(Chooses):
    def __init__(self, *args):
        super().__init__(*args)


class Greedy(Chooses):
    def greedy(self, obs, last=None):
        return super().greedy(obs, last)


class Prioritizes(Chooses):
    def priorities(self, rows):
        return np.ones(len(rows["reward"]))


class Counts(Chooses):
    count = 0

    def choose(self, obs):
        self.count += 1
        return super().choose(obs) * self.count


class Tempered(Chooses):
    def choose(self, obs):
        return super().choose(obs) * self.exploration["noise"]


class Seeded(Chooses):
    """A constant that each process would draw itself."""

    def choose(self, obs):
        if not hasattr(self, "scale"):
            self.scale = torch.randn(2)
        return super().choose(obs) * self.scale


class Branches(Chooses):
    """The value of a random number chooses what is computed, though it is rarely seen."""

    def sample(self, obs, last):
        return (self.choose(obs) if self.rng.random(1)[0] < 0.999 else -self.choose(obs)), {}


class Coin(Chooses):
    def sample(self, obs, last):
        return (self.choose(obs) if self.rng.random() < 0.999 else -self.choose(obs)), {}


class FirstDraw(Chooses):
    """Torch gets a part of an array of random numbers."""

    def sample(self, obs, last):
        return self.choose(obs) + torch.from_numpy(self.rng.standard_normal((3, 2), np.float32)[0]), {}


class ByRows(Chooses):
    """Another action if there is one row only."""

    def choose(self, obs):
        action = super().choose(obs)
        return action if len(obs) > 1 else -action


class ByModule(Chooses):
    def explored(self, action, obs):
        return action * self.modules["net"].mlp.flat[0].item()


class Hidden(Chooses):
    """A state that checkpoints would not have."""

    past = 0.0

    def choose(self, obs):
        action = super().choose(obs)
        self.past, before = action, self.past
        return action + before


REFUSED = {
    Made: "it defines __init__",
    Greedy: "it defines greedy",
    Prioritizes: "it defines priorities",
    Counts: "differs by",
    Tempered: "mul: something depends on values, on weights or on random numbers",
    Seeded: "a constant: something depends",
    Branches: "a random number is used outside of torch",
    Coin: "rng.random returns float, not an array",
    FirstDraw: "a random number is used outside of torch",
    ByRows: "action differs by",
    ByModule: "no attribute 'modules'",
    Hidden: "a constant: something depends|made outside of torch|differs by",
}


@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_a_policy_that_a_program_can_not_copy_is_refused(kind):
    with pytest.raises((NotConverted, AttributeError), match=REFUSED[kind]):
        convert(kind, None, NETWORK, EnvSpec("x", VECTOR, ACTIONS["box"]), ("noise",))


def test_an_operation_may_be_refused_because_torch_is_faster():
    spec = EnvSpec("x", *(CONVERTED[Images][0], ACTIONS["discrete"]))
    convert(Images, None, NETWORK, spec)
    with pytest.raises(NotConverted, match=r"aten\.convolution is faster in torch"):
        convert(Images, None, NETWORK, spec, refused=("convolution",))


@pytest.mark.parametrize("wrong", ["action", "draws", "columns"])
def test_a_wrong_program_is_never_used(monkeypatch, wrong):
    class Wrong(numpy_policy(Squashed, None)):
        def _run(self, method, obs, last):
            columns = super()._run(method, obs, last)
            if wrong == "draws":
                self.rng.random()
            if wrong == "columns":
                columns["more"] = columns["is_random"]
            return {**columns, "log_prob": columns.get("log_prob", 0) + 1e-4 * (wrong == "action")}

    monkeypatch.setattr(convert_module, "numpy_policy", lambda kind, program: type("W", (Wrong,), {"program": program}))
    with pytest.raises(NotConverted, match=r"other columns|differs by"):
        convert(Squashed, None, NETWORK, EnvSpec("x", VECTOR, ACTIONS["box"]))
