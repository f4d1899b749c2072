"""Names of other tools: each is answered by our key, by advice, or by no hint at all, and never by a wrong hint."""

import re

import pytest

from drl_cli.algos.lookup import algorithms
from drl_cli.errors import UsageError
from drl_cli.settings.algorithm import algorithm_of, algorithms_with, config_class
from drl_cli.settings.bare_words import meant
from drl_cli.settings.conf import groups, options
from drl_cli.settings.description import keys_of
from drl_cli.settings.judge import problems_of
from drl_cli.settings.synonyms import ALGORITHMS, NOTES, WORDS, nearest_algorithm

ARGUMENTS = {
    ("sb3", "a2c"): (
        "learning_rate n_steps gamma gae_lambda ent_coef vf_coef max_grad_norm rms_prop_eps use_rms_prop use_sde "
        "sde_sample_freq rollout_buffer_class rollout_buffer_kwargs normalize_advantage stats_window_size "
        "tensorboard_log policy_kwargs verbose policy"
    ),
    ("sb3", "ppo"): (
        "learning_rate n_steps batch_size n_epochs gamma gae_lambda clip_range clip_range_vf normalize_advantage "
        "ent_coef vf_coef max_grad_norm target_kl policy_kwargs total_timesteps log_interval tb_log_name "
        "reset_num_timesteps progress_bar n_envs lstm_hidden_size"
    ),
    ("sb3", "dqn"): (
        "learning_rate buffer_size learning_starts batch_size tau gamma train_freq gradient_steps replay_buffer_class "
        "replay_buffer_kwargs optimize_memory_usage n_steps target_update_interval exploration_fraction "
        "exploration_initial_eps exploration_final_eps max_grad_norm"
    ),
    ("sb3", "sac"): (
        "learning_rate buffer_size learning_starts batch_size tau gamma train_freq gradient_steps action_noise "
        "ent_coef target_update_interval target_entropy use_sde_at_warmup n_sampled_goal goal_selection_strategy"
    ),
    ("sb3", "td3"): "action_noise policy_delay target_policy_noise target_noise_clip",
    ("sb3", "tqc"): "top_quantiles_to_drop_per_net n_quantiles n_critics ent_coef",
    ("sb3", "qr_dqn"): "n_quantiles",
    ("sb3", "crossq"): "policy_delay ent_coef",
    ("cleanrl", "ppo"): (
        "exp_name torch_deterministic cuda track wandb_project_name wandb_entity capture_video env_id total_timesteps "
        "learning_rate num_envs num_steps anneal_lr gamma gae_lambda num_minibatches update_epochs norm_adv clip_coef "
        "clip_vloss ent_coef vf_coef max_grad_norm target_kl minibatch_size num_iterations update_proportion int_coef "
        "ext_coef int_gamma num_iterations_obs_norm_init"
    ),
    ("cleanrl", "dqn"): (
        "save_model upload_model hf_entity buffer_size tau target_network_frequency batch_size start_e end_e "
        "exploration_fraction learning_starts train_frequency"
    ),
    ("cleanrl", "c51"): "n_atoms v_min v_max start_e end_e target_network_frequency",
    ("cleanrl", "ddpg"): "exploration_noise tau learning_starts",
    ("cleanrl", "td3"): "policy_noise exploration_noise policy_frequency noise_clip",
    ("cleanrl", "sac"): "policy_lr q_lr policy_frequency target_network_frequency alpha autotune",
    ("cleanrl", "pqn"): "q_lambda start_e end_e num_minibatches update_epochs num_steps",
    ("cleanrl", "rainbow"): "prioritized_replay_alpha prioritized_replay_beta prioritized_replay_eps n_atoms",
    ("rllib", "ppo"): (
        "lr_schedule train_batch_size train_batch_size_per_learner grad_clip grad_clip_by sgd_minibatch_size "
        "num_epochs num_sgd_iter use_gae lambda_ use_critic use_kl_loss kl_coeff kl_target vf_loss_coeff "
        "entropy_coeff entropy_coeff_schedule clip_param vf_clip_param shuffle_batch_per_epoch vf_share_layers "
        "num_env_runners num_rollout_workers num_envs_per_env_runner num_envs_per_worker rollout_fragment_length "
        "batch_mode num_learners num_gpus_per_learner num_cpus_per_env_runner num_gpus evaluation_interval "
        "evaluation_duration fcnet_hiddens fcnet_activation conv_filters use_lstm lstm_cell_size max_seq_len "
        "framework observation_filter horizon explore exploration_config env_config"
    ),
    ("rllib", "dqn"): (
        "target_network_update_freq replay_buffer_config epsilon adam_epsilon "
        "num_steps_sampled_before_learning_starts num_atoms noisy sigma0 dueling hiddens double_q n_step "
        "training_intensity td_error_loss_fn categorical_distribution_temperature burn_in_len initial_epsilon "
        "final_epsilon epsilon_timesteps prioritized_replay"
    ),
    ("rllib", "impala"): "vtrace vtrace_clip_rho_threshold vtrace_clip_pg_rho_threshold opt_type decay momentum",
    ("rllib", "appo"): "use_kl_loss target_network_update_freq",
    ("rllib", "sac"): "twin_q initial_alpha actor_lr critic_lr alpha_lr",
    ("rllib", "td3"): "smooth_target_policy l2_reg use_huber huber_threshold",
}
"""By tool and algorithm: argument names."""
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
    (
        "ppo",
        "policy_delay",
    ): "For that: algo.actor_period, an option of algo=cal_ql, cql, crossq, rebrac, redq, sac, td3, td3_bc, tqc, xqc",
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


@pytest.mark.parametrize(("tool", "algo"), ARGUMENTS)
def test_every_argument_name_gets_a_hint_if_there_is_a_counterpart(tool, algo):
    words, no_counterpart = ARGUMENTS[tool, algo].split(), NO_COUNTERPART.split()
    assert [word for word in words if not hint(algo, word) and word not in no_counterpart] == []
    assert [(word, text) for word in words if word in no_counterpart and (text := hint(algo, word))] == []


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
    assert meant("n-steps") == "algo.n_step"
    assert meant("num-steps") == "total_env_steps"
    assert meant("n-steps", ["algo=a2c"]) == "worker.unroll"
    assert meant("n-steps", ["algo=dqn", "seed=1"]) == "algo.n_step"
    assert meant("n-steps", ["algo=no_such"]) == "algo.n_step"
    assert meant("learning-starts", ["algo=ppo"]) is None
