"""The names of other tools for our keys. The error for such a name suggests our key, or what to do instead."""

from collections.abc import Container, Mapping

WORDS: Mapping[str, str] = {
    "env": "environment env_id env_name gym_id game task gym",
    "algo": "algorithm agent alg method",
    "algo.lr": "learning_rate actor_lr critic_lr step_size",
    "algo.gamma": "discount discount_factor",
    "algo.tau": "polyak soft_update target_tau",
    "algo.n_step": "nstep n_steps_return multi_step",
    "algo.epochs": "n_epochs num_epochs update_epochs ppo_epochs",
    "algo.minibatch_size": "mini_batch_size sgd_minibatch_size minibatch",
    "algo.clip": "clip_range clip_coef clip_ratio clip_param",
    "algo.entropy_coef": "ent_coef entropy entropy_coeff",
    "algo.value_coef": "vf_coef value_loss_coef",
    "algo.gae_lambda": "gae lambda lam",
    "name": "run_name exp_name experiment_name",
    "tags": "tag labels",
    "notes": "note comment description",
    "total_env_steps": "total_timesteps timesteps total_steps max_steps num_steps n_timesteps steps frames",
    "stop.return": "target_return stop_return reward_threshold solved",
    "stop.wall_s": "max_time time_limit timeout wall_time",
    "network.hidden": "hidden_size hidden_sizes hidden_dim hidden_units layers net_arch units width hidden_layers",
    "network.memory": "lstm recurrent rnn gru",
    "worker.num": "num_workers n_workers workers actors num_actors nproc num_cpus",
    "worker.envs": "num_envs n_envs envs vec_envs envs_per_worker",
    "worker.random_steps": "start_steps exploration_steps",
    "orchestrator.min_inserts": "learning_starts warmup warm_up warmup_steps min_replay_size",
    "orchestrator.sample_insert_ratio": "train_freq gradient_steps utd utd_ratio replay_ratio update_every spi",
    "replay.capacity": "buffer_size replay_size memory_size buffer replay_buffer_size",
    "replay=prioritized": "per prioritized prioritized_replay",
    "trainer.batch_size": "batch train_batch_size bs",
    "trainer.threads": "num_threads n_threads torch_threads n_jobs",
    "trainer.num": "num_trainers num_learners num_gpus gpus",
    "device=cuda": "gpu cuda use_gpu use_cuda",
    "device=cpu": "cpu no_cuda",
    "precision=bf16": "amp fp16 bf16 half mixed_precision",
    "manage.eval_period": "eval_freq eval_every evaluation_interval eval_interval",
    "manage.eval_episodes": "n_eval_episodes num_eval_episodes eval_runs",
    "checkpoint.period": "save_freq checkpoint_freq save_every checkpoint_interval save_interval",
    "output_dir": "log_dir logdir save_dir out out_dir outdir output log_folder tensorboard_log results_dir",
    "load_weights": "load pretrained weights load_checkpoint load_model trained_agent init_from",
    "resume": "continue restart resume_from restore",
    "optimizer.max_norm": "max_grad_norm grad_clip gradient_clip clip_grad clip_norm",
    "optimizer.kwargs.momentum": "momentum",
    "optimizer.kwargs.betas": "betas",
    "env.max_episode_steps": "episode_length max_episode_length horizon env.time_limit env.limit",
    "env.action_repeat": "action_repeat action_repeats",
    "env.normalize_obs": "normalize norm_obs obs_normalization normalize_observations",
    "env.normalize_reward": "norm_reward reward_normalization",
    "env.kwargs": "env_kwargs env_config env_args",
    "logger.tensorboard": "tb tensorboard_logging",
    "logger.console_s": "verbose verbosity log_interval log_freq",
    "logger.wandb=offline": "wandb track use_wandb weights_and_biases",
    "logger.mlflow=offline": "mlflow",
    "ray.address": "cluster head_address redis_address",
}
"""For each of our keys, the words of other tools. If a word implies a value, the entry is `key=value`."""

NOTES: Mapping[str, str] = {
    "several seeds are a sweep: drl-train -m seed=0,1,2": "seeds n_seeds num_seeds",
    "drl-play run=RUN records a video of a run": "render video capture_video",
    "drl-eval run=RUN evaluates a run": "eval test",
    "env.action_repeat=N repeats each action; MuJoCo has env.kwargs.frame_skip=N, Atari env.kwargs.frameskip=N": (
        "repeat_action frame_skip frameskip"
    ),
    "drl-train goes on with a run by resume=RUN": "run",
    "own yaml options are named by --config-dir DIR, a whole config by --config-path and --config-name": "config",
}
"""For words of other tools for which we have no key: the advice to the user."""


def _found(word: str, table: Mapping[str, str]) -> str | None:
    """Return the answer for a word. An entry with a group, such as env.time_limit, goes before one without."""
    full = word.replace("-", "_").lower()
    names = (full, full.rpartition(".")[2])
    return next((answer for name in names for answer, words in table.items() if name in words.split()), None)


def synonym(word: str, keys: Container[str]) -> str | None:
    """Return our key, or `key=value`, for a word of another tool. The word may have a group."""
    found = _found(word, WORDS) or ""
    key = found.partition("=")[0]
    return found if key in keys or key.startswith(("optimizer.kwargs.", "env.kwargs.")) else None


def note(word: str) -> str | None:
    """Return advice for a key that only other tools have."""
    return _found(word, NOTES)
