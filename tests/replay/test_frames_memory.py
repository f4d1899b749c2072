import json
import subprocess
import sys
from pathlib import Path

import pytest

FRAME, STEPS = 84 * 84, 30_000
FILL = """
import json, sys
import numpy as np, psutil
from drl_cli.envs.stepping.batch import EnvBatch
from drl_cli.envs.config import EnvConfig
from drl_cli.envs.make import read_spec
from drl_cli.replay.builders import NStepBuilder
from drl_cli.replay.config import UniformConfig
from drl_cli.replay.frames import FrameBuilder
from drl_cli.replay.frame_table import FrameTable, reference_schema
from drl_cli.replay.frames import make_codec, make_stackings

from drl_cli.types import transition_schema

capacity, n_step, num_steps, num_envs = *map(int, sys.argv[1:4]), 16
config = EnvConfig("frames", "drl_cli.envs.probes:Frames-v0", {}, None, 1.0, "auto", False, False)
spec, codec = read_spec(config), make_codec(sys.argv[4])
stackings = make_stackings(spec)
builder = FrameBuilder(NStepBuilder(n_step, 0.99), stackings, codec, 0, 0, n_step - 1)
envs, action = EnvBatch(config, spec, range(num_envs)), np.zeros(num_envs, np.int64)
before = psutil.Process().memory_info().rss
schema = reference_schema(transition_schema(spec), stackings)
table = UniformConfig("uniform", capacity, 1, "oldest", "none").make_table(schema, np.random.default_rng(0), 0)
table = FrameTable(table, stackings, codec)
for step in range(1, num_steps // num_envs + 1):
    obs = envs.obs.copy()
    builder.append({"obs": obs, "action": action, **vars(envs.step(action))})
    if step % 16 == 0 or step == num_steps // num_envs:
        block = builder.take()
        table.insert(block, np.zeros(len(block["reward"]), np.int64))
        if step % 800 == 0:
            table.sample(16, 32, 0)
growth = psutil.Process().memory_info().rss - before
print(json.dumps({"rows": len(table), "growth": growth, "nbytes": table.nbytes}))
"""


def fill(capacity, n_step, num_steps, compress="none"):
    args = [sys.executable, "-c", FILL, str(capacity), str(n_step), str(num_steps), compress]
    done = subprocess.run(args, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    return json.loads(done.stdout)


@pytest.mark.slow
def test_memory_does_not_grow_once_the_replay_is_full():
    found = fill(5000, 3, STEPS)
    assert found["rows"] == 5000
    assert found["growth"] < 1.1 * FRAME * 5000 + 50e6
