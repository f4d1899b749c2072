"""Write a trained policy for use without drl-cli, as ONNX, torch.export or numpy, and check that it acts the same."""

import io
import logging
import math
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from drl_cli.algos.torch_policy import TorchPolicy
from drl_cli.deploy import standalone
from drl_cli.deploy.formats import FILES, SOURCE, Format, NotExported, check, not_exported
from drl_cli.deploy.play import play_together
from drl_cli.deploy.policy import TrainedPolicy, action_at
from drl_cli.deploy.standalone import Policy, bounds
from drl_cli.envs.units import ArraySpec
from drl_cli.errors import BUG, UsageError
from drl_cli.run_folder.checkpoint import make_draft, write_arrays, write_json
from drl_cli.runtime.roles.normalization import NormalizedPolicy
from drl_cli.types import Array
from drl_cli.utils.seeding import integers
from drl_cli.version import __version__

TOLERANCE = 1e-5
"""Largest allowed difference of two actions, relative to half the range (at least 1).

For choices: largest allowed loss of value, relative to the best value (at least 1).
"""


LEAST_OBSERVATIONS = 1000


@dataclass(frozen=True)
class Parity:
    """How closely an exported policy matches the trained policy.

    `largest_difference` is the maximum of `difference` over all `observations`, which come from episodes of the trained
    policy. The returns are means over drl-eval's first `episodes` episodes.
    """

    observations: int
    largest_difference: float
    tolerance: float
    episodes: int
    return_trained: float
    return_exported: float
    standard_error: float

    def problem(self) -> str | None:
        if not self.largest_difference <= self.tolerance:
            return f"its actions are up to {self.largest_difference:.2g} off, {self.tolerance:g} are allowed"
        if abs(self.return_exported - self.return_trained) > 3 * self.standard_error + 1e-5 * abs(self.return_trained):
            return f"its mean return is {self.return_exported:.5g}, the run's is {self.return_trained:.5g}"
        return None


def export(trained: TrainedPolicy, format: Format, episodes: int) -> tuple[Path, Parity]:
    """Write the policy to RUN/export/<format>-<checkpoint>/, replacing an older export. Return the folder and Parity.

    Raise UsageError if the format can't represent the policy, or if the exported policy acts differently. In both
    cases an older export is kept.
    """
    with new_folder(trained, format) as (folder, draft):
        parity = write(trained, format, episodes, draft)
    return folder, parity


