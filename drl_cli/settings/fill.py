"""Fill in what the user left open: for this machine or cluster, for the space of the run, and device=auto."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from drl_cli.config.config import Config
from drl_cli.config.rows import row_schema, rows_of, stackings_of, with_whole_table
from drl_cli.config.sections import WorkerConfig
from drl_cli.data.dataset import Dataset
from drl_cli.data.find import absolute
from drl_cli.errors import MISSING, RESOURCES, UsageError
from drl_cli.networks.config import TORSOS
from drl_cli.networks.torsos import torso_name
from drl_cli.replay.base import MOST_TRANSITIONS, Load
from drl_cli.replay.frame_table import frame_bytes, reference_schema
from drl_cli.settings.env_names import typed_values
from drl_cli.types import EnvSpec
from drl_cli.utils import gpu
from drl_cli.utils.gpu import Gpu
from drl_cli.utils.machine import Node, free_memory, num_cores
from drl_cli.utils.shown import tell

WIDE = 512
"""From about this number of units in a layer, a GPU is faster than a CPU. For images, it always is."""


def with_device(
    config: Config,
    spec: EnvSpec,
    nodes: Sequence[Node] = (),
    ask_nodes: Callable[[], Sequence[Gpu]] = tuple,
) -> tuple[Config, list[str]]:
    """Return the config with cpu or cuda in place of device=auto, and a line with the reason if there is a GPU.

    Raise UsageError (exit 3) if the config names a GPU that can't be used. `nodes` are the nodes of a cluster, and
    `ask_nodes` returns their GPUs.
    """
    if config.device == "cpu":
        return config, []
    is_placed = config.ray.address is not None and config.trains_apart and ":" not in config.device  # by Ray

    def check(config: Config) -> None:
        if is_placed:
            check_gpus(config, ask_nodes(), "in the cluster")
        else:
            check_gpus(config, gpu.gpus())

    if config.device != "auto":
        check(config)
        return config, []
    on_cpu, on_gpu = (dataclasses.replace(config, device=device) for device in ("cpu", "cuda"))
    if not (any(node.gpus for node in nodes) if is_placed else gpu.has_driver()):
        return on_cpu, []
    if (reason := gain(config, spec)) is None:
        return on_cpu, ["device: cpu, because the network is small; device=cuda takes the GPU"]
    try:
        check(on_gpu)
    except UsageError as error:
        tell(f"warning: device=auto takes the CPU. {error}")
        return on_cpu, []
    return on_gpu, [f"device: cuda, because of {reason}"]


def gain(config: Config, spec: EnvSpec) -> str | None:
    """Return why a GPU makes the updates of this run faster, or None if it makes them slower."""
    network = config.network
    if (torso := torso_name(network, spec)) is not None:
        return "images" if torso in TORSOS else f"the torso {torso}"
    widest = max([*network.hidden, network.memory_size if network.memory != "none" else 0], default=0)
    return f"layers of {widest} units" if widest >= WIDE else None


def check_gpus(config: Config, found: Sequence[Gpu], place: str = "here") -> None:
    """Raise UsageError (exit 3) if these GPUs are not enough for the config, or if torch can't use the first ones."""
    device, num = config.device, config.trainer.num
    index = device.partition(":")[2]
    if index and num > 1:
        raise UsageError(f"device={device} is one device; for trainer.num={num} say device=cuda")
    if not found:
        line = f"device={device}, but torch finds no CUDA device {place}; device=cpu works everywhere"
        raise UsageError(line, MISSING)
    if index and int(index) >= len(found):
        raise UsageError(f"device={device}: the CUDA devices here are cuda:0 to cuda:{len(found) - 1}", MISSING)
    if len(found) < num:
        raise UsageError(f"device={device}: trainer.num={num}, but there are {len(found)} devices", MISSING)
    needed = found[int(index) : int(index) + 1] if index else found[:num]
    if lines := [f"device={device}: torch can't use {one.name}: {one.problem}" for one in needed if one.problem]:
        raise UsageError([*lines[:-1], f"{lines[-1]}; device=cpu works everywhere"], MISSING)


THREAD_PRODUCT = 2**26
"""A trainer gets one thread per this number of multiplications, which take one core about 1.5 ms."""
WARM_UP_SHARE = 10
"""A shortened warm-up takes 1 / WARM_UP_SHARE of total_env_steps, and at least one batch."""
MAX_WORKERS = 64
"""The maximum number of workers with worker.num=auto if worker.max_num is null."""
LEAST_STEPS, LEAST_BLOCKS = 16, 50
"""The steps of an environment in a rollout, and the blocks of a worker in an off-policy run, for `useful_workers`."""
GB = 2**30
INSERTS, RANDOM = "orchestrator.min_inserts", "worker.random_steps"


