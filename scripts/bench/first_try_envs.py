"""Environments as users write them: own units, odd horizons, rewards of any size. Nobody has tuned values for them.

Each class has `expert`, a hand-made controller. Its mean return is the reference of first_try.py.
"""

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, Space

Step = tuple[np.ndarray, float, bool, bool, dict[str, Any]]


class Task(gymnasium.Env[np.ndarray, Any]):
    """An environment with `size` observations, which is truncated after `horizon` steps."""

    size: ClassVar[int]
    horizon: ClassVar[int]
    actions: ClassVar[Space[Any]]

    def __init__(self) -> None:
        self.observation_space = Box(-np.inf, np.inf, (self.size,), np.float32)
        self.action_space = self.actions

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        self.begin()
        return self.obs(), {}

    def step(self, action: Any) -> Step:
        self.t += 1
        reward, is_over = self.move(action)
        return self.obs(), float(reward), is_over, self.t >= self.horizon, {}

    def obs(self) -> np.ndarray:
        return np.asarray(self.see(), np.float32)

    def begin(self) -> None:
        raise NotImplementedError

    def see(self) -> list[float]:
        raise NotImplementedError

    def move(self, action: Any) -> tuple[float, bool]:
        """Move by one step. Return the reward, and whether the episode is over."""
        raise NotImplementedError


class Tank(Task):
    """Hold the level [cm] of a leaking tank with a pump [V]. Rewards of size 1e-3, a horizon of 60."""

    size, horizon, actions = 2, 60, Box(0.0, 12.0, (1,), np.float32)

    def begin(self) -> None:
        self.level, self.target = self.np_random.uniform(0, 200), self.np_random.uniform(50, 150)

    def see(self) -> list[float]:
        return [self.level, self.target]

    def move(self, action: Any) -> tuple[float, bool]:
        self.level = float(np.clip(self.level + 2.5 * float(action[0]) - 0.1 * self.level, 0, 200))
        return -1e-3 * abs(self.level - self.target), False

    @staticmethod
    def expert(obs: np.ndarray) -> Any:
        level, target = obs
        return np.clip([(target - 0.9 * level) / 2.5], 0, 12).astype(np.float32)


class Heater(Task):
    """Hold a room at 70 F with a heater [W]. Rewards of size 1e3, 2,000 steps, and a sensor that means nothing."""

    size, horizon, actions = 3, 2000, Box(0.0, 1500.0, (1,), np.float32)

    def begin(self) -> None:
        self.room, self.outside = self.np_random.uniform(40, 90), self.np_random.uniform(20, 50)

    def see(self) -> list[float]:
        return [self.room, self.outside, self.np_random.normal(500, 200)]

    def move(self, action: Any) -> tuple[float, bool]:
        self.outside = float(np.clip(self.outside + self.np_random.normal(0, 0.2), 20, 50))
        self.room += 0.05 * (self.outside - self.room) + 0.002 * float(action[0])
        return 1000 * (1 - min(1.0, abs(self.room - 70) / 20)), False

    @staticmethod
    def expert(obs: np.ndarray) -> Any:
        room, outside, _ = obs
        return np.clip([(70 - room - 0.05 * (outside - room)) / 0.002], 0, 1500).astype(np.float32)


class Stock(Task):
    """Order 0 to 4 boxes of 25 pieces for a shop. The reward is minus the cost [money], and never above 0."""

    size, horizon, actions = 3, 100, Discrete(5)

    def begin(self) -> None:
        self.stock, self.coming, self.demand = 50, 0, 40

    def see(self) -> list[float]:
        return [self.stock, self.coming, self.demand]

    def move(self, action: Any) -> tuple[float, bool]:
        self.stock += self.coming
        self.coming = 25 * int(action)
        self.demand = int(self.np_random.poisson(45))
        missing, self.stock = max(0, self.demand - self.stock), max(0, self.stock - self.demand)
        return -(0.5 * self.stock + 5.0 * missing + 0.2 * self.coming), False

    @staticmethod
    def expert(obs: np.ndarray) -> Any:
        return int(np.clip(round((115 - obs[0] - obs[1]) / 25), 0, 4))


class Reach(Task):
    """Walk to a goal in a field of 6 m. The reward is 1 at the goal, and 0 before."""

    size, horizon, actions = 4, 100, Box(-0.5, 0.5, (2,), np.float32)

    def begin(self) -> None:
        self.place, self.goal = self.np_random.uniform(0, 6, 2), self.np_random.uniform(0, 6, 2)

    def see(self) -> list[float]:
        return [*self.place, *self.goal]

    def move(self, action: Any) -> tuple[float, bool]:
        self.place = np.clip(self.place + np.asarray(action, np.float64), 0, 6)
        is_there = float(np.abs(self.place - self.goal).max()) < 0.5
        return float(is_there), is_there

    @staticmethod
    def expert(obs: np.ndarray) -> Any:
        return np.clip(obs[2:] - obs[:2], -0.5, 0.5).astype(np.float32)


class Pole(Task):
    """Balance a pole on a cart. Encoders count whole ticks, and the episode ends when the pole falls."""

    size, horizon, actions = 4, 500, Discrete(3)

    def begin(self) -> None:
        self.state = self.np_random.uniform(-0.04, 0.04, 4)  # m, m/s, rad, rad/s

    def see(self) -> list[float]:
        x, speed, angle, turn = self.state
        return [round(2000 * x), round(200 * speed), round(4096 / 6.283 * angle), round(400 * turn)]

    def move(self, action: Any) -> tuple[float, bool]:
        x, speed, angle, turn = self.state
        push = 8.0 * (int(action) - 1)
        bend = (push + 0.05 * turn**2 * np.sin(angle)) / 1.1
        swing = (9.8 * np.sin(angle) - np.cos(angle) * bend) / (0.5 * (4 / 3 - 0.1 * np.cos(angle) ** 2 / 1.1))
        pull = bend - 0.05 * swing * np.cos(angle) / 1.1
        self.state = np.array([x + 0.02 * speed, speed + 0.02 * pull, angle + 0.02 * turn, turn + 0.02 * swing])
        return 1.0, bool(abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.21)

    @staticmethod
    def expert(obs: np.ndarray) -> Any:
        x, speed, angle, turn = obs[0] / 2000, obs[1] / 200, obs[2] * 6.283 / 4096, obs[3] / 400
        return int(np.sign(angle + 0.3 * turn + 0.03 * x + 0.06 * speed)) + 1


class Motor(Task):
    """Turn a motor to an angle [degrees] with a voltage. Rewards are minus the squared error, down to -130,000."""

    size, horizon, actions = 3, 200, Box(-24.0, 12.0, (1,), np.float32)

    def begin(self) -> None:
        self.angle, self.turn, self.target = 0.0, 0.0, self.np_random.uniform(-180, 180)

    def see(self) -> list[float]:
        return [self.angle, self.turn, self.target]

    def move(self, action: Any) -> tuple[float, bool]:
        self.turn += 0.05 * (40 * float(action[0]) - 4 * self.turn)  # degrees/s
        self.angle = float(np.clip(self.angle + 0.05 * self.turn, -180, 180))
        return -((self.angle - self.target) ** 2), False

    @staticmethod
    def expert(obs: np.ndarray) -> Any:
        angle, turn, target = obs
        return np.clip([0.5 * (target - angle) - 0.06 * turn], -24, 12).astype(np.float32)


TASKS = {kind.__name__: kind for kind in (Tank, Heater, Stock, Reach, Pole, Motor)}