@contextmanager
def new_folder(trained: TrainedPolicy, name: str) -> Iterator[tuple[Path, Path]]:
    folder = trained.run / "export" / f"{name}-{trained.checkpoint.name}"
    draft = make_draft(folder)
    try:
        yield folder, draft
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(draft, folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def write(trained: TrainedPolicy, format: Format, episodes: int, folder: Path) -> Parity:
    """Write the policy into a folder, and compare it with the run's policy. Raise UsageError as `export` does."""
    spec = write_files(trained, format, folder)
    shutil.copyfile(standalone.__file__, folder / "policy.py")
    parity = compare(trained, standalone.Policy(folder), episodes)
    if problem := parity.problem():
        raise UsageError(f"format={format}: the exported policy is not the run's: {problem}", BUG)
    write_json(folder / "spec.json", spec | {"parity": asdict(parity)})
    return parity


def write_files(trained: TrainedPolicy, format: Format, folder: Path) -> dict[str, Any]:
    """Write spec.json and the policy in a format. Return the content of spec.json. Raise NotExported."""
    policy = trained.policy.policy if isinstance(trained.policy, NormalizedPolicy) else trained.policy
    check(type(policy), format)
    if isinstance(policy, TorchPolicy):
        policy.searches = False  # the export is compared with the policy without its search
    spec = {"format": format, "file": FILES[format], **_about(trained), **trained.signature}
    if not_exported(type(policy)):
        spec["state"] = None  # only the search has used it
    try:
        spec |= (_write_numpy if format == "numpy" else _write_graph)(trained, format, folder)
    except ValueError as error:
        raise NotExported(f"format={format}: {error}") from error
    write_json(folder / "spec.json", spec)
    return spec


def _about(trained: TrainedPolicy) -> dict[str, Any]:
    config, manifest = trained.config, trained.manifest
    env = {"env": config.env.id, "env_kwargs": dict(config.env.kwargs)}
    return {
        "run": trained.run.name,
        "checkpoint": trained.checkpoint.name,
        **(env if trained.has_env else {"env": config.env.name}),
        "algo": config.algo_name,
        **{name: manifest[name] for name in ("env_steps", "opt_steps")},
        "drl_cli": __version__,
        "meaning": {
            "shape": "every array has a first axis, of the batch: [n, *shape]",
            "inputs": "observations as the environment gives them, in this order; then `state`, if there is one",
            "outputs": "actions as the environment takes them, in this order; then `values`, then `state`, if any",
            "values": "what each choice is worth to the network (Q values, logits), [n, values]",
            "state": "float32 [n, size]; zeros when an episode begins, afterwards what the last step gave",
        },
    }


def _write_numpy(trained: TrainedPolicy, format: Format, folder: Path) -> dict[str, Any]:
    from drl_cli.deploy.graph import make_graph, numpy_source

    graph = make_graph(trained)
    source, arrays = numpy_source(graph, trained.units, f"{trained.config.algo_name} on {trained.config.env.name}")
    (folder / SOURCE).write_text(source)
    write_arrays(folder / FILES[format], arrays)
    return {"values": graph.num_scores or None}


def _write_graph(trained: TrainedPolicy, format: Format, folder: Path) -> dict[str, Any]:
    import torch

    from drl_cli.deploy.graph import example, make_graph

    graph = make_graph(trained)
    given = example(trained.units, graph, 2)
    inputs = tuple(given.values())
    batch = torch.export.Dim("batch")
    shapes = (tuple({0: batch} for _ in inputs),)
    values = ["values"] if graph.num_scores else []
    names = [*given]
    outputs = [part.name for part in trained.units.outputs] + values + ["next_state"] * bool(graph.state_size)
    with torch.no_grad(), _quiet():
        try:
            program = torch.export.export(graph, inputs, dynamic_shapes=shapes)
        except Exception as error:  # torch.export raises exceptions of many types
            text = str(error).strip().splitlines()[0]
            advice = "a batch of any size must pass through it: x.shape[0], not len(x)"
            raise ValueError(f"torch.export can't trace its modules ({text}); {advice}") from error
        if format == "torch":
            program.example_inputs = None  # torch would save them as a pickle, the only one of the file
            torch.export.save(program, folder / FILES[format])
        else:
            onnx = torch.onnx.export(
                program, inputs, dynamo=True, input_names=names, output_names=outputs, verbose=False
            )  # fmt: skip
            assert onnx is not None
            onnx.save(folder / FILES[format])
    return {"values": graph.num_scores or None, "names": {"inputs": names, "outputs": outputs}}


@contextmanager
def _quiet() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("torch", "onnxscript", "onnx_ir")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def compare(trained: TrainedPolicy, exported: Policy, episodes: int, least: int | None = None) -> Parity:
    """Play both policies on the same episodes, and compare their actions on `least` or more observations.

    `least` is by default LEAST_OBSERVATIONS.
    """
    outputs, num, largest = trained.units.outputs, 0, 0.0
    ends = np.cumsum([n for part in outputs for n in part.choices])

    def watch(obs: Any, masks: Any, actions: Any, running: Array) -> None:
        nonlocal num, largest
        exported_actions, values = exported(obs, masks), exported.values
        values_of_choices = iter(() if values is None else np.split(values, ends[:-1], 1))
        for part in outputs:
            own, other = (action_at(each, part.path)[running] for each in (actions, exported_actions))
            of_part = [next(values_of_choices)[running] for _ in part.choices] if values is not None else []
            largest = float(np.maximum(largest, difference(part, own, other, of_part)))  # NaN stays NaN
        num += int(running.sum())

    seed = trained.config.seed
    seeds = integers(seed, "confirm", episodes)
    returns = play_together(trained, trained, seeds, watch)
    while num < (least or LEAST_OBSERVATIONS):
        exported.reset()
        play_together(trained, trained, integers(seed, "confirm", episodes, index=1 + num), watch)
    exported_returns = play_together(exported, trained, seeds)
    return Parity(
        observations=num,
        largest_difference=largest,
        tolerance=TOLERANCE,
        episodes=episodes,
        return_trained=returns.mean(),
        return_exported=exported_returns.mean(),
        standard_error=math.sqrt((returns.var() + exported_returns.var()) / episodes),
    )


def difference(part: ArraySpec, trained: Array, exported: Array, values: list[Array]) -> float:
    """Return the largest difference of two batches of actions, relative to half the action's range.

    For choices, return how far the value of the trained choice is at most below the best value, in units of
    max(1, |best value|). `values` are the exported policy's values: an array `[n, choices]` for each component of the
    action. If `values` is empty, return infinity if any choice differs, else 0.
    """
    if not part.choices:
        low, high = bounds(vars(part))
        half = np.where(np.isfinite(high - low), (high - low) / 2, 1.0).clip(1.0).reshape(part.shape)
        return float((np.abs(trained.astype(np.float64) - exported) / half).max(initial=0.0))
    if not values:
        return 0.0 if np.array_equal(trained, exported) else math.inf
    choices = (trained - np.array(part.start)).reshape(len(trained), len(values))
    loss = 0.0
    for choice, value in zip(choices.T, values, strict=True):
        best, taken = value.max(1), np.take_along_axis(value, choice[:, None].astype(np.int64), 1)[:, 0]
        loss = max(loss, float(((best - taken) / np.maximum(1.0, np.abs(best))).max(initial=0.0)))
    return loss
