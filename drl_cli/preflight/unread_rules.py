"""The only list of keys that some runs do not read: who reads them, why others do not, and what to type instead."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from drl_cli.algos.lookup import load_algorithm
from drl_cli.networks.torsos import torso_name
from drl_cli.runtime.config import Config
from drl_cli.types import EnvSpec, leaves
from drl_cli.utils.gpu import expects_gpu

ON_POLICY = ("ppo", "impala", "vmpo", "reppo", "pqn")
WORKER_KEYS = (
    *("worker.num", "worker.proxies", "worker.envs", "worker.block_rows", "worker.unroll", "worker.random_steps"),
    *("worker.fetch", "worker.exploration", "worker.max_restarts", "env.max_episode_steps"),
    "replay.shards",
)
EVALUATION_KEYS = (
    *("manage.eval_period", "manage.eval_episodes", "manage.confirm_episodes", "manage.max_episode_steps"),
    *("manage.evaluator", "manage.video_period"),
)
PACE_KEYS = (
    *("orchestrator.sample_insert_ratio", "orchestrator.sample_load_ratio", "orchestrator.min_inserts"),
    *("orchestrator.limiter", "orchestrator.band", "orchestrator.gather_window_s"),
)
EXPLORING_BY_EPSILON = ("dqn", "c51", "qr_dqn", "iqn")
WITHOUT_REWARDS = ("bc",)
"""The algorithms whose updates read no rewards."""


@dataclass(frozen=True)
class Rule:
    """`keys` are read only if `is_read(config)`; otherwise the answer is `reason`, and `say` is what to type instead.

    `reason` and `say` may contain {algo}, {mode} and {envs}. The rule holds for `algos`, by default for all. Values in
    `harmless` describe what the run does without the key.
    """

    keys: tuple[str, ...]
    is_read: Callable[[Config], bool]
    reason: str
    say: str = "leave it out"
    algos: tuple[str, ...] = ()
    harmless: tuple[Any, ...] = ()
    verdict: str = "has no effect"


@dataclass(frozen=True)
class SpecRule(Rule):
    """A rule that also depends on the environment: `is_read_in(config, spec)`."""

    is_read_in: Callable[[Config, EnvSpec], bool] = lambda config, spec: True


def _always(config: Config) -> bool:
    return True


def _algo(name: str) -> Callable[[Config], Any]:  # Any: the value of an option
    """Return a function that returns an option of the algorithm."""
    return lambda config: getattr(config.algo, name)


def _makes_one_step(config: Config) -> bool:
    """Return whether each rollout gives one gradient step, in which the policy still is the policy of the rollout."""
    algo: Any = config.algo
    is_whole = algo.minibatch_size is None or algo.minibatch_size >= config.trainer.batch_size
    is_same = config.mode != "async" if algo.name == "ppo" else getattr(algo, "target_period", 1) == 1
    return bool(algo.epochs == 1 and is_whole and is_same and config.network.memory == "none")


def _differs_in_exploration(config: Config) -> bool:
    """Return whether a ladder has several workers or environments that explore differently."""
    worker = config.worker
    is_alone = worker.num == 1 and (worker.exploration == "ladder" or worker.envs == 1)
    return not (isinstance(worker.exploration, str) and is_alone)


def _reads_minari(config: Config) -> bool:
    from drl_cli.data.find import MINARI  # most commands do not need it

    return any(source.startswith(MINARI) for source in config.data.sources)


def _has_images(config: Config, spec: EnvSpec) -> bool:
    return any(len(column.shape) > 1 for column in leaves(spec.obs).values())


def _has_vectors(config: Config, spec: EnvSpec) -> bool:
    return any(column.dtype == "float32" for column in leaves(spec.obs).values())


def _has_torso(config: Config, spec: EnvSpec) -> bool:
    return torso_name(config.network, spec) is not None


RULES: tuple[Rule, ...] = (
    Rule(
        ("total_env_steps",),
        lambda config: not config.is_offline,
        "mode=offline makes no environment steps",
        "say total_updates=N",
    ),
    Rule(
        ("total_updates",),
        lambda config: config.is_offline,
        "mode={mode} ends after its environment steps",
        "say total_env_steps=N, or mode=offline",
    ),
    Rule(
        ("data.share",),
        lambda config: config.mixes_data or not config.data.sources,
        "mode=offline learns from the dataset alone",
    ),
    Rule(
        ("data.share",),
        lambda config: bool(config.data.sources),
        "the run has no dataset",
        "leave it out, or add data=PATH",
    ),
    Rule(
        EVALUATION_KEYS,
        lambda config: config.has_env,
        "the run has no environment, and so no evaluations",
    ),
    Rule(
        ("data.download",),
        _reads_minari,
        "the run has no dataset minari:ID",
        harmless=(False,),
    ),
    Rule(
        WORKER_KEYS,
        lambda config: not config.is_offline,
        "mode=offline has no workers",
        "leave it out, or say mode=single",
    ),
    Rule(
        PACE_KEYS,
        lambda config: not config.is_offline,
        "mode=offline reads the dataset, and then makes total_updates updates",
        harmless=("ratio",),
    ),
    Rule(
        ("orchestrator.sample_insert_ratio", "trainer.updates_per_call"),
        lambda config: not config.is_on_policy,
        "{algo} is on-policy and makes its updates with each new rollout",
        "algo.epochs=N sets how often a rollout is used",
    ),
    Rule(
        ("orchestrator.min_inserts",),
        lambda config: not config.is_on_policy,
        "{algo} is on-policy and learns from its first rollout, without a warm-up",
        "trainer.batch_size=N sets the transitions of a rollout",
        harmless=(0,),
    ),
    Rule(
        ("orchestrator.band",),
        lambda config: not config.is_on_policy,
        "{algo} is on-policy, and its queue has no band",
        "replay.max_staleness=N sets how old transitions may be",
    ),
    Rule(
        ("orchestrator.limiter", "orchestrator.band", "orchestrator.sample_load_ratio", "orchestrator.gather_window_s"),
        lambda config: config.mode == "async",
        "in mode={mode} workers and trainer take turns",
        "leave it out, or say mode=async",
        harmless=("ratio",),
    ),
    Rule(
        ("worker.num",),
        lambda config: config.mode != "single" or config.resume is not None,
        "in mode=single all workers take turns in the main process",
        "say worker.envs={envs} for as many environments, or mode=sync",
        harmless=(1, "auto"),
        verdict="gains nothing",
    ),
    Rule(
        ("env.normalize_reward", "env.reward_scale", "env.reward_clip"),
        lambda config: False,
        "{algo} learns the dataset's actions, whatever their rewards",
        algos=WITHOUT_REWARDS,
        harmless=(False,),
    ),
    Rule(
        ("env.normalize_reward", "env.reward_scale", "env.reward_clip"),
        lambda config: False,
        "{algo} divides rewards by the size of the environment's own returns",
        algos=("flashsac",),
        harmless=(False,),
    ),
    Rule(
        ("worker.exploration",),
        _differs_in_exploration,
        "a ladder begins at the second worker (or environment, for env_ladder), and there is only one",
        "leave it out, or say worker.num=4 mode=sync",
    ),
    Rule(
        ("reanalyzer.ratio", "reanalyzer.windows", "reanalyzer.max_restarts"),
        lambda config: config.reanalyzer.num > 0,
        "the run has no re-analysers",
        "leave it out, or say reanalyzer.num=1 mode=async",
    ),
    Rule(
        ("replay.her_k",),
        lambda config: config.replay.changes_goals,
        "only hindsight replay changes goals",
        "leave it out, or say replay=hindsight",
    ),
    Rule(
        ("replay.seq_len", "replay.burn_in", "replay.overlap"),
        lambda config: config.replay.steps is not None,
        "a row of this replay is one transition, not a sequence",
        "leave it out, or say replay=sequences",
        harmless=(0,),
    ),
    Rule(
        ("replay.overlap",),
        lambda config: getattr(config.replay, "rows", "") != "windows",
        "windows may begin at any step and have no fixed overlap",
        "leave it out, or say replay=sequences",
        harmless=(0,),
    ),
    Rule(
        ("replay.eta",),
        lambda config: config.replay.steps is not None,
        "a row of this replay is one transition, whose priority is its own error",
        "leave it out, or say replay=sequences",
    ),
    Rule(
        ("replay.eta",),
        lambda config: False,
        "all steps of a window have one priority",
        algos=("mrq",),
    ),
    Rule(
        ("replay.age_factor",),
        lambda config: not config.is_offline,
        "recorded rows have no age",
        harmless=(1.0,),
    ),
    Rule(
        ("replay.beta",),
        lambda config: bool(load_algorithm(config.algo.name).WEIGHTS),
        "the loss of {algo} has no importance weights",
    ),
    Rule(
        ("network.memory_size",),
        lambda config: config.network.memory != "none",
        "the network has no memory",
        "leave it out, or say network=lstm",
    ),
    Rule(
        ("trainer.compile",),
        lambda config: config.network.memory == "none" or config.trainer.num > 1 or expects_gpu(config.device),
        "whole updates of a network with memory can't be compiled",
        "leave it out, or say network=mlp",
        harmless=("auto", False),
    ),
    Rule(
        ("trainer.compile",),
        lambda config: config.trainer.num == 1,
        "the loss of {algo} averages over trainers, and such a loss can't be compiled",
        "leave it out, or say trainer.num=1",
        ("td3_bc", "rebrac", "fql"),
        harmless=("auto", "replay", False),
    ),
    Rule(
        ("optimizer.end",),
        lambda config: config.optimizer.schedule != "constant",
        "the learning rate is constant",
        "leave it out, or say optimizer.schedule=linear",
    ),
    Rule(
        ("sweep.",),
        lambda config: False,  # a sweep judges its own keys, and the words of its jobs do not contain them
        "this is one run, not a sweep",
        "leave it out, or add -m and several values",
    ),
    Rule(
        ("hpo.",),
        lambda config: config.hpo.sampler != "none",
        "no search runs",
        "leave it out, or search with -m hpo=tpe",
        harmless=("none",),
    ),
    Rule(
        ("hpo.members", "hpo.rounds", "hpo.quantile", "hpo.resample"),
        lambda config: config.hpo.sampler in ("none", "pbt"),
        "only population based training reads it",
        "leave it out, or say hpo=pbt",
    ),
    Rule(
        ("hpo.trials", "hpo.seeds", "hpo.pruner", "hpo.fresh_seeds"),
        lambda config: config.hpo.sampler != "pbt",
        "population based training has no trials",
        "leave it out; hpo.members=N and hpo.rounds=N set its size",
        harmless=("none",),
    ),
    Rule(
        ("algo.ou_theta",),
        lambda config: getattr(config.algo, "noise_kind", "ou") == "ou",
        "Gaussian noise has no theta",
        "leave it out, or say algo.noise_kind=ou",
    ),
    Rule(
        ("algo.noise_clip",),
        _algo("target_noise"),
        "algo.target_noise=0 adds no noise to clip",
        "leave it out, or say algo.target_noise=0.2",
        ("td3", "mrq"),
    ),
    Rule(
        ("algo.munchausen_floor",),
        _algo("munchausen"),
        "the rewards have no Munchausen term",
        "leave it out, or add algo.munchausen=0.9 algo.soft_temperature=0.03",
        EXPLORING_BY_EPSILON,
    ),
    Rule(
        ("algo.epsilon_start", "algo.epsilon_end", "algo.epsilon_steps", "algo.epsilon_repeat"),
        lambda config: not _algo("noisy")(config),
        "noisy layers explore in place of epsilon",
        "leave it out, or say algo.noisy=false",
        EXPLORING_BY_EPSILON,
    ),
    Rule(
        ("algo.epsilon_steps",),
        lambda config: _algo("epsilon_start")(config) != _algo("epsilon_end")(config),
        "epsilon is constant: algo.epsilon_start equals algo.epsilon_end",
        "leave it out, or change algo.epsilon_end",
        EXPLORING_BY_EPSILON,
    ),
    Rule(
        ("algo.risk_level",),
        lambda config: _algo("risk")(config) != "mean",
        "algo.risk=mean has no level",
        "leave it out, or say algo.risk=cvar",
        ("c51", "qr_dqn", "iqn"),
    ),
    Rule(
        ("algo.risk",),
        lambda config: not (_algo("risk")(config) == "cvar" and _algo("risk_level")(config) == 1.0),
        "the mean of all returns (algo.risk_level=1) is what algo.risk=mean maximises",
        "leave it out, or add algo.risk_level=0.25",
        ("c51", "qr_dqn", "iqn"),
    ),
    Rule(
        ("algo.loss",),
        lambda config: False,
        "the loss of {algo} is computed from distributions, not from a TD error",
        "leave it out, or say algo=dqn",
        ("c51", "qr_dqn", "iqn"),
    ),
    Rule(
        ("algo.seq_len",),
        lambda config: config.network.memory != "none",
        "only a recurrent network learns from pieces of a rollout",
        "leave it out, or say network=lstm",
        ON_POLICY,
    ),
    Rule(
        ("algo.kl_target",),
        _algo("kl_coef"),
        "the loss has no KL penalty (algo.kl_coef=0)",
        "leave it out, or add algo.kl_coef=0.2",
        ("ppo", "impala"),
    ),
    Rule(
        ("algo.target_kl",),
        lambda config: _algo("epochs")(config) > 1,
        "there is no later epoch to leave out (algo.epochs=1)",
        "leave it out, or say algo.epochs=4",
        ("ppo", "impala"),
    ),
    Rule(
        ("algo.clip", "algo.value_clip"),
        lambda config: not _makes_one_step(config),
        "each rollout gives one gradient step, in which nothing has changed that could be clipped",
        "leave it out, or say algo.epochs=4",
        ("ppo", "impala"),
    ),
    Rule(
        ("algo.infonce_temperature",),
        _algo("infonce_weight"),
        "the loss has no InfoNCE term (algo.infonce_weight=0)",
        "leave it out, or add algo.infonce_weight=0.1",
        ("mrq",),
    ),
    SpecRule(
        ("algo.gumbel_temperature",),
        _always,
        "only discrete actions are drawn with Gumbel noise",
        algos=("mrq",),
        is_read_in=lambda config, spec: spec.action.kind == "discrete",
    ),
    SpecRule(
        ("algo.epsilon_std",),
        _always,
        "a policy over choices has no standard deviation",
        algos=("vmpo",),
        is_read_in=lambda config, spec: spec.action.kind == "box",
    ),
    SpecRule(
        ("network.channels", "network.torso_activation"),
        _always,
        "the network has no convolutions",
        is_read_in=_has_torso,
    ),
    SpecRule(
        ("replay.compress",),
        _always,
        "the observations have no images to compress",
        harmless=("none",),
        is_read_in=_has_images,
    ),
    SpecRule(
        ("env.normalize_obs",),
        _always,
        "the observations are choices, booleans or images, which are scaled to [0, 1] anyway",
        harmless=(False,),
        is_read_in=_has_vectors,
    ),
    SpecRule(
        ("env.frame_storage",),
        _always,
        "the observations have no images to stack",
        harmless=("auto",),
        is_read_in=_has_images,
    ),
)
