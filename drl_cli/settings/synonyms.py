"""The names of other tools for our keys and algorithms, so that an error for such a name suggests ours.

The tables contain the argument names of the algorithms of stable-baselines3, CleanRL and RLlib.
"""

from collections.abc import Container, Mapping

WORDS: Mapping[str, str] = {
    "env": "environment env_id env_name gym_id game task gym",
    "algo": "algorithm agent alg method",
    "algo.lr": "learning_rate actor_lr critic_lr policy_lr q_lr step_size",
    "algo.gamma": "discount discount_factor",
    "algo.tau": "polyak soft_update target_tau",
    "algo.target_period": (
        "target_update_interval target_network_frequency target_network_update_freq target_update_freq "
        "target_update_period"
    ),
    "algo.n_step": "n_steps nstep n_steps_return multi_step",
    "algo.epochs": "n_epochs num_epochs update_epochs ppo_epochs num_sgd_iter",
    "algo.minibatch_size": "mini_batch_size sgd_minibatch_size minibatch",
    "algo.clip": "clip_range clip_coef clip_ratio clip_param",
    "algo.value_clip": "clip_range_vf vf_clip_param clip_vloss",
    "algo.entropy_coef": "ent_coef entropy entropy_coeff",
    "algo.initial_alpha": "ent_coef alpha",
    "algo.value_coef": "vf_coef value_loss_coef vf_loss_coeff",
    "algo.gae_lambda": "gae lambda lambda_ lam",
    "algo.normalize_advantage": "norm_adv normalize_advantages",
    "algo.kl_coef": "kl_coeff use_kl_loss",
    "algo.rho_max": "vtrace_clip_rho_threshold",
    "algo.actor_period": "policy_delay policy_frequency policy_freq actor_delay",
    "algo.noise": "exploration_noise action_noise act_noise expl_noise",
    "algo.target_noise": "policy_noise target_policy_noise smooth_target_policy",
    "algo.noise_clip": "target_noise_clip",
    "algo.critics": "n_critics num_critics",
    "algo.quantiles": "n_quantiles num_quantiles",
    "algo.dropped": "top_quantiles_to_drop_per_net top_quantiles_to_drop",
    "algo.atoms": "n_atoms num_atoms",
    "algo.double": "double_q double_dqn",
    "algo.dueling": "dueling_dqn",
    "algo.noisy": "noisy_net noisy_nets",
    "algo.loss": "td_error_loss_fn loss_fn",
    "algo.epsilon_start": "exploration_initial_eps start_e initial_epsilon eps_start epsilon",
    "algo.epsilon_end": "exploration_final_eps end_e final_epsilon eps_end epsilon_min epsilon",
    "algo.epsilon_steps": "epsilon_timesteps exploration_timesteps",
    "name": "run_name exp_name experiment_name",
    "tags": "tag labels",
    "notes": "note comment description",
    "total_env_steps": "total_timesteps timesteps total_steps max_steps num_steps n_timesteps steps frames",
    "stop.return": "target_return stop_return reward_threshold solved",
    "stop.wall_s": "max_time time_limit timeout wall_time",
    "network.hidden": (
        "hidden_size hidden_sizes hidden_dim hidden_units layers net_arch units width hidden_layers hiddens "
        "fcnet_hiddens policy_kwargs"
    ),
    "network.activation": "activation_fn fcnet_activation",
    "network.init": "ortho_init",
    "network.memory": "lstm recurrent rnn gru use_lstm",
    "network.memory_size": "lstm_cell_size lstm_hidden_size rnn_hidden_size",
    "worker.num": "num_workers n_workers workers actors num_actors nproc num_cpus num_env_runners num_rollout_workers",
    "worker.envs": "num_envs n_envs envs vec_envs envs_per_worker num_envs_per_env_runner num_envs_per_worker",
    "worker.random_steps": "start_steps exploration_steps",
    "worker.unroll": "n_steps num_steps rollout_fragment_length rollout_length unroll_length",
    "orchestrator.min_inserts": (
        "learning_starts warmup warm_up warmup_steps min_replay_size num_steps_sampled_before_learning_starts"
    ),
    "orchestrator.sample_insert_ratio": "gradient_steps utd utd_ratio replay_ratio spi",
    "replay.capacity": "buffer_size replay_size memory_size buffer replay_buffer_size",
    "algo.seq_len": "max_seq_len",
    "replay.seq_len": "max_seq_len replay_sequence_length sequence_length",
    "replay.burn_in": "burn_in_len replay_burn_in",
    "replay.alpha": "prioritized_replay_alpha per_alpha",
    "replay.beta": "prioritized_replay_beta per_beta",
    "replay.eps": "prioritized_replay_eps per_eps",
    "replay.her_k": "n_sampled_goal",
    "replay=prioritized": "per prioritized prioritized_replay",
    "replay=hindsight": "her hindsight goal_selection_strategy",
    "trainer.batch_size": "batch train_batch_size bs train_batch_size_per_learner",
    "trainer.threads": "num_threads n_threads torch_threads n_jobs",
    "trainer.num": "num_trainers num_learners num_gpus gpus",
    "trainer.compile": "torch_compile chain updates_per_graph",
    "device=cuda": "gpu cuda use_gpu use_cuda",
    "device=cpu": "cpu no_cuda",
    "precision=bf16": "amp fp16 bf16 half mixed_precision",
    "manage.eval_period": (
        "eval_freq eval_every evaluation_interval eval_interval eval.period eval.freq eval.every eval.interval"
    ),
    "manage.eval_episodes": "n_eval_episodes num_eval_episodes eval_runs evaluation_duration eval.episodes",
    "checkpoint.period": "save_freq checkpoint_freq save_every checkpoint_interval save_interval",
    "output_dir": "log_dir logdir save_dir out out_dir outdir output log_folder tensorboard_log results_dir",
    "load_weights": "load pretrained weights load_checkpoint load_model trained_agent init_from",
    "resume": "continue restart resume_from restore",
    "optimizer.max_norm": "max_grad_norm grad_clip gradient_clip clip_grad clip_norm grad_clip_norm",
    "optimizer.name": "optimizer_class opt_type",
    "optimizer=rmsprop": "use_rms_prop",
    "optimizer.schedule=linear": "anneal_lr lr_schedule lr_decay",
    "optimizer.weight_decay": "l2_reg",
    "optimizer.kwargs.momentum": "momentum",
    "optimizer.kwargs.betas": "betas",
    "optimizer.kwargs.eps": "adam_epsilon adam_eps rms_prop_eps",
    "reward.coef": "int_coef",
    "reward.gamma": "int_gamma",
    "env.max_episode_steps": "episode_length max_episode_length horizon env.time_limit env.limit",
    "env.action_repeat": "action_repeat action_repeats",
    "env.normalize_obs": "normalize norm_obs obs_normalization normalize_observations observation_filter",
    "env.normalize_reward": "norm_reward reward_normalization",
    "env.reward_clip": "clip_rewards clip_reward",
    "env.kwargs": "env_kwargs env_config env_args",
    "logger.tensorboard": "tb tensorboard_logging",
    "logger.console_s": "verbose verbosity log_interval log_freq",
    "logger.project": "wandb_project_name wandb_project",
    "logger.wandb=offline": "wandb track use_wandb weights_and_biases",
    "logger.mlflow=offline": "mlflow",
    "hpo.members": "population population_size n_members",
    "hpo.trials": "n_trials num_samples",
    "ray.address": "cluster head_address redis_address",
}
"""For each of our keys, the words of other tools. If a word implies a value, the entry is `key=value`.

A word may belong to several keys: `n_steps` of a DQN is not `n_steps` of a PPO.
"""

