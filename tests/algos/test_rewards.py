import pytest
import torch
from choices import some
from learners import first_rows

from drl_cli import api as drl
from drl_cli.algos.base import Counts
from drl_cli.algos.reward_stream import RewardStream
from drl_cli.errors import UsageError
from drl_cli.preflight.algorithm import check_network
from drl_cli.testing import Case, check_algorithm
from drl_cli.testing.case import Together, equal

NAMES = ("rnd", "icm")
PROBES = "drl_cli.envs.probes"
SMALL = ("network.hidden=[8]", "reward.hidden=[8]", "reward.minibatch_size=8", "algo.minibatch_size=8")
CHOOSE = f"env={PROBES}:Choose-v0"
MORE = dict.fromkeys(("a2c", "appo", "impala"), ("algo.normalize_advantage=false",))


def case_of(reward, *more, algo="ppo", env=CHOOSE):
    return Case(algo, env, f"reward={reward}", *SMALL, *more)


def module_of(case, seed=0):
    """Return the module, which has seen one batch."""
    stream = RewardStream.build(case.context(), case.config.network, case.spec, seed)
    stream.rewards(case.batch(1))
    stream.keep()
    return stream.module


def test_options_of_the_command_line_reach_the_module():
    case = case_of("icm", "reward.coef=0.5", "reward.gamma=0.9", "reward.lr=0.01", "reward.features=3")
    module = module_of(case)
    assert (module.coef, module.gamma, module.lr, module.minibatch_size) == (0.5, 0.9, 0.01, 8)
    assert module.encoder[-1].out_features == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reward", "env"), [("rnd", "Reach"), ("icm", "Choose"), *some([("icm", "Reach"), ("icm", "Switches")])]
)
def test_ppo_keeps_the_contract_with_every_kind_of_action(reward, env):
    check_algorithm("ppo", f"env={PROBES}:{env}-v0", f"reward={reward}", *SMALL, "algo.epochs=1")


@pytest.mark.parametrize("reward", NAMES)
def test_images_have_features_of_a_torso(reward):
    case = case_of(reward, env=f"env={PROBES}:Patch-v0")
    first, other = case.algorithm(0), case.algorithm(1)
    updates = case.learn(first, 0, 2)
    assert float(updates[-1].metrics["reward_loss"]) > 0
    assert first.stream.module.seen.size > 8
    other.load_state(first.state())
    assert torch.equal(first.stream.rewards(case.batch(9)), other.stream.rewards(case.batch(9)))


@pytest.mark.parametrize(("reward", "algo"), [("rnd", "a2c"), ("icm", "appo"), ("rnd", "impala"), ("icm", "vmpo")])
def test_every_algorithm_with_rollouts_learns_from_the_bonus(reward, algo):
    with_bonus, without = (
        case_of(reward, f"reward.coef={coef}", *MORE.get(algo, ()), algo=algo) for coef in (1.0, 0.0)
    )
    first, second = with_bonus.algorithm(), without.algorithm()
    updates = with_bonus.learn(first, 0, 2)
    without.learn(second, 0, 2)
    assert "reward_loss" in updates[-1].metrics
    assert not torch.equal(first.params["actor"].flat, second.params["actor"].flat)


@pytest.mark.parametrize(
    ("reward", "trained"), [("rnd", {"predictor"}), ("icm", {"encoder", "inverse_model", "forward_model"})]
)
def test_the_target_and_the_torso_are_never_trained(reward, trained):
    case = case_of(reward, env=f"env={PROBES}:Patch-v0")
    algorithm = case.algorithm()
    before = {name: value.clone() for name, value in algorithm.stream.module.named_parameters()}
    case.learn(algorithm, 0, 3)
    after = dict(algorithm.stream.module.named_parameters())
    assert {name.split(".")[0] for name in after if not torch.equal(after[name], before[name])} == trained
    assert any(name.startswith("seen.torso") for name in after)


def test_the_bonus_is_of_next_obs():
    case = case_of("rnd")
    module, batch = module_of(case), case.batch(2)
    same = {**batch, "next_obs": case.batch(3)["next_obs"]}
    assert torch.equal(module.bonus(batch), module.bonus({**batch, "obs": batch["next_obs"]}))
    assert not torch.equal(module.bonus(batch), module.bonus(same))


def test_icm_weights_the_losses_of_both_models():
    """With features f, g and the one-hot action a: 0.2 |model(f, a) - g|^2 / 2 - 0.8 log inverse(f, g)[a]."""
    case = case_of("icm")
    module, batch = module_of(case), case.batch(2)
    now, then = (module.encoder(module.seen(batch[name])) for name in ("obs", "next_obs"))
    action = torch.eye(case.spec.action.size)[batch["action"]]
    forward = 0.5 * (module.forward_model(torch.cat([now, action], 1)) - then).square().sum(1)
    inverse = -module.inverse_model(torch.cat([now, then], 1)).log_softmax(1)[
        torch.arange(len(action)), batch["action"]
    ]
    torch.testing.assert_close(module.loss(batch), 0.2 * forward + 0.8 * inverse)
    torch.testing.assert_close(module.bonus(batch), forward)


def test_the_forward_loss_does_not_reach_the_features():
    case = case_of("icm", "reward.forward_share=1.0")
    module = module_of(case)
    module.loss(case.batch(2)).sum().backward()
    norms = {
        part: sum(float(p.grad.norm()) for p in getattr(module, part).parameters())
        for part in ("encoder", "forward_model")
    }
    assert norms["encoder"] == 0
    assert norms["forward_model"] > 0


