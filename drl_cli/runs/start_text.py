"""The lines about the network, the rollouts and the dataset that a run prints at its start."""

from drl_cli.algos.function_policy import FunctionPolicy
from drl_cli.algos.lookup import algorithms, is_for_data, load_algorithm, module_path, title
from drl_cli.config.config import Config
from drl_cli.config.rows import has_step_states, most_open_steps
from drl_cli.data.dataset import Dataset
from drl_cli.networks.torsos import describe, torso_name
from drl_cli.optim.products import has_bf16
from drl_cli.settings.build import as_typed
from drl_cli.settings.fill import GB, replay_bytes
from drl_cli.types import EnvSpec
from drl_cli.utils.machine import free_memory
from drl_cli.utils.shown import score_text

WORKER_BYTES = 60 * 2**20
"""Minimum memory [bytes] of a worker's process."""


def start_text(config: Config, spec: EnvSpec, dataset: Dataset | None) -> list[str]:
    """Return the lines about what the run learns with and from."""
    lines = [f"network: {network_text(config, spec)}", *reward_text(config), *precision_text(config, spec)]
    lines += [*rollout_text(config), *waiting_text(config, spec), *train_ratio_text(config)]
    return [*lines, *(data_text(config, dataset) if dataset else ())]


def uses_network_group(config: Config) -> bool:
    """Return whether the algorithm builds its networks from the group `network`. A user's algorithm need not do so."""
    policy = load_algorithm(config.algo.name).Policy
    return config.algo.name in algorithms() and issubclass(policy, FunctionPolicy)


def network_text(config: Config, spec: EnvSpec) -> str:
    """Return a line that describes the network: its layers in order, and the torso that `auto` chooses."""
    if not uses_network_group(config):
        return f"{title(config.algo_name)}'s own"
    chosen = f"auto is {torso_name(config.network, spec) or 'mlp'}: " if config.network.torso == "auto" else ""
    return chosen + describe(config.network, spec)


def reward_text(config: Config) -> list[str]:
    """Return a line that names the reward module and the options that are set, otherwise []."""
    if config.reward.name == "none":
        return []
    options = [f"{key} {as_typed(value)}" for key, value in vars(config.reward).items() if value is not None]
    return [f"reward module: {config.reward.name}, {', '.join(options[1:]) or 'with its own options'}"]


def precision_text(config: Config, spec: EnvSpec) -> list[str]:
    """Return a hint if `precision=bf16` makes the updates of this run faster on this CPU, otherwise []."""
    if config.precision == "bf16" or config.device != "cpu" or config.ray.address or not has_bf16():
        return []
    if not uses_network_group(config) or torso_name(config.network, spec) is None:
        return []
    return ["this processor computes convolutions in bfloat16: precision=bf16 gives about 1.4 times as many updates/s"]


def waiting_text(config: Config, spec: EnvSpec) -> list[str]:
    """Return a warning if a run may end before the first episode of an environment, for whose end its rows wait."""
    if not most_open_steps(config):
        return []
    longest = min(spec.time_limit or most_open_steps(config), most_open_steps(config))
    num = config.num_workers * config.worker.envs
    if (steps := config.total_env_steps // num) >= longest:
        return []
    return [
        f"warning: rows of {title(config.algo_name)} reach replay when their episode ends, and an episode of {spec.id} "
        f"may have {longest:,} steps; each of {num} environments takes {steps:,} steps, so there may be no update; "
        f"say total_env_steps={num * longest + config.min_inserts}, or a smaller worker.envs or worker.num"
    ]


def train_ratio_text(config: Config) -> list[str]:
    """Return a line with the train ratio of a world model, as papers call the replayed steps per environment step."""
    ratio, steps = config.orchestrator.sample_insert_ratio, config.replay.steps
    if not has_step_states(config) or config.is_offline or steps is None or not isinstance(ratio, float):
        return []
    rows = config.trainer.batch_size
    return [
        f"train ratio: {ratio * rows * steps.seq_len:g} replayed steps per environment step = "
        f"orchestrator.sample_insert_ratio {ratio:g} x trainer.batch_size {rows} x replay.seq_len {steps.seq_len}"
    ]


def rollout_text(config: Config) -> list[str]:
    """Return a line with the unroll length and the size of a batch if the algorithm is on-policy, otherwise [].

    A second line warns if the replay table makes some workers always wait.
    """
    if not config.is_on_policy:
        return []
    envs, steps = config.num_workers * config.worker.envs, config.rows_per_collect // config.worker.envs
    batch = f"a batch has {config.trainer.batch_size:,} transitions"
    text = f"rollouts: blocks of {steps} steps in each of {envs} environments; {batch} (worker.unroll sets the steps)"
    is_limited = config.orchestrator.limiter != "none" and not config.worker.num_proxies
    return [text, *(config.replay.filled(config.load).notes(config.load) if is_limited else ())]


def data_text(config: Config, dataset: Dataset) -> list[str]:
    """Return lines about the dataset, for the start of the run."""
    from drl_cli.config.rows import rows_of  # slow: imports gymnasium

    facts, returns = dataset.facts, dataset.facts.whole_returns
    figures = (
        f", return {score_text(returns.mean())} [{score_text(returns.min())}, {score_text(returns.max())}]"
        if len(returns)
        else ""
    )
    part = f"; {config.data.share:.0%} of every batch" if config.mixes_data else ""
    lines = [
        f"data: {facts.source}: {facts.steps:,} steps in {facts.episodes:,} episodes "
        f"({facts.terminations:,} terminated){figures}{part}"
    ]
    if config.is_offline and (rows := rows_of(config, dataset)) > config.replay.num_rows:
        share = f"{config.replay.num_rows / rows:.0%} of the dataset"
        lines.append(f"replay.capacity={config.replay.num_transitions}: replay holds {share}, which is read repeatedly")
    return lines


def data_advice(config: Config) -> list[str]:
    """Return a warning if the algorithm and the presence of a dataset do not fit each other.

    An algorithm for datasets needs a dataset or the weights of another run. In mode=offline, other algorithms of this
    package overestimate actions that the dataset does not have (Fujimoto et al. 2019, arXiv 1812.02900).
    """
    name, path = title(config.algo_name), module_path(config.algo.name)
    if is_for_data(config.algo.name) and not config.data.sources and not config.load_weights:
        return [f"warning: {name} is made for datasets, and this run has none; data=PATH or load_weights=RUN gives one"]
    if config.is_offline and path.startswith("drl_cli.") and not is_for_data(config.algo.name):
        advice = "algo=auto takes one that does; see docs/learning-from-data.md"
        return [f"warning: {name} does not keep its actions near those of the dataset and often fails here; {advice}"]
    return []


def memory_text(config: Config, spec: EnvSpec) -> str:
    """Return a line with the memory that a full replay table and the other parts of the run need at least."""
    parts = {"replay": replay_bytes(config, spec)}
    if not config.is_one_process and not config.debug.in_process:
        parts["workers"] = config.num_workers * WORKER_BYTES
        parts["object store"] = (config.ray.object_store_mb or 0) * 2**20
    text = ", ".join(f"{name} {size / GB:.2f} GiB" for name, size in parts.items() if size)
    return f"memory: at least {text}; {free_memory() / GB:.1f} GiB are free"