NOTES: Mapping[str, str] = {
    "several seeds are a sweep: drl-train -m seed=0,1,2; in a search, hpo.seeds=3": "seeds n_seeds num_seeds",
    "drl-play run=RUN records a video of a run": "render render_mode video capture_video",
    "drl-eval run=RUN evaluates a run": "eval test",
    "evaluations take the best action; drl-eval run=RUN stochastic=true samples actions": "deterministic greedy",
    "logger.recorders=[my_mod:MyRecorder] gets each report; in Python, drl_cli.train(..., on_evaluation=FUNCTION)": (
        "callback callbacks on_evaluation"
    ),
    "drl-export run=RUN writes the policy of a run; each run saves checkpoints": "save_model upload_model",
    "env.action_repeat=N repeats each action; MuJoCo has env.kwargs.frame_skip=N, Atari env.kwargs.frameskip=N": (
        "repeat_action frame_skip frameskip"
    ),
    "orchestrator.sample_insert_ratio=0.25 makes an update every 4 environment steps": (
        "train_freq train_frequency update_every update_freq"
    ),
    "algo.minibatch_size=N sets the transitions of a minibatch": "num_minibatches nminibatches",
    "algo.epsilon_steps=N sets the environment steps over which epsilon falls": (
        "exploration_fraction epsilon_decay eps_decay"
    ),
    "drl-cli computes with PyTorch": "framework",
    "algo=impala always corrects by V-trace": "vtrace",
    "drl-train goes on with a run by resume=RUN": "run runs",
    "network=mlp or network=cnn; by default the observation chooses": "policy policy_class",
    "own yaml options are named by --config-dir DIR, a whole config by --config-path and --config-name": "config",
}
"""For words of other tools for which we have no key: the advice to the user."""

