"""The search for keys without effect: type every key with other values, and compare what the run learns and exchanges.

`typed_without_effect` needs no list of keys: the keys and their values come from the config classes.
"""

import hashlib
import io
import shutil
import tempfile
import time
from pathlib import Path

from composing import compose_plain
from graphs import TINY, make_config

from drl_cli.settings.build import as_typed, keys_of, to_yaml_keys
from drl_cli.settings.value_types import Choice, Group, MappingOf, OneOf, Scalar
from drl_cli.types import flatten

IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where the folders of runs are: in memory, because a checkpoint waits for the disk."""

NUMBERS = (0.05, 3, 200, 0.3, 1, 2, 0.9, 8, -1.0, 0)
"""Values that are tried for a number, after multiples of its value."""


def candidates(kind, value):
    """Return values for a key other than `value`, the likeliest to have an effect first."""
    kinds = kind.types if isinstance(kind, OneOf) else (kind,)
    found = []
    for each in kinds:
        if isinstance(each, Choice):
            found += each.choices
        elif isinstance(each, Scalar) and each.base is bool:
            found += [True, False]
        elif isinstance(each, Scalar) and each.base in (int, float):
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            numbers = [value * 0.5, value * 3] if is_number else []
            found += [each.base(n) for n in (*numbers, *NUMBERS) if each.bounds is None or each.base(n) in each.bounds]
        elif isinstance(each, Scalar) and each.words:
            found += each.words
    return [other for other in dict.fromkeys(found) if other != value or type(other) is not type(value)][:9]


def checked(words, typed=()):
    """Return the config and spec of these words. Raise UsageError as a run does, without starting a process."""
    from drl_cli.algos.lookup import load_algorithm
    from drl_cli.envs.make import read_spec
    from drl_cli.errors import Refused, UsageError, as_usage_error
    from drl_cli.preflight.algorithm import check_network, check_priorities, no_memory
    from drl_cli.preflight.environment import check_goals
    from drl_cli.preflight.pace import node_problems, pace_problems, trainer_problems, worker_problems
    from drl_cli.preflight.unread import unread_keys
    from drl_cli.settings.algorithm import refusal
    from drl_cli.settings.build import build

    if lines := [*node_problems(build(compose_plain(*words)), typed)]:
        raise UsageError(lines)
    config = make_config(*words)
    if lines := [*pace_problems(config), *trainer_problems(config), *worker_problems(config)]:
        raise UsageError(lines)
    spec = read_spec(config.env)
    if lines := unread_keys(config, typed, spec):
        raise UsageError(lines)
    if line := refusal(config.algo.name, spec, config.mode, config.replay.table, config.network.memory != "none"):
        raise UsageError([line, *filter(None, [no_memory(config)])])
    check_network(config, spec)
    check_goals(config, spec)
    check_priorities(config)
    with as_usage_error(Refused):
        load_algorithm(config.algo.name).Policy.check(config.algo, config.network, spec)
    return config, spec


def outcome(words, typed=(), start=None, end=None):
    """Train in this process. Return a hash of the weights, the blocks and the counts. `typed` are judged words.

    `start` is the folder of a checkpoint to resume from. The last checkpoint is copied to the folder `end`.
    """
    from drl_cli.metrics.console import Console
    from drl_cli.run_folder.checkpoint import open_checkpoint
    from drl_cli.runtime.orchestrator.progress import Progress
    from drl_cli.runtime.process_graph import build
    from drl_cli.runtime.restore import first_incarnation, restore

    config, spec = checked(words, typed)
    found = hashlib.sha256()
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as place:
        folder = Path(place)
        (folder / "checkpoints").mkdir()
        (folder / "workers").mkdir()
        progress = Progress(config, time.time())
        saved = open_checkpoint(start) if start else None
        console, number = Console("quiet", io.StringIO(), time.time()), first_incarnation(saved)
        graph = build(config, spec, folder, progress, console, ray=None, incarnation=number)
        if saved is not None:
            restore(saved, config, graph)
        counted = progress.collected

        def collected(header):
            found.update(repr(header.blocks).encode())
            counted(header)

        progress.collected = collected
        graph.run()
        graph.finish()
        found.update(repr((progress.env_steps, progress.opt_steps)).encode())
        found.update((folder / "checkpoints/last/model.safetensors").read_bytes())
        graph.close("done")
        if end is not None:
            shutil.copytree((folder / "checkpoints/last").resolve(), end)
    return found.hexdigest()


SMALL = (
    *TINY,
    *("debug.in_process=true", "tuned=none", "network.hidden=[8,8]", "orchestrator.min_inserts=32"),
    *("total_env_steps=128", "manage.eval_episodes=1", "manage.confirm_episodes=0", "manage.eval_period=100000"),
    "checkpoint.period=100000",
)
"""A run of about 0.2 s with about 20 updates."""


def typed_without_effect(base, names, enough=3, start=None):
    """Yield "key=values" for each of `names` that is accepted and changes nothing with `enough` values.

    `start` is the folder of a checkpoint: every run resumes from it.

    Yield "crash: key=value: error" for a value that is accepted and fails with anything but an error for users.
    """
    from drl_cli.envs.config import EnvError, MissingExtra
    from drl_cli.errors import RunError, UsageError
    from drl_cli.preflight.unread import rules

    harmless = {
        (key, value) for rule in rules() for key in rule["keys"].split(", ") for value in rule["harmless"].split()
    }
    words = [*SMALL, *base]
    config, _ = checked(words)
    before = outcome(words, start=start)
    assert outcome(words, start=start) == before, "two runs of the same words differ, so that no key can be judged"
    values, keys = flatten(to_yaml_keys(config)), keys_of(type(config.algo))
    for name in names(keys):
        if name not in values or isinstance(keys[name].type, Group | MappingOf):
            continue
        same = []
        for value in candidates(keys[name].type, values[name]):
            if (name, as_typed(value)) in harmless:
                continue
            word = f"{name}={as_typed(value)}"
            try:
                if outcome([*words, word], [word], start) != before:
                    same = []
                    break
            except (UsageError, MissingExtra, EnvError):  # a package or an environment that the value needs
                continue
            except RunError:  # diverged, for example, which is an effect
                same = []
                break
            except Exception as error:
                yield f"crash: {word}: {type(error).__name__}: {error}"
                continue
            same.append(value)
            if len(same) == enough:
                break
        if same:
            yield f"{name}={','.join(map(as_typed, same))}"
