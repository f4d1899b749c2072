"""Names of other tools: each is answered by our key, by advice, or by no hint at all, and never by a wrong hint."""

import re

import pytest

from drl_cli.algos.lookup import algorithms
from drl_cli.errors import UsageError
from drl_cli.settings.algorithm import algorithm_of, algorithms_with, config_class
from drl_cli.settings.build import keys_of, problems_of
from drl_cli.settings.command_line import meant
from drl_cli.settings.conf import groups, options
from drl_cli.utils.spelling import nearest_algorithm, tables

WORDS, NOTES, ALGORITHMS = (tables()[name] for name in ("keys", "notes", "algorithms"))

NO_COUNTERPART = (
    "use_sde use_sde_at_warmup sde_sample_freq rollout_buffer_class rollout_buffer_kwargs stats_window_size "
    "tb_log_name reset_num_timesteps progress_bar replay_buffer_class replay_buffer_kwargs optimize_memory_usage "
    "torch_deterministic wandb_entity num_iterations update_proportion ext_coef num_iterations_obs_norm_init "
    "hf_entity autotune grad_clip_by use_gae use_critic entropy_coeff_schedule shuffle_batch_per_epoch "
    "vf_share_layers batch_mode num_gpus_per_learner num_cpus_per_env_runner conv_filters explore "
    "exploration_config replay_buffer_config sigma0 training_intensity categorical_distribution_temperature "
    "vtrace_clip_pg_rho_threshold decay twin_q use_huber huber_threshold"
)
HINTS = {
    ("ppo", "n_steps"): "Did you mean worker.unroll?",
    ("dqn", "n_steps"): "Did you mean algo.n_step?",
    ("ppo", "num_steps"): "Did you mean worker.unroll, total_env_steps?",
    ("dqn", "num_steps"): "Did you mean total_env_steps?",
    ("ppo", "ent_coef"): "Did you mean algo.entropy_coef?",
    ("sac", "ent_coef"): "Did you mean algo.initial_alpha?",
    ("ppo", "max_seq_len"): "Did you mean algo.seq_len?",
    ("dqn", "max_seq_len"): "Did you mean replay.seq_len?",
    ("dqn", "epsilon"): "Did you mean algo.epsilon_start, algo.epsilon_end?",
    ("td3", "policy_delay"): "Did you mean algo.actor_period?",
    ("ppo", "policy_delay"): "For that: algo.actor_period, an option of algo="
    "cal_ql, cql, crossq, flashsac, rebrac, redq, sac, sac_discrete, td3, td3_bc, tqc, xqc",
    ("tqc", "top_quantiles_to_drop_per_net"): "Did you mean algo.dropped?",
    ("sac", "top_quantiles_to_drop_per_net"): "For that: algo.dropped, an option of algo=tqc",
    ("dqn", "epochs"): "It is an option of algo=impala, ppo, pqn, reppo, vmpo",
    ("dqn", "train_freq"): "For that: orchestrator.sample_insert_ratio=0.25 makes an update every 4 environment steps",
    ("ppo", "learning_starts"): "",
    ("dqn", "framework"): "For that: drl-cli computes with PyTorch",
    ("dqn", "optimize_memory_usage"): "",
    ("dqn", "chain"): "Did you mean trainer.compile?",
}


def hint(algo, word):
    """What the error says after the fact that the key does not exist."""
    (line,) = problems_of(word, "1", config_class(algorithm_of(algo)), algo)
    return re.sub(r".*?(at the top level|has no option '\w+')\.", "", line).strip()


@pytest.mark.parametrize(("algo", "word"), HINTS)
@pytest.mark.parametrize("group", ["", "algo."])
def test_the_hint_depends_on_the_algorithm(algo, word, group):
    assert hint(algo, group + word) == HINTS[algo, word]


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["sac", "dqn", "ppo"])
def test_a_word_without_a_counterpart_gets_no_hint(algo):
    assert [(word, text) for word in NO_COUNTERPART.split() if (text := hint(algo, word))] == []


@pytest.mark.slow
def test_every_word_gets_its_answer_from_an_algorithm_that_has_the_key():
    for answer, words in WORDS.items():
        named = [name for name in algorithms() if answer.partition("=")[0] in keys_of(config_class(name))]
        for word in words.split():
            assert any(answer in hint(name, word) for name in named or ["sac"]), word


def test_every_answer_is_a_key_of_ours_and_no_word_is_one():
    keys = {key for algo in algorithms() for key in keys_of(config_class(algo))} | {*groups()}
    for answer, words in WORDS.items():
        key, _, value = answer.partition("=")
        assert key in keys or key.startswith("optimizer.kwargs."), answer
        for algo in algorithms() if value and "." in key and key in keys else ():
            assert problems_of(key, value, config_class(algo)) == []
        assert not value or "." in key or value in options(key) or key in ("device", "precision"), answer
        assert len({*words.split()}) == len(words.split()), answer
        assert not {*words.split()} & keys
    assert not {word for words in NOTES.values() for word in words.split()} & keys


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("trpo", "The nearest here is algo=ppo."),
        ("A3C", "The nearest here is algo=a2c."),
        ("recurrent_ppo", "The nearest here is algo=ppo network=lstm."),
        ("QRDQN", "The nearest here is algo=qr_dqn."),
        ("ddqnn", "Did you mean 'dqn'?"),
        ("qmix", "unknown algorithm 'qmix'.   available"),
    ],
)
def test_the_nearest_algorithm_for_one_of_another_tool(name, says):
    with pytest.raises(UsageError, match=re.escape(says)):
        config_class(name)


def test_each_nearest_algorithm_exists_and_takes_its_keys():
    assert nearest_algorithm("ppo-rnd") == "ppo reward=rnd"
    for answer, names in ALGORITHMS.items():
        algo, *keys = answer.split()
        assert algo in options("algo")
        assert not {*names.split()} & {*options("algo")}
        for key in keys:
            name, _, value = key.partition("=")
            assert name in groups() or value == "true"
            assert value in options(name) if name in groups() else not problems_of(name, True, config_class(algo))


def test_algorithms_with_an_option_are_found_without_their_import():
    for option in ("epochs", "actor_period", "n_step", "no_such_option"):
        named = [name for name in algorithms() if f"algo.{option}" in keys_of(config_class(name))]
        assert {*algorithms_with(option)} <= {*named}
        assert bool(algorithms_with(option)) == bool(named)


def test_a_flag_of_another_tool_means_our_key():
    assert (meant("n-steps"), meant("num-steps")) == ("algo.n_step", "total_env_steps")
    assert meant("n-steps", ["algo=a2c"]) == "worker.unroll"
    assert meant("n-steps", ["algo=dqn", "seed=1"]) == "algo.n_step"
    assert meant("n-steps", ["algo=no_such"]) == "algo.n_step"
    assert meant("learning-starts", ["algo=ppo"]) is None