def fill(config: Config, nodes: Sequence[Node] = ()) -> Config:
    """Return the config with numbers in place of null and auto, for this machine or for a cluster's nodes.

    These are the numbers of workers, proxies and threads, and the bound on the age of a queue's rows.
    """
    worker = _elastic(config, nodes) if follows_nodes(config) and nodes else _constant(config, nodes)
    config = dataclasses.replace(config, worker=worker)
    config = dataclasses.replace(config, replay=config.replay.filled(_largest_load(config)))
    if config.trainer.threads != "auto":
        return config
    return dataclasses.replace(config, trainer=dataclasses.replace(config.trainer, threads=num_threads(config)))


def follows_nodes(config: Config) -> bool:
    """Return whether this config, before `fill`, has workers that come and go with the nodes of a cluster."""
    return config.worker.num == "auto" and config.mode == "async" and config.ray.address is not None


def _constant(config: Config, nodes: Sequence[Node]) -> WorkerConfig:
    """Return the workers of a run that keeps their number. Proxies get equal numbers of workers."""
    single, proxies, num = config.is_one_process, config.worker.proxies, config.worker.num
    if proxies == "auto":
        proxies = 0 if single else len(nodes)
    if not isinstance(num, int):
        share = max(1, proxies)
        most = 1 if single else useful_workers(config, _free_cores(config, nodes))
        num = max(share, most // share * share)  # equal for proxies
    return dataclasses.replace(config.worker, num=num, proxies=proxies, max_num=None)


def _free_cores(config: Config, nodes: Sequence[Node]) -> int:
    """Return the number of cores that the trainers leave to workers."""
    return (int(sum(node.cpus for node in nodes)) if nodes else num_cores()) - config.trainer.num


def useful_workers(config: Config, free: int) -> int:
    """Return the number of workers if the user names none and `free` cores have no other work.

    With worker.num=null, more workers would learn less from the same steps: on-policy, their shares of a rollout would
    be too short for the estimates of advantages; off-policy, too many steps would be taken with an old policy.
    """
    worker = config.worker
    if worker.num == "auto":
        useful = worker.max_num or MAX_WORKERS
    elif not config.is_on_policy:
        useful = config.total_env_steps // (LEAST_BLOCKS * config.rows_per_collect)
    elif worker.unroll is None and worker.block_rows is None:
        alone = -(-config.trainer.batch_size // worker.envs)  # steps in a rollout of one worker
        useful = alone // min(LEAST_STEPS, alone)
    else:
        useful = free
    return max(1, min(free, useful))


def few_workers_line(config: Config, nodes: Sequence[Node] = ()) -> str | None:
    """Return a line if `useful_workers` leaves cores free. The config is from before `fill`."""
    free = _free_cores(config, nodes)
    if config.is_one_process or config.worker.num is not None or useful_workers(config, free) >= free:
        return None
    num = fill(config, nodes).num_workers  # with proxies, it may be larger
    why = "trainer.batch_size" if config.is_on_policy else "total_env_steps"
    return f"{num} worker{'s' * (num > 1)} on {free} free cores, as many as {why} has use for; worker.num=N has more"


def _elastic(config: Config, nodes: Sequence[Node]) -> WorkerConfig:
    """Return the workers at the start of a run whose workers come and go with the nodes."""
    most = config.worker.max_num or MAX_WORKERS
    offered = sum(node.num_workers(config.trainer.num) for node in nodes)
    return dataclasses.replace(config.worker, num=min(most, offered), proxies=len(nodes), max_num=most)


def _largest_load(config: Config) -> Load:
    """Return the load of a replay table with all workers that may join, as far as half of a queue has room for them."""
    if not (config.worker.is_elastic and config.is_on_policy):
        return config.load
    assert config.replay.capacity is not None
    most = min(config.most_workers * config.rows_per_collect, config.replay.capacity // 2)
    return config.load._replace(collected=max(config.load.collected, most))


def num_threads(config: Config) -> int:
    """Return the number of threads of a trainer: one per THREAD_PRODUCT multiplications in the largest hidden layer.

    The maximum is cores / trainers. In mode=async, the workers' cores are subtracted first.
    """
    cores = num_cores() - (config.num_workers if config.mode == "async" else 0)
    rows = config.trainer.batch_size // config.trainer.num
    largest = max((rows * inputs * outputs for inputs, outputs in pairwise(config.network.hidden)), default=0)
    return max(1, min(cores // config.trainer.num, largest // THREAD_PRODUCT))


def short_warm_up(config: Config, words: Sequence[str]) -> dict[str, int]:
    """Return new values for the keys of a new run's warm-up, or {} if the run makes updates with its own values.

    `words` are the words that the user typed. A typed value stays, and so does the warm-up of a run that is resumed,
    because the replay ratio counts from the end of the warm-up. A run with load_weights may be without updates.
    """
    typed = typed_values(words)
    is_typed = INSERTS in typed and config.orchestrator.min_inserts is not None
    if is_typed or config.is_on_policy or config.resume or config.load_weights or fill(config).num_updates > 0:
        return {}
    new = max(config.total_env_steps // WARM_UP_SHARE, config.trainer.batch_size)
    if new >= config.min_inserts:
        return {}
    random_steps = config.worker.random_steps
    is_random = random_steps is not None and random_steps > new and RANDOM not in typed
    return {INSERTS: new, **({RANDOM: new} if is_random else {})}


def with_short_warm_up(config: Config, words: Sequence[str]) -> tuple[Config, list[str]]:
    """Return the config with the values of `short_warm_up`, and a line about these values if there are any."""
    values = short_warm_up(config, words)
    if not values:
        return config, []
    before = {INSERTS: config.min_inserts, RANDOM: config.random_steps}
    changes = ", ".join(f"{key}={value} (not {before[key]})" for key, value in values.items())
    line = f"warm-up: {changes}, shortened to {measure(config)}"
    orchestrator = dataclasses.replace(config.orchestrator, min_inserts=values[INSERTS])
    worker = dataclasses.replace(config.worker, random_steps=values.get(RANDOM, config.worker.random_steps))
    return dataclasses.replace(config, orchestrator=orchestrator, worker=worker), [line]


def measure(config: Config) -> str:
    """Return how long a shortened warm-up is: a tenth of total_env_steps, or one batch if a batch has more rows."""
    is_share = config.total_env_steps // WARM_UP_SHARE >= config.trainer.batch_size
    return f"{'a tenth of' if is_share else 'one batch for'} total_env_steps={config.total_env_steps}"


def check_fits(setting: str, needed: int, free: int, advice: str) -> None:
    """Raise UsageError (exit 7) if the setting needs more bytes than are free."""
    if needed > free:
        line = f"{setting} needs {needed / GB:.1f} GiB, {free / GB:.1f} GiB of memory are free; {advice}"
        raise UsageError(line, RESOURCES)


def replay_bytes(config: Config, spec: EnvSpec) -> int:
    """Return the size of the replay table, summed over its shards [bytes]."""
    schema = row_schema(config, spec)
    shares = [config.replay.share(shard, config.num_shards) for shard in range(config.num_shards)]
    stackings = stackings_of(config, spec)
    most = config.most_inserts
    rows = sum(share.table_bytes(reference_schema(schema, stackings), most) for share in shares)
    codec = config.replay.frame_codec
    return rows if codec is None else rows + frame_bytes(stackings, min(config.replay.num_transitions, most), codec)


def with_capacity(config: Config, spec: EnvSpec) -> Config:
    """Replace `replay.capacity=null` by MOST_TRANSITIONS, halved until a full table fits in half of the free memory.

    Halving, instead of an exact fit, usually gives the same command the same capacity. `total_env_steps` has no
    influence, because a resumed run may have more steps.
    """
    if config.replay.capacity is not None:
        return config
    full = replay_bytes(dataclasses.replace(config, total_env_steps=MOST_TRANSITIONS), spec)
    halvings = max(0, math.ceil(math.log2(2 * full / max(1, free_memory()))))
    replay = dataclasses.replace(config.replay, capacity=max(1, MOST_TRANSITIONS >> halvings))
    return dataclasses.replace(config, replay=replay)


def with_table(config: Config, spec: EnvSpec, dataset: Dataset) -> Config:
    """Replace `replay.capacity=null` by the size of the dataset, or by what fits in half of the free memory.

    With workers, the table of their rows has its usual size. Raise UsageError if the whole dataset does not fit, too.
    """
    if config.mixes_data:
        needed = replay_bytes(with_whole_table(config, dataset), spec)
        check_fits(f"data={config.data.text}", needed, free_memory(), "say mode=offline, which reads it in parts")
        return with_capacity(config, spec)
    if config.replay.capacity is not None:
        return config
    needed = rows_of(config, dataset) * config.replay.row_stride
    full = dataclasses.replace(config, replay=dataclasses.replace(config.replay, capacity=needed))
    share = free_memory() / 2 / max(1, replay_bytes(full, spec))
    capacity = needed if share >= 1 else max(1, int(needed * share))
    return dataclasses.replace(config, replay=dataclasses.replace(config.replay, capacity=capacity))


def with_reference(config: Config, dataset: Dataset) -> Config:
    """Replace `data.reference=null` by the reference returns of the dataset, if there are any."""
    if config.data.reference is not None:
        return config
    return dataclasses.replace(config, data=dataclasses.replace(config.data, reference=dataset.facts.reference))


def as_saved(config: Config) -> Config:
    """Return the config as config.yaml has it. If workers come and go, a resumed run asks its own cluster for them."""
    worker = (
        dataclasses.replace(config.worker, num="auto", proxies="auto") if config.worker.is_elastic else config.worker
    )
    return with_absolute_paths(dataclasses.replace(config, worker=worker))


def with_absolute_paths(config: Config, run: Path | None = None) -> Config:
    """Make the paths of datasets absolute, as `absolute` does. Raise DatasetError if a resumed run has lost one."""
    if not config.data.sources:
        return config
    paths = tuple(absolute(source, run) for source in config.data.sources)
    source = paths[0] if isinstance(config.data.source, str) else paths
    return dataclasses.replace(config, data=dataclasses.replace(config.data, source=source))
