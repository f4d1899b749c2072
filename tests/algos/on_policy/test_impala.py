import numpy as np
import pytest
import torch
from choices import some
from continuous import gradient
from learners import first_rows
from references import flattened, sequential
from torch.distributions import Categorical

from drl_cli import api as drl
from drl_cli.algos.base import Counts
from drl_cli.losses import returns
from drl_cli.testing import Case, check_algorithm

SMALL = (
    *("env=CartPole-v1", "network.hidden=[8]", "algo.lr=1e-2", "optimizer.max_norm=null"),
    "trainer.on_nonfinite=stop",
)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("appo", ("env=CartPole-v1", "replay=fifo", "replay.times=2")),
        ("a2c", ("env=CartPole-v1",)),
        ("reinforce", ("env=Pendulum-v1",)),
    ],
)
def test_the_contract(name, options):
    check_algorithm(name, "network.hidden=[8]", *options)


def stale(batch):
    """The batch with the log-probabilities of another policy."""
    noise = torch.randn(len(batch["log_prob"]), generator=torch.Generator().manual_seed(3))
    return batch | {"log_prob": batch["log_prob"] + 0.5 * noise}


class Reference:
    """IMPALA on float64 modules, with V-trace as in remark 1 of the paper, step by step from the end."""

    def __init__(self, algorithm):
        self.config = algorithm.config
        sizes = ((4, 8, 2), (4, 8, 1))
        parts = zip(("actor", "critic"), sizes, strict=True)
        self.actor, self.critic = (
            sequential(algorithm.params[name].flat.clone(), size, "tanh") for name, size in parts
        )

    def vtrace(self, batch, log_prob):
        value, following = (self.critic(batch[name])[:, 0].detach() for name in ("obs", "next_obs"))
        ratio = (log_prob.detach() - batch["log_prob"]).exp()
        rho, c = ratio.clamp(max=self.config.rho_max), self.config.gae_lambda * ratio.clamp(max=self.config.c_max)
        target, advantage = value.clone(), torch.zeros_like(value)
        for t in reversed(range(len(value))):
            is_last = t == len(value) - 1 or bool(batch["cut"][t])
            then = following[t] if is_last else target[t + 1]
            rest = 0.0 if is_last else batch["discount"][t] * c[t] * (target[t + 1] - value[t + 1])
            target[t] = value[t] + rho[t] * (batch["reward"][t] + batch["discount"][t] * following[t] - value[t]) + rest
            advantage[t] = rho[t] * (batch["reward"][t] + batch["discount"][t] * then - value[t])
        return target, advantage

    def update(self, batch):
        batch = {name: c.double() if c.dtype == torch.float32 else c for name, c in batch.items()}
        chosen = Categorical(logits=self.actor(batch["obs"]))
        log_prob = chosen.log_prob(batch["action"])
        target, advantage = self.vtrace(batch, log_prob)
        value_loss = 0.5 * (self.critic(batch["obs"])[:, 0] - target).square().mean()
        loss = -(advantage * log_prob).mean() - self.config.entropy_coef * chosen.entropy().mean()
        optimizer = torch.optim.Adam([*self.actor.parameters(), *self.critic.parameters()], self.config.lr)
        (loss + self.config.value_coef * value_loss).backward()
        optimizer.step()
        return value_loss.item()


@pytest.mark.parametrize("options", [(), ("algo.rho_max=0.7", "algo.c_max=0.9", "algo.gae_lambda=0.8")])
def test_an_update_equals_an_independent_implementation(options):
    case = Case("impala", *SMALL, *options)
    algorithm, batch = case.algorithm(), stale(case.batch(0, 40))
    reference, start = Reference(algorithm), algorithm.params.flat.clone()
    update, value_loss = algorithm.learn(dict(batch), Counts()), reference.update(batch)
    assert (update.steps, update.metrics["value_loss"].item()) == (1, pytest.approx(value_loss, rel=1e-4))
    assert update.metrics["clip_fraction"].item() == 0.0  # the ratio is relative to the trainer's policy
    assert (algorithm.params.flat - start).abs().max() > 5e-3
    for part, network in (("actor", reference.actor), ("critic", reference.critic)):
        torch.testing.assert_close(algorithm.params[part].flat.double(), flattened(network), rtol=0, atol=2e-5)


def test_a2c_makes_one_step_of_the_whole_rollout_with_ratio_one():
    case = Case("a2c", *SMALL)
    algorithm, batch = case.algorithm(), case.batch(0, 40)
    policy = case.policy(0, algorithm)
    own = policy.act(batch["obs"].numpy())
    batch |= {"action": torch.from_numpy(own["action"]), "log_prob": torch.from_numpy(own["log_prob"])}
    update = algorithm.learn(batch, Counts())
    assert (update.steps, update.metrics["approx_kl"].item()) == (1, pytest.approx(0.0, abs=1e-6))


