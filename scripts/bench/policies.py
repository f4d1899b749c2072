"""Steps and memory of a worker whose policy is a user's, as a numpy program and in torch, and of a built-in's worker.

    python scripts/bench/policies.py [--rounds 7] [--seconds 4] [--hidden 256] [--envs 8]

The user's algorithm is the TD3 of docs/add-an-algorithm.md, the built-in is `algo=td3`. All have the same options on
Pendulum-v1, one thread, and parameters of an untrained network. The figures are environment steps per second of
processor time, and resident memory. The sides alternate.
"""

import argparse
import pickle
import re
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from alternate import Figures, alternate, serve, table

DOC = Path(__file__).parents[2] / "docs" / "add-an-algorithm.md"
SAME = (
    *("env=Pendulum-v1", "mode=async", "worker.num=2", "tuned=none", "env.normalize_obs=false", "algo.n_step=1"),
    *(
        "algo.gamma=0.99",
        "env.normalize_reward=false",
        "env.reward_scale=1",
        "worker.block_rows=128",
        "worker.random_steps=0",
    ),
)
SIDES = {"numpy": "my_td3", "torch": "my_td3", "built-in": "td3"}


def prepare(folder: Path, options: tuple[str, ...]) -> None:
    """Write the arguments of each side's worker. Their processes then need no torch."""
    from drl_cli.envs.make import read_spec
    from drl_cli.runtime.roles.normalization import numpy_program
    from drl_cli.runtime.trial import lone_trainer
    from drl_cli.settings.compose import compose

    (code,) = [each for each in re.findall(r"```python\n(.*?)```", DOC.read_text(), re.S) if each[:6] == '"""TD3']
    (folder / "my_td3.py").write_text(code)
    sys.path.insert(0, str(folder))
    for side, algo in SIDES.items():
        config = compose([*SAME, *options, f"algo={algo}"])
        spec = read_spec(config.env)
        program, form = numpy_program(config, spec)
        assert (form == "numpy") == (algo == "my_td3"), form
        published = lone_trainer(config, spec).publish(0, 0)
        arguments = (config, spec, program if side == "numpy" else None, *published)
        (folder / side).write_bytes(pickle.dumps(arguments))


def work(path: Path, seconds: float) -> None:
    from drl_cli.runtime.roles.worker import Worker

    sys.path.insert(0, str(path.parent))
    config, spec, program, header, params = pickle.loads(path.read_bytes())
    worker = Worker(config, spec, 0, 0, program)
    worker.collect(header, params)

    def play() -> Figures:
        began, steps = time.process_time(), 0
        while time.process_time() < began + seconds:
            steps += worker.collect(header)[0].env_steps
        memory = re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())
        assert ("torch" in sys.modules) == (path.name == "torch")
        return {"steps/CPU s": steps / (time.process_time() - began), "MB": int(memory[1]) / 1024}

    serve(play)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--envs", type=int, default=8)
    parser.add_argument("--side", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        work(args.side, args.seconds)
        return
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name), (f"network.hidden=[{args.hidden},{args.hidden}]", f"worker.envs={args.envs}"))
        seconds = ("--seconds", str(args.seconds))
        commands = {side: (sys.executable, __file__, "--side", Path(name, side), *seconds) for side in SIDES}
        print(table(alternate(commands, args.rounds), "numpy"))


if __name__ == "__main__":
    main()
