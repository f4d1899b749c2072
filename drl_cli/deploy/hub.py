"""format=hub: a folder for a model hub, with the policy, its results, a model card and a video."""

import dataclasses
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import yaml

from drl_cli.deploy.export import new_folder, write
from drl_cli.deploy.formats import FILES, Format, NotExported, has_onnx
from drl_cli.deploy.play import find_ffmpeg, play_together, record
from drl_cli.deploy.policy import TrainedPolicy
from drl_cli.deploy.trained import open_step
from drl_cli.envs.config import MissingExtra
from drl_cli.envs.faults import CantRender
from drl_cli.run_folder import SPACES_FILE
from drl_cli.run_folder.checkpoint import MODEL, write_json
from drl_cli.run_folder.saved_run import read_json
from drl_cli.settings.compose import write_config
from drl_cli.utils.seeding import integers
from drl_cli.utils.shown import score_text
from drl_cli.version import __version__

PUBLIC = ("id", "status", "algo", "seed", "started", "versions")
"""The parts of run.json that the folder has. The others name the machine and its paths."""

CARD = """
# {algo} on {env}

A policy trained for {steps} environment steps with [drl-cli](https://pypi.org/project/drl-cli/) {version}.

| mean return | standard deviation | episodes | evaluated |
|---|---|---|---|
| {mean} | {std} | {episodes} | {date} |

The policy took its best action in each step. results.json has the return of each episode.
{video}
## Use it

{alone}With drl-cli, `config.yaml` and `checkpoints/` are a run:

```python
import drl_cli

policy = drl_cli.load("path/to/this/folder")
action = policy(obs)
```

```
drl-play run=path/to/this/folder
drl-eval run=path/to/this/folder episodes=100
drl-train load_weights=path/to/this/folder env={env} algo={algo}
```
"""
ALONE = """Without drl-cli, `policy.py` needs numpy only:

```python
from policy import Policy

policy = Policy("path/to/this/folder")
action = policy(obs)  # one observation, or a batch
```

"""


def write_hub(trained: TrainedPolicy, episodes: int, license: str | None) -> tuple[Path, list[str]]:
    """Write RUN/export/hub-<checkpoint>/. Return the folder, and lines that say what it lacks.

    Raise UsageError if an exported policy acts differently, and the errors of the environment.
    """
    with new_folder(trained, "hub") as (folder, draft):
        results = _results(trained, episodes)
        write_json(draft / "results.json", results)
        video, lacks = _video(trained, draft)
        _write_run(trained, draft)
        has_arrays, missing = _write_exports(trained, episodes, draft)
        head = yaml.safe_dump(metadata(results, license), sort_keys=False, allow_unicode=True)
        (draft / "README.md").write_text(f"---\n{head}---\n{card(results, video, has_arrays)}")
    lacks += missing + ([] if license else ["no licence: say license=mit, or another one, for the model card"])
    return folder, lacks


def _results(trained: TrainedPolicy, episodes: int) -> dict[str, Any]:
    seeds = integers(trained.config.seed, "confirm", episodes)
    returns = play_together(trained, trained, seeds)
    return {
        "env": trained.config.env.name,
        "algo": trained.config.algo_name,
        "env_steps": trained.manifest["env_steps"],
        "mean": float(returns.mean()),
        "std": float(returns.std()),
        "episodes": episodes,
        "date": datetime.now(UTC).date().isoformat(),
        "seeds": seeds,
        "returns": [float(value) for value in np.asarray(returns)],
    }


def _video(trained: TrainedPolicy, folder: Path) -> tuple[str | None, list[str]]:
    config = trained.config
    try:
        path = folder / f"replay.{'mp4' if find_ffmpeg() else 'gif'}"
        title, seed = f"{config.algo_name}  {trained.trained}", integers(config.seed, "confirm", 1)
        record([trained], [title], seed, path, config.manage.max_episode_steps, None)
    except (CantRender, MissingExtra, ModuleNotFoundError) as error:
        return None, [f"no video: {error}"]
    return path.name, []


def _write_run(trained: TrainedPolicy, folder: Path) -> None:
    """Write the run with this one checkpoint, as its model alone, for drl_cli.load and the commands."""
    config = dataclasses.replace(trained.config, output_dir="outputs", load_weights=None)
    known = read_json(trained.run / "run.json")
    write_json(folder / "run.json", {name: known[name] for name in PUBLIC if name in known})
    write_config(folder, config)
    if (spaces := trained.run / SPACES_FILE).is_file():
        shutil.copyfile(spaces, folder / SPACES_FILE)
    best = folder / "checkpoints" / "best"
    best.mkdir(parents=True)
    for name in ("manifest.json", MODEL):
        shutil.copyfile(trained.checkpoint / name, best / name)


def _write_exports(trained: TrainedPolicy, episodes: int, folder: Path) -> tuple[bool, list[str]]:
    """Write the policy for numpy into the folder, and for ONNX into a folder in it.

    Return whether numpy can represent the policy, and lines that name the formats that are left out, with the reason.
    """
    lacks = list[str]()
    places: dict[Format, Path] = {"numpy": folder, "onnx": folder / "onnx"}
    for format, place in places.items():
        if format == "onnx" and not has_onnx():
            lacks.append("no ONNX: it needs  pip install 'drl-cli[onnx]'")
            continue
        with TemporaryDirectory(dir=folder) as draft:
            try:
                write(open_step(trained.checkpoint, trained.config), format, episodes, Path(draft))
            except NotExported as error:
                lacks.append(f"no {FILES[format]}: {error}; drl_cli.load reads the folder")
                continue
            shutil.copytree(draft, place, dirs_exist_ok=True)
    return (folder / FILES["numpy"]).is_file(), lacks


def metadata(results: Mapping[str, Any], license: str | None) -> dict[str, Any]:
    env, algo = results["env"], results["algo"]
    text = f"{score_text(results['mean'])} +/- {score_text(results['std'])}"
    task = {"type": "reinforcement-learning", "name": "reinforcement-learning"}
    metric = {"type": "mean_reward", "value": text, "name": "mean_reward", "verified": False}
    result = {"task": task, "dataset": {"name": env, "type": env}, "metrics": [metric]}
    return {
        "library_name": "drl-cli",
        **({"license": license} if license else {}),
        "tags": ["reinforcement-learning", "deep-reinforcement-learning", env, algo],
        "model-index": [{"name": f"{algo}-{env}", "results": [result]}],
    }


def card(results: Mapping[str, Any], video: str | None, has_arrays: bool) -> str:
    return CARD.format(
        **{name: results[name] for name in ("env", "algo", "episodes", "date")},
        steps=f"{results['env_steps']:,}",
        version=__version__,
        mean=score_text(results["mean"]),
        std=score_text(results["std"]),
        video=f"\n{video} shows the first episode.\n" if video else "",
        alone=ALONE if has_arrays else "",
    )
