"""PPO whose updates take ten times as long as usual."""

import time

from drl_cli.algos.on_policy import ppo
from drl_cli.algos.on_policy.ppo import ACTIONS, TABLES, Config, Policy

__all__ = ["ACTIONS", "TABLES", "Algorithm", "Config", "Policy"]


class Algorithm(ppo.Algorithm):
    """Wait after each update for nine times as long as the update took."""

    def update(self, batch, counts):
        begin = time.perf_counter()
        update = super().update(batch, counts)
        time.sleep(9 * (time.perf_counter() - begin))
        return update