ALGORITHMS: Mapping[str, str] = {
    "a2c": "a3c",
    "apex": "apexdqn",
    "c51": "categoricaldqn distributionaldqn",
    "d4pg": "apexddpg",
    "dqn": "ddqn doubledqn",
    "dqn algo.dueling=true": "duelingdqn d3qn",
    "dqn algo.noisy=true": "noisydqn",
    "dqn replay=prioritized": "per perdqn prioritizeddqn",
    "gumbel_muzero": "efficientzero alphazero",
    "iqn": "fqf",
    "mpo": "dmpo",
    "mrq": "td7 tdmpc tdmpc2 dreamer dreamerv3",
    "munchausen_dqn": "mdqn munchausen",
    "ppo": "trpo acktr npg ppg rpo ppo2 maskableppo ppocontinuousaction ppoatari",
    "ppo network=lstm": "recurrentppo ppolstm ppoatarilstm",
    "ppo reward=icm": "icm ppoicm",
    "ppo reward=rnd": "rnd ppornd",
    "qr_dqn": "qrdqn quantiledqn",
    "r2d2": "drqn recurrentdqn",
    "rainbow": "bbf spr der",
    "reinforce": "pg vpg policygradient vanillapg",
    "sac": "softactorcritic drq drqv2 saccontinuousaction",
    "sac replay=hindsight": "her",
    "sac_discrete": "sacd discretesac sacatari",
    "sqn": "sql softqlearning",
    "td3": "td3continuousaction",
    "sampled_muzero": "efficientzerov2",
    "xqc": "bro simba simbav2",
}
"""The nearest of our algorithms, with keys that belong to it, for algorithms of other tools, without `_` and `-`."""

OPTIONS: Mapping[tuple[str, str], str] = {
    ("hpo", "optuna"): "hpo=tpe",
    ("hpo", "bayes"): "hpo=gp",
    ("hpo", "population"): "hpo=pbt",
    ("replay", "per"): "replay=prioritized",
    ("reward", "curiosity"): "reward=icm",
}
"""For a group and a word that is no option of the group: what to type instead."""

ON_POLICY = ("worker.unroll", "algo.seq_len")
OFF_POLICY = (
    *("algo.n_step", "orchestrator.min_inserts", "orchestrator.sample_insert_ratio", "replay.alpha", "replay.beta"),
    *("replay.burn_in", "replay.eps", "replay.her_k", "replay.seq_len", "replay=hindsight", "replay=prioritized"),
)
"""Answers that only make sense for an algorithm that learns from rollouts, or from replay."""


def _found(word: str, table: Mapping[str, str]) -> list[str]:
    """Return the answers for a word. An entry with a group, such as env.time_limit, goes before entries without."""
    full = word.replace("-", "_").lower()
    names = (full, full.rpartition(".")[2])
    found = ([answer for answer, words in table.items() if name in words.split()] for name in names)
    return next(filter(None, found), [])


def synonyms(word: str, keys: Container[str]) -> list[str]:
    """Return each of our keys, or `key=value`, for a word of another tool. The word may have a group."""
    found = [(answer, answer.partition("=")[0]) for answer in _found(word, WORDS)]
    free = ("optimizer.kwargs.", "env.kwargs.")
    return [answer for answer, key in found if key in keys or key.startswith(free)]


def synonym(word: str, keys: Container[str]) -> str | None:
    """Return the first answer of `synonyms`, or None."""
    return next(iter(synonyms(word, keys)), None)


def absent(word: str) -> list[str]:
    """Return our keys for a word of another tool, although the algorithm of this run may not have them."""
    return [answer for answer in _found(word, WORDS) if answer.startswith("algo.")]


def in_updates(word: str) -> str | None:
    """Return what to say for a word that sets how long other tools train, in a run that counts updates, or None."""
    name = word.rpartition(".")[2]
    if name in ("epochs", "max_epochs") or "algo.epochs" in _found(word, WORDS):
        return "say total_updates=N; one epoch has (transitions in the dataset) / trainer.batch_size updates"
    return "say total_updates=N" if "total_env_steps" in _found(word, WORDS) else None


def note(word: str) -> str | None:
    """Return advice for a key that only other tools have."""
    return next(iter(_found(word, NOTES)), None)


def nearest_algorithm(name: str) -> str | None:
    """Return what to type after `algo=` for an algorithm that only other tools have, or None."""
    plain = name.lower().replace("_", "").replace("-", "")
    return next((answer for answer, names in ALGORITHMS.items() if plain in names.split()), None)
