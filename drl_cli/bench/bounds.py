"""What both sides could do at most together, from what each does alone."""

from drl_cli.bench.figures import Rate


def bound(mode: str, num_workers: int, cores: int, worker: Rate, trainer: Rate) -> tuple[float, str]:
    """Environment steps/s of a run, and whose limit that is.

    `worker` is the pace of one worker, `trainer` that of the environment steps for which it makes the updates. Both
    also use processor time, of which there are `cores` seconds in a second. In mode=async the two go on side by side,
    in the other modes in turn.
    """
    processors = cores / (1 / worker.per_cpu_s + 1 / trainer.per_cpu_s)
    if mode == "async":
        limits = {"workers": num_workers * worker.per_s, "trainer": trainer.per_s, "processors": processors}
        least = min(limits, key=lambda name: limits[name])
        return limits[least], least
    collect = min(num_workers * worker.per_s, cores * worker.per_cpu_s)
    both = 1 / (1 / collect + 1 / trainer.per_s)
    return both, "workers" if collect < trainer.per_s else "trainer"


def balanced_ratio(ratio: float, worker_wait: float, trainer_wait: float) -> float:
    """Updates per environment step at which neither side would wait, for a run at `ratio` in which they waited so."""
    balanced = ratio * (1 - min(0.99, worker_wait)) / (1 - min(0.99, trainer_wait))
    return float(f"{balanced:.2g}")
