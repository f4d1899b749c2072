import pytest
import torch
from learners import first_rows
from outside import my_a2c
from pages import blocks

from drl_cli.algos.context import RewardConfig
from drl_cli.algos.reward_stream import Reward, RewardStream
from drl_cli.api import Context
from drl_cli.errors import Refused, UsageError
from drl_cli.networks.config import NetworkConfig
from drl_cli.preflight.algorithm import check_network
from drl_cli.testing import Case, check_algorithm
from drl_cli.testing.case import Together

SMALL = ("env=MountainCar-v0", "network.hidden=[8]", "algo.minibatch_size=8", "algo.epochs=2")


@pytest.fixture(autouse=True)
def rnd(tmp_path, monkeypatch):
    """The module of the page, as my_rnd in the current folder."""
    code = blocks("reward-modules.md")[0]
    assert len(code.strip().splitlines()) <= 35
    (tmp_path / "my_rnd.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
def test_ppo_with_the_module_of_the_page_keeps_the_contract():
    check_algorithm("ppo", *SMALL, "reward=my_rnd:RND")


def test_the_module_learns_and_its_random_network_does_not():
    case = Case("ppo", *SMALL, "reward=my_rnd:RND")
    algorithm = case.algorithm()
    assert {*algorithm.params.slices} - {*algorithm.minibatches.gradients.parts} == {"reward"}
    before = {name: p.clone() for name, p in algorithm.stream.module.named_parameters()}
    updates = case.learn(algorithm, 0, 4)
    changed = {
        name.split(".")[0] for name, p in algorithm.stream.module.named_parameters() if (p != before[name]).any()
    }
    assert (changed, algorithm.stream.module.moments[0]) == ({"predictor"}, 4)
    assert float(updates[-1].metrics["reward_loss"]) < float(updates[0].metrics["reward_loss"])


def test_a_file_with_networks_gets_the_stream_and_a_critic_of_observations(monkeypatch):
    monkeypatch.setattr(my_a2c, "REWARDS", True, raising=False)
    case = Case("outside.my_a2c", *SMALL[:2], "algo.lr=0.01", "reward=my_rnd:RND")
    algorithm, batch = case.algorithm(), case.batch()
    assert algorithm.nets.reward_critic(batch["obs"]).shape == (len(batch["obs"]), 1)
    assert algorithm.optimizer.lrs["reward"] == algorithm.stream.module.lr != case.config.algo.lr
    before = algorithm.params["reward"].flat.clone()
    assert algorithm.stream.learn(batch, algorithm.optimizer) > 0
    assert not torch.equal(algorithm.params["reward"].flat, before)


def test_the_modules_seed_leaves_the_generators_of_other_networks_and_of_gpus_alone(monkeypatch):
    seeded = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    case = Case("ppo", *SMALL, "reward=my_rnd:RND")
    state, context = torch.get_rng_state(), case.context()
    streams = [RewardStream.build(context, case.config.network, case.spec, seed) for seed in (1, 1, 2)]
    first, again, other = [next(stream.module.parameters()) for stream in streams]
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)
    assert seeded == []


class Given(Reward, torch.nn.Module):
    """A module whose bonus is a column of the batch."""

    gamma = 0.5

    def bonus(self, batch):
        return batch["bonus"]


def of(bonus, num=4):
    return {"bonus": bonus, "reward": torch.zeros(num)}


def test_the_normaliser_is_of_all_bonuses_and_equal_for_two_trainers():
    bonuses = torch.rand(3, 8, generator=torch.Generator().manual_seed(0))
    alone, rewards = RewardStream(Given(), Context(torch.device("cpu"))), []
    for bonus in bonuses:
        rewards.append(alone.rewards(of(bonus, 8)))
        alone.keep()
    torch.testing.assert_close(rewards[-1], bonuses[-1] / bonuses.std(correction=0), rtol=1e-4, atol=1e-5)
    groups = Together.pair()
    pair = [RewardStream(Given(), Context(torch.device("cpu"), group)) for group in groups]
    halves = {}

    def learn(rank):
        for bonus in bonuses:
            halves[rank] = pair[rank].rewards(of(bonus[4 * rank : 4 * rank + 4]))
            pair[rank].keep()

    groups[0].run(learn)
    torch.testing.assert_close(torch.cat([halves[0], halves[1]]), rewards[-1])


def test_the_stream_goes_on_over_the_end_of_an_episode():
    """Rewards 1, 2, 3 with V = 0 and V(next_obs) = 4 at the end of the piece: each bootstraps, none is 0."""
    stream = RewardStream(Given(), Context(torch.device("cpu")))
    value, cut = torch.zeros(3), torch.tensor([False, True, True])
    stream.module.coef = 2.0
    got, target = stream.advantages(torch.tensor([1.0, 2.0, 3.0]), value, torch.tensor([0.0, 4.0, 4.0]), cut, 1.0)
    assert got.tolist() == [6.0, 8.0, 10.0]  # times coef
    assert target.tolist() == [3.0, 4.0, 5.0]


def test_a_class_that_is_no_reward_module_is_refused():
    context = Context(torch.device("cpu"), reward=RewardConfig("torch.nn:Linear"))
    with pytest.raises(Refused, match=r"reward=torch.nn:Linear: derive the class from drl.Reward and torch.nn.Module"):
        RewardStream.build(context, NetworkConfig, None, 0)


def test_an_algorithm_without_reward_streams_is_named():
    case = Case("sac", "env=Pendulum-v1", "reward=my_rnd:RND")
    with pytest.raises(UsageError, match="reward: SAC takes no reward module, because a bonus in replay would"):
        check_network(case.config, case.spec)
    case = Case("ppo", *SMALL, "reward=my_rnd:RMD")
    with pytest.raises(UsageError, match=r"reward: my_rnd has no 'RMD'\. Did you mean RND\?"):
        check_network(case.config, case.spec)


def test_the_advantages_of_the_stream_are_added_times_coef():
    case = Case("ppo", *SMALL, "reward=my_rnd:RND", "algo.normalize_advantage=false")
    batch, advantage = case.batch(1), {}
    for coef in (0.0, 1.0, 2.0):
        algorithm = case.algorithm()
        algorithm.stream.module.coef = coef
        advantage[coef] = first_rows(algorithm, batch)["advantage"]
    bonus = advantage[1.0] - advantage[0.0]
    assert bonus.abs().min() > 0
    torch.testing.assert_close(advantage[2.0] - advantage[0.0], 2 * bonus)
