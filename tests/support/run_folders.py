"""Folders like those of runs, made without a run."""

import json

import yaml

PLAIN = {
    "env.name": "Pole",
    "env.id": "Pole-v1",
    "env.kwargs": {},
    "algo.name": "dqn",
    "algo.lr": 1e-3,
    "mode": "single",
    "seed": 0,
    "output_dir": "outputs",
    "stop.return": None,
    "trainer.threads": 1,
    "replay.sampler": "uniform",
    "logger.console_s": 30.0,
}


def make_run(root, id, /, evals=(), *, status="done", summary=None, command=(), **changes):
    """Make a run's folder. `changes` are config keys with __ for a dot.

    `evals` are (env_steps, wall_s, mean), or (updates, wall_s, mean) in mode=offline.
    """
    config = PLAIN | {key.replace("__", "."): value for key, value in changes.items()}
    folder = root / str(config["env.name"]) / f"{config['algo.name']}-{config['mode']}" / id
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(nested(config), sort_keys=False))
    record = {"id": id, "status": status, "command": ["drl-train", *command]}
    (folder / "run.json").write_text(json.dumps(record))
    lines = ["env_steps,opt_steps,version,wall_s,mean", *(f"{s},{s},0,{w},{mean}" for s, w, mean in evals)]
    (folder / "eval.csv").write_text("\n".join(lines) + "\n")
    if status != "running":
        (folder / "summary.json").write_text(json.dumps({"status": status, **(summary or {})}))
    return folder


def nested(flat):
    node = {}
    for key, value in flat.items():
        *groups, name = key.split(".")
        inner = node
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[name] = value
    return node
