"""Configs and graphs for tests."""

import hashlib

from handles import by_name

COUNTER = "env=drl_cli.envs.probes:Counter-v0"
RAW = ("env.normalize_obs=false", "env.normalize_reward=false")
DISCOUNT = "algo.gamma=0.99"  # that of short episodes would be lower
TINY = (
    *("network.hidden=[16,16]", "orchestrator.min_inserts=64", "worker.envs=4", "worker.block_rows=32"),
    *("trainer.batch_size=16", "replay.capacity=4000", "manage.eval_episodes=2", "manage.confirm_episodes=3"),
    *("manage.eval_period=1000", "total_env_steps=512", "logger.tensorboard=false"),
    *("orchestrator.sample_insert_ratio=0.25", *RAW),
)


def make_config(*overrides):
    """Return the checked config of a drl-train command line."""
    from composing import compose_plain

    from drl_cli.settings.build import build
    from drl_cli.settings.fill import fill

    return fill(build(compose_plain(*overrides)))


def quick_compose(words):
    """Return what drl_cli.settings.compose.compose returns, without Hydra, which takes longer than many tests."""
    from drl_cli.settings.command_line import for_hydra

    return make_config(*for_hydra(words))


def weights(graph):
    return hashlib.sha256((graph.folder / "checkpoints/last/model.safetensors").read_bytes()).hexdigest()


def workers(graph):
    """Return the Worker objects of a graph in one process, also those behind proxies."""
    roles = [member.handle.role for member in graph.pool.members]
    return [
        w for role in roles for w in ([m.handle.role for m in role.pool.members] if hasattr(role, "pool") else [role])
    ]


def on_collected(graph, react):
    """Call react(header) after every block."""
    collected = graph.progress.collected

    def note(header):
        collected(header)
        react(header)

    graph.progress.collected = note


def at(graph, env_steps, act):
    done = []
    on_collected(graph, lambda _: done or graph.progress.env_steps < env_steps or done.append(act()))


def check_resumed_run(run_graph, *args):
    """Check that a run of 256 steps that is resumed ends as a run of 512 steps: the weights and the trainer's state."""
    import numpy as np

    whole, half = (run_graph(*args, f"total_env_steps={steps}") for steps in (512, 256))
    before = weights(half)
    resumed = run_graph(*args, "total_env_steps=512", run=half.folder)
    assert weights(resumed) == weights(whole) != before
    np.testing.assert_equal(*(by_name(graph.trainers["trainer"], "state").value for graph in (resumed, whole)))


def inserted(graph):
    """Return a list that gets the columns of each later insert into the first shard."""
    table, seen = graph.replay.shards[0].role.table, []
    insert = table.insert
    table.insert = lambda columns, versions: (seen.append(columns), insert(columns, versions))
    return seen
