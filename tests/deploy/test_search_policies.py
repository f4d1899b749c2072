import numpy as np
import pytest
from policies import make_policy, observations

from drl_cli.deploy import standalone
from drl_cli.deploy.export import export
from drl_cli.deploy.trained import with_simulations
from drl_cli.errors import UsageError
from drl_cli.runtime.roles.normalization import make_policy as plain_policy
from drl_cli.testing import Case

ENVS = {"gumbel_muzero": "CartPole-v1", "muzero": "CartPole-v1", "sampled_muzero": "Pendulum-v1"}
FEW = ("network.hidden=[16,16]", "algo.simulations=4")


@pytest.mark.parametrize("algo", ENVS)
def test_the_number_of_simulations_may_change_and_0_plays_the_prior(algo, tmp_path):
    trained = make_policy(tmp_path, f"env={ENVS[algo]}", f"algo={algo}", *FEW)
    params = Case(algo, f"env={ENVS[algo]}", *FEW).algorithm().policy_params()
    size, actions = (200, *trained.spec.obs.shape), {}
    obs = np.random.default_rng(0).standard_normal(size, np.float32)
    for simulations in (None, 4, 0, 30):
        policy = plain_policy(with_simulations(trained.config, simulations), trained.spec, 0)
        policy.load(params)
        actions[simulations] = policy.greedy(obs)
    policy.searches = False
    np.testing.assert_allclose(actions[0], policy.greedy(obs), rtol=1e-6)
    assert np.array_equal(actions[None], actions[4])
    assert not np.array_equal(actions[4], actions[0])
    assert not np.array_equal(actions[4], actions[30])


def test_an_algorithm_without_a_search_takes_no_simulations(tmp_path):
    config = make_policy(tmp_path, "env=CartPole-v1", "algo=dqn").config
    assert with_simulations(config, None) is config
    with pytest.raises(UsageError, match=r"^simulations=0: DQN does not search; leave it out$"):
        with_simulations(config, 0)


@pytest.mark.slow
@pytest.mark.parametrize("algo", ENVS)
def test_the_prior_is_exported(algo, tmp_path):
    trained = make_policy(tmp_path, f"env={ENVS[algo]}", f"algo={algo}", *FEW)
    folder, parity = export(trained, "torch", 3)
    assert parity.largest_difference <= 1e-5
    obs, _ = observations(trained, 30)
    assert len(np.unique(standalone.Policy(folder)(obs))) > 1 or algo != "sampled_muzero"
