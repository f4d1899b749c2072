import numpy as np
import pytest
import torch
from continuous import config_of, make, make_batch, policy_of

from drl_cli.algos.base import Counts
from drl_cli.algos.off_policy import flashsac
from drl_cli.algos.off_policy.flashsac import ReturnScale
from drl_cli.types import PreviousStep


def batch_of(factor=1.0, **changes):
    batch = make_batch(is_weighted=False)
    batch["past_return"] = 3.0 * torch.randn(32, generator=torch.Generator().manual_seed(1))
    return batch | {name: factor * batch[name] for name in ("reward", "past_return")} | changes


def parameters(algorithm):
    return torch.cat([algorithm.params[name].flat for name in ("actor", "critic", "log_alpha")])


def updated(num, *batches, **options):
    algorithm = make(flashsac, **options)
    found = [algorithm.update(batches[i % len(batches)], Counts(i, i)) for i in range(num)]
    return algorithm, found[-1]


def test_all_weights_have_norm_1_and_all_norms_that_of_ones():
    algorithm, _ = updated(4, batch_of())
    algorithm.params.modules["actor"].net.norms[1].bias.data.fill_(0.5)
    algorithm.update(batch_of(), Counts(4, 4))
    for name in ("actor", "critic"):
        net = algorithm.params.modules[name].net
        for weight in net.weights:
            torch.testing.assert_close(weight.norm(dim=1), torch.ones_like(weight[:, 0]))
        for norm in net.norms:
            size = norm.gain.shape[-1]
            assert (norm.gain != 1.0).any()
            both = torch.cat([norm.gain, norm.bias], -1).norm(dim=-1)
            torch.testing.assert_close(both, torch.full_like(both, size**0.5))


def test_rewards_of_another_unit_give_the_same_update():
    one, other = (parameters(updated(6, batch_of(factor))[0]) for factor in (1.0, 1024.0))
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert not torch.equal(one, parameters(make(flashsac)))


def test_the_scale_is_the_deviation_of_returns_or_a_share_of_the_largest():
    scale, rng = ReturnScale(5.0), np.random.default_rng(0)
    assert scale(torch.zeros(8)) == 1.0
    scale = ReturnScale(5.0)
    batches = [rng.normal(40.0, 2.0, 64).astype(np.float32) for _ in range(3)]
    for batch in batches:
        found = scale(torch.from_numpy(batch))
    assert found == pytest.approx(np.abs(batches).max() / 5, rel=1e-5)  # the deviation is only 2
    scale = ReturnScale(5.0)
    for batch in batches:
        found = scale(torch.from_numpy(batch - 40.0))
    assert found == pytest.approx(np.std(np.stack(batches)), rel=1e-3)


@pytest.mark.slow
def test_the_value_of_a_last_step_is_its_reward():
    ends = {
        "discount": torch.zeros(32),
        "terminated": torch.ones(32, dtype=torch.bool),
        "reward": torch.full((32,), 3.0),
    }
    _, update = updated(200, batch_of(**ends), lr=3e-3)
    assert update.metrics["reward_scale"] != pytest.approx(1.0, rel=0.2)
    assert update.metrics["q_mean"] == pytest.approx(3.0, rel=0.08)


def test_the_temperature_aims_at_the_entropy_of_the_target_deviation():
    algorithm = make(flashsac, target_std=0.2)
    expected = torch.distributions.Normal(0.0, 0.2).entropy() * algorithm.spec.action.size
    assert algorithm.target_entropy == pytest.approx(float(expected))
    update = algorithm.update(batch_of(), Counts())
    missing = update.metrics["entropy"] - algorithm.target_entropy
    torch.testing.assert_close(algorithm.params["log_alpha"].grad[0], missing, rtol=1e-4, atol=1e-5)
    for norm in algorithm.params.modules["actor"].net.norms:
        assert norm.batches == 1, "only the loss of the actor has the statistics of the batch"


def stepped(policy, num, begins, rows=40):
    """Return the noise and the past returns of `num` steps. Step t has the reward t; episodes begin at `begins`."""
    obs, noises, returns = np.zeros((rows, 5), np.float32), [], []
    for t in range(num):
        last = PreviousStep(np.zeros((rows, 3), np.float32), np.full(rows, t, np.float32), np.full(rows, t in begins))
        columns = policy.act(obs, last)
        noises.append(policy.noise.copy())
        returns.append(columns["past_return"].copy())
    return np.stack(noises), np.stack(returns)


def test_noise_is_repeated_and_new_in_a_new_episode():
    noises, _ = stepped(policy_of(flashsac), 200, begins=(0, 100), rows=200)
    is_new = (noises[1:] != noises[:-1]).any(-1)  # [199, 200]
    assert is_new[99].all(), "an episode begins"
    means = 1.0 / is_new[:90].mean()
    lengths = np.arange(1, 17)
    assert means == pytest.approx((flashsac.LENGTHS * lengths).sum(), rel=0.1)
    assert flashsac.LENGTHS[3] / flashsac.LENGTHS[0] == pytest.approx(1 / 16)
    longest = max(len(run) for column in is_new.T for run in "".join(map(str, column.astype(int))).split("1"))
    assert longest == 15, "16 steps have 15 repetitions"


def test_the_past_return_is_discounted_to_the_present():
    _, returns = stepped(policy_of(flashsac, gamma=0.5), 6, begins=(0, 4))
    expected = [0.0, 1.0, 0.5 + 2, 0.25 + 1 + 3, 0.0, 5.0]
    np.testing.assert_allclose(returns[:, 0], expected)


def test_a_resumed_policy_goes_on_bit_for_bit():
    policy, other = policy_of(flashsac), policy_of(flashsac)
    stepped(policy, 5, begins=(0,))
    other.load_state(policy.state())
    for one, two in zip(stepped(policy, 9, begins=()), stepped(other, 9, begins=()), strict=True):
        np.testing.assert_array_equal(one, two)


def test_options_without_a_meaning_are_refused():
    from continuous import NETWORK, SPEC

    from drl_cli.errors import Refused

    for changes in ({"hidden": (8, 16)}, {"layer_norm": True}, {"dropout": 0.1}, {"memory": "lstm"}):
        network = type(NETWORK)(**{**vars(NETWORK), **changes})
        with pytest.raises(Refused):
            flashsac.Policy.check(config_of(flashsac), network, SPEC)