def test_appo_clips_ratios_to_the_policy_at_the_start_of_the_update():
    case = Case("appo", *SMALL, "algo.minibatch_size=10", "algo.lr=0.1")
    algorithm, batch = case.algorithm(), stale(case.batch(0, 40))
    update = algorithm.learn(batch, Counts())
    assert update.steps == 4 * 4
    assert 0.0 < update.metrics["clip_fraction"].item() < 1.0


@pytest.mark.slow
@pytest.mark.parametrize("env", some(["CartPole-v1", "Pendulum-v1"], "Pendulum-v1"))
def test_the_target_policy_is_replaced_after_its_period(env):
    words = (f"env={env}", *SMALL[1:], "algo.minibatch_size=10", "algo.target_period=24")
    case = Case("appo", *words)
    algorithm, batch = case.algorithm(), case.batch(0, 40)
    first = first_rows(algorithm, batch)["log_prob"].clone()
    for opt_steps, is_new in ((0, False), (16, True)):  # 4 epochs of 4 minibatches
        algorithm.learn(dict(batch), Counts(opt_steps=opt_steps))
        now = first_rows(algorithm, batch)["log_prob"]
        assert torch.equal(now, first) is not is_new
    plain = Case("appo", *words[:-1]).algorithm()
    plain.params.flat.copy_(algorithm.params.flat)
    torch.testing.assert_close(now, first_rows(plain, batch)["log_prob"])
    check_algorithm("appo", f"env={env}", "network.hidden=[8]", "algo.target_period=24")


def test_rows_in_time_order_give_what_pieces_give():
    rng = np.random.default_rng(0)
    columns = [torch.from_numpy(x) for x in rng.standard_normal((6, 3, 9)).astype(np.float32)]
    reward, discount, value, next_value, _, log_ratio = columns
    discount, cut = discount.sigmoid(), torch.from_numpy(rng.random((3, 9)) < 0.3)
    cut[:, -1] = True
    steps = (reward, discount, value, next_value, cut, log_ratio)
    by_pieces = drl.losses.vtrace(*steps, 1.1, 0.9, 0.8)
    cut = cut.clone()
    cut[-1, -1] = False  # the last row counts as cut
    by_rows = returns.vtrace(*(x.flatten() for x in (*steps[:4], cut, log_ratio)), 1.1, 0.9, 0.8)
    for one, two in zip(by_pieces, by_rows, strict=True):
        torch.testing.assert_close(two, one.flatten(), rtol=1e-4, atol=1e-5)


REINFORCE = ("algo.epochs=1", "algo.normalize_advantage=false", "algo.value_coef=0.4", "algo.entropy_coef=0.02")


def monte_carlo(batch, critic, gamma):
    """Return the returns of all rows: all rewards up to the episode's end; the critic stands for missing rewards."""
    returns, rows = [], len(batch["reward"])
    for t in range(rows):
        total, factor = 0.0, 1.0
        for k in range(t, rows):
            total, factor = total + factor * batch["reward"][k], factor * gamma
            if batch["terminated"][k]:
                break
            if batch["truncated"][k] or batch["cut"][k] or k == rows - 1:
                total = total + factor * critic(batch["next_obs"][k])[0].detach()
                break
        returns.append(total)
    return torch.stack(returns)


def test_reinforce_learns_from_the_returns_of_whole_episodes():
    """The gradient is that of -(G - V) log pi for whole episodes, with G by definition."""
    case = Case("reinforce", *SMALL, *REINFORCE)
    algorithm, batch = case.algorithm(), case.batch(0, 40)
    joins = ~batch["cut"][:-1, None]
    batch["next_obs"] = torch.cat(
        [torch.where(joins, batch["obs"][1:], batch["next_obs"][:-1]), batch["next_obs"][-1:]]
    )
    actor, critic = (
        sequential(algorithm.params[name].flat.clone(), (4, 8, size), "tanh")
        for name, size in (("actor", 2), ("critic", 1))
    )
    doubled = {name: c.double() if c.dtype == torch.float32 else c for name, c in batch.items()}
    chosen = Categorical(logits=actor(doubled["obs"]))
    with torch.no_grad():  # the rows are of this policy
        batch["log_prob"] = chosen.log_prob(batch["action"]).float()
    returns, value = monte_carlo(doubled, critic, 0.99), critic(doubled["obs"])[:, 0]
    policy_loss = -((returns - value.detach()) * chosen.log_prob(batch["action"])).mean()
    (policy_loss + 0.4 * 0.5 * (value - returns).square().mean() - 0.02 * chosen.entropy().mean()).backward()
    assert algorithm.learn(dict(batch), Counts()).steps == 1
    for name, network in (("actor", actor), ("critic", critic)):
        torch.testing.assert_close(algorithm.params[name].grad.double(), gradient(network), rtol=1e-3, atol=1e-5)
