"""Advice: name the bottleneck of a run and the keys that help. Warn if a key changes what is learned."""

from drl_cli.metrics.status import Status

WAITS = 0.2
"""If the workers wait for more than this fraction of their time, the trainer is the bottleneck, and vice versa."""
FREE, FULL = 0.85, 0.95
"""If the machine load is below FREE, some processors are idle. If it is above FULL, no processor is idle."""
OWN = 0.7
"""If a run uses less than this fraction of a fully loaded machine, other programs slow it down."""
CHANGES = "this changes what is learned"


def bottleneck(status: Status) -> str:
    """Return one line of advice, or an empty text if too little is known."""
    worker, trainer = status.worker_time.get("waiting"), status.trainer_time.get("waiting")
    if status.mode == "offline":
        return "" if status.awaits or status.compiles else "updates take all the time: trainer.compile=true"
    if status.awaits or worker is None:
        return ""
    if trainer is None:
        return "the trainer: no update has ended lately" if status.opt_steps else "the first update is still to come"
    load = status.cpu_percent
    if load is not None and load > 100 * FULL and (own := _own_cores(status)) < OWN * status.cpus:
        return f"other programs: all {status.cpus} processors are busy, and this run has {own:.1f} of them"
    if status.mode != "async":
        return _in_turns(status)
    if worker > WAITS and trainer > WAITS:
        return (
            f"both sides wait for each other (workers {worker:.0%}, trainer {trainer:.0%}): raise worker.block_rows "
            f"for fewer calls; policies are then older, {CHANGES} a little"
        )
    if worker > WAITS:
        return f"the trainer: workers wait {worker:.0%} of their time. {_faster_updates(status)}"
    if trainer > WAITS:
        return f"the workers: the trainer waits {trainer:.0%} of its time. {_faster_steps(status)}"
    return "both sides are busy: only more processors make it faster"


def _in_turns(status: Status) -> str:
    """Return advice for the modes single and sync, in which workers and trainer take turns."""
    collects = 1.0 - status.worker_time["waiting"]
    if collects < 0.5:
        return f"updates take {1 - collects:.0%} of the time, in turns with collecting. {_faster_updates(status)}"
    workers = "" if status.mode == "single" else f" {_faster_steps(status)}."
    return (
        f"collecting takes {collects:.0%} of the time, in turns with updates.{workers} mode=async does both at once: "
        f"policies are then older, {CHANGES}"
    )


def _faster_updates(status: Status) -> str:
    share = status.trainer_time
    if share.get("batch", 0.0) > share.get("update", 0.0):
        return "It waits for its batches: raise replay.shards or trainer.updates_per_call"
    if status.is_on_policy:
        return f"Fewer updates: lower algo.epochs ({CHANGES})"
    ways = [] if status.compiles else ["trainer.compile=true makes updates faster"]
    if status.workers > 1 and not has_free_cores(status) and status.mode == "async":
        ways.insert(0, f"worker.num={status.workers - 1} leaves it more of the processors")
    if status.ratio_asked is not None:
        fewer = f"orchestrator.sample_insert_ratio below {status.ratio_asked:g} makes fewer updates"
        ways.append(f"{fewer} ({CHANGES})")
    return "; ".join(ways)


def _faster_steps(status: Status) -> str:
    share = status.worker_time
    rollouts = f" (shorter rollouts from more episodes: {CHANGES})" if status.is_on_policy else ""
    if share.get("policy", 0.0) > share.get("environment", 0.0):
        what = f"They spend it on the policy: raise worker.envs, which act together{rollouts}"
    elif has_free_cores(status):
        what = f"Raise worker.num above {status.workers}: not all of the {status.cpus} processors are busy{rollouts}"
    else:
        what = f"All {status.cpus} processors are busy: env.backend=envpool, or ray.address=... for more machines"
    if status.is_on_policy or status.ratio_asked is None:
        return what
    return f"{what}; or raise orchestrator.sample_insert_ratio: more updates of the same steps ({CHANGES})"


def has_free_cores(status: Status) -> bool:
    """Return whether there are idle processors for this run; False if the load is unknown."""
    load = status.cpu_percent
    return status.cpus > 1 and load is not None and load < 100 * FREE and _own_cores(status) < FREE * status.cpus


def _own_cores(status: Status) -> float:
    return sum(role.get("cores", 0.0) for role in status.roles.values())
