"""One first try with data of d3rlpy with its defaults, for first_try_offline.py.

    PEERS/bin/python scripts/bench/first_try_offline_peer.py ENV iql UPDATES SEED FILE.npz

The last line of the output is {"return": R, "seconds": S}: the mean return of 20 greedy episodes at the end, and the
time of learning. requirements.txt tells how to install d3rlpy.
"""

import json
import sys
import time

import d3rlpy
import gymnasium
import numpy as np
import torch
from first_try_names import EPISODES, GYMNASIUM

KINDS = {"iql": "IQLConfig", "td3_bc": "TD3PlusBCConfig", "cql": "CQLConfig", "awac": "AWACConfig", "bc": "BCConfig"}


def main() -> None:
    name, algo, updates, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    id, kwargs, _ = GYMNASIUM.get(name, (name, {}, 0.0))
    env = gymnasium.make(id, **kwargs)
    low, high = env.action_space.low, env.action_space.high
    keys = ("observations", "actions", "rewards", "terminations", "truncations")
    obs, action, reward, ends, cuts = (np.load(sys.argv[5])[key] for key in keys)
    cuts[-1] = not ends[-1]
    torch.set_num_threads(1)
    d3rlpy.seed(seed)
    unit = (2 * (action - low) / (high - low) - 1).astype(np.float32)  # d3rlpy's actors give actions from -1 to 1
    dataset = d3rlpy.dataset.MDPDataset(obs, unit, reward[:, None], ends.astype(float), cuts.astype(float))
    model = getattr(d3rlpy.algos, KINDS[algo])().create(device="cpu:0")
    started = time.perf_counter()
    model.fit(
        dataset,
        n_steps=updates,
        n_steps_per_epoch=updates,
        logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
        show_progress=False,
    )
    seconds, returns = time.perf_counter() - started, []
    for episode in range(EPISODES):
        state, total, is_over = env.reset(seed=10**6 + episode)[0], 0.0, False
        while not is_over:
            chosen = model.predict(state[None].astype(np.float32))[0]
            state, gain, ended, cut, _ = env.step(low + (np.clip(chosen, -1, 1) + 1) / 2 * (high - low))
            total, is_over = total + float(gain), ended or cut
        returns.append(total)
    print(json.dumps({"return": float(np.mean(returns)), "seconds": seconds}))


if __name__ == "__main__":
    main()