def test_the_inverse_model_of_box_actions_predicts_the_action_that_was_made():
    case = case_of("icm", env=f"env={PROBES}:Reach-v0")
    module, batch = module_of(case), dict(case.batch(2))
    batch["action"] = torch.full_like(batch["action"], 7.0)  # the environment gets 1
    now, then = (module.encoder(module.seen(batch[name])) for name in ("obs", "next_obs"))
    expected = 0.5 * (module.inverse_model(torch.cat([now, then], 1)) - 1.0).square().sum(1)
    torch.testing.assert_close(module.inverse_loss(batch, now, then), expected)


def test_features_are_normalised_over_the_whole_run_and_clipped():
    case = case_of("rnd", env=f"env={PROBES}:Reach-v0")
    stream = RewardStream.build(case.context(), case.config.network, case.spec, 0)
    seen, column = stream.module.seen, []
    for i, scale in enumerate((1.0, 10.0, 100.0)):
        column.append(1e4 + scale * torch.randn(64, 1, generator=torch.Generator().manual_seed(i)))
        seen.observe(column[-1], stream.context.group)
        seen.keep()
    every = torch.cat(column).double()
    expected = (column[1] - every.mean()) / every.std(correction=0)
    torch.testing.assert_close(seen(column[1]), expected.float(), rtol=1e-4, atol=1e-4)
    assert seen(torch.tensor([[1e6], [-1e6]])).flatten().tolist() == [5.0, -5.0]


def test_a_constant_feature_is_zero():
    case = case_of("rnd", env=f"env={PROBES}:Reach-v0")
    stream = RewardStream.build(case.context(), case.config.network, case.spec, 0)
    seen, constant = stream.module.seen, torch.full((7, 1), 0.1)
    for _ in range(3):
        seen.observe(constant, stream.context.group)
        seen.keep()
    assert seen(constant).abs().max() < 1e-6


def test_a_skipped_update_changes_no_statistics():
    case = case_of("rnd", "algo.epochs=1")
    algorithm, batch = case.algorithm(context=case.context(skips=True)), case.batch(5)
    case.learn(algorithm, 0, 1)
    before, batch["reward"][3] = algorithm.state(), torch.inf
    assert algorithm.learn(batch, Counts()).steps == 0
    after = {name: before[name] if name.startswith("generator") else x for name, x in algorithm.state().items()}
    assert equal(before, after)


@pytest.mark.parametrize("reward", NAMES)
def test_two_trainers_have_the_same_statistics_as_one(reward):
    case, groups = case_of(reward), Together.pair()
    batch, streams = case.batch(1, 32), []
    alone = RewardStream.build(case.context(), case.config.network, case.spec, 0)
    expected = alone.rewards(batch)
    alone.keep()
    streams = [RewardStream.build(case.context(group), case.config.network, case.spec, 0) for group in groups]
    halves = {}

    def learn(rank):
        halves[rank] = streams[rank].rewards(
            {name: column[16 * rank : 16 * rank + 16] for name, column in batch.items()}
        )
        streams[rank].keep()

    groups[0].run(learn)
    torch.testing.assert_close(torch.cat([halves[0], halves[1]]), expected, rtol=1e-4, atol=1e-5)
    for stream in streams:
        torch.testing.assert_close(stream.module.seen.sums, alone.module.seen.sums)


def test_the_stream_of_impala_has_vtrace_advantages_that_pass_the_ends_of_episodes():
    """With reward.gamma=0 every advantage is rho * (bonus - value), at the ends of episodes, too."""
    case = case_of("rnd", "reward.gamma=0", "algo.normalize_advantage=false", algo="impala")
    algorithm, batch = case.algorithm(), dict(case.batch(1))
    batch["log_prob"] = batch["log_prob"] + 1.0  # the acting policy was more certain: rho is below 1

    nets = algorithm.nets
    bonus = first_rows(algorithm, batch)["advantage"]
    algorithm.stream.module.coef = 0.0
    bonus = bonus - first_rows(algorithm, batch)["advantage"]
    with torch.no_grad():
        rewards, features = algorithm.stream.rewards(batch), nets.encoder(batch["obs"])
        value = nets.reward_critic(features)[:, 0]
        log_prob = drl.Categorical(nets.actor(features)).log_prob(batch["action"])
    rho = (log_prob - batch["log_prob"]).exp().clamp_max(1.0)
    assert (rho < 1).any()
    torch.testing.assert_close(bonus, rho * (rewards - value), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("reward.coef=2",), "reward.coef: reward=none has no such option; say reward=rnd or reward=icm"),
        (("reward=rnd", "reward.forward_share=0.1"), "reward.forward_share: reward=rnd has no such option"),
        (("reward=torch.nn:Linear", "reward.features=2"), "reward.features: reward=torch.nn:Linear has no such option"),
    ],
)
def test_an_option_without_effect_is_an_error(words, line):
    case = Case("ppo", CHOOSE, *words)
    with pytest.raises(UsageError, match=line):
        check_network(case.config, case.spec)


def test_an_episode_that_ends_does_not_end_the_stream():
    case = case_of("rnd", "reward.gamma=0.9")
    stream = RewardStream.build(case.context(), case.config.network, case.spec, 0)
    batch = case.batch(1)
    assert batch["terminated"].any()
    assert stream.batch(batch, batch["reward"])["discount"].tolist() == pytest.approx([0.9] * 16)
