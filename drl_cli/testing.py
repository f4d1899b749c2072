"""What every algorithm has to do, checked for a module of yours as for ours; plain asserts, with pytest or without.

    def test_my_algorithm():
        check_algorithm("my_algo", "env=Pendulum-v1")
        check_learning("my_algo", "algo.lr=3e-3", updates=600)

Names and overrides are those of drl-train's command line.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from drl_cli.algos.base import Algorithm, Batch, Counts, Policy, Update
from drl_cli.algos.lookup import load_algorithm, refusal
from drl_cli.cli.compose import compose
from drl_cli.envs.batch import EnvBatch
from drl_cli.envs.make import read_spec
from drl_cli.networks.inputs import MASK, leaves
from drl_cli.replay.builders import NStepBuilder, RolloutBuilder
from drl_cli.replay.samplers import Uniform
from drl_cli.replay.store import RingStore
from drl_cli.types import Array, Column, Columns, Obs, Schema, transition_schema
from drl_cli.utils.group import Context, Group
from drl_cli.utils.lazy import torch
from drl_cli.utils.params import Params, Refused

ROWS = 16
PROBES = {"box": "drl_cli.envs.probes:Reach-v0", "discrete": "drl_cli.envs.probes:Choose-v0"}
"""What `check_learning` learns, by kind of actions: the best action is the observation, and its index."""


def check_algorithm(name: str, *overrides: str) -> None:
    """Raise AssertionError saying what an algorithm does not do that the program needs of it.

    That is: parameters that fit the policy, actions of the environment's form, equal seeds equal results, a state that
    goes on to the last bit, two learners that are equal to one with all their rows, a skipped update that changes
    nothing. Layers that two learners can't share are no failure: the program refuses them by name.
    """
    case = Case(name, *overrides)
    problem = refusal(name, case.spec, case.module.MODES[0], case.module.TABLES[0])
    assert problem is None, problem
    for check in (check_parameters, check_actions, check_update, check_resume, check_learners, check_skip):
        check(case)


class Case:
    """An algorithm in one environment, and batches of random rows for it."""

    def __init__(self, name: str, *overrides: str) -> None:
        self.module = load_algorithm(name)
        env = [] if any(one.startswith("env=") for one in overrides) else [f"env={PROBES[self.module.ACTIONS[0]]}"]
        self.config = compose([f"algo={name}", "mode=single", *env, *overrides])
        self.spec = read_spec(self.config.env)
        self.is_on_policy = "fifo-once" in self.module.TABLES
        options = (self.config.algo, self.config.network, self.spec)
        self.extra: Schema = self.module.Policy.extra_columns(*options)

    def algorithm(self, seed: int = 0, context: Context | None = None) -> Algorithm:
        """As a trainer makes it: torch's own generator is seeded too."""
        torch.manual_seed(seed)
        context = context or Context(torch.device("cpu"))
        return self.module.Algorithm(self.config.algo, self.config.network, self.spec, seed, context)

    def policy(self, seed: int = 0, algorithm: Algorithm | None = None) -> Policy:
        """As a worker makes it."""
        policy = self.module.Policy(self.config.algo, self.config.network, self.spec, seed)
        algorithm = algorithm or self.algorithm()
        policy.load(algorithm.policy_params())
        policy.explore(algorithm.exploration(0))
        return policy

    def obs(self, rows: int, seed: int = 5) -> Obs:
        """Random observations."""
        rng = np.random.default_rng(seed)
        parts = {path: _random(path, column, rows, rng) for path, column in leaves(self.spec.obs).items()}
        return parts[""] if list(parts) == [""] else parts

    def batch(self, seed: int = 0, rows: int = ROWS) -> dict[str, Any]:  # Any: as in Batch
        """Rows as replay gives them."""
        rng, obs = np.random.default_rng(seed), self.obs(rows, seed + 1)
        policy = self.policy(seed)
        columns: dict[str, Any] = dict(policy.act(obs) if self.is_on_policy else policy.random(obs))
        columns |= {
            "obs": obs,
            "next_obs": self.obs(rows, seed + 2),
            "reward": rng.standard_normal(rows, np.float32),
            "terminated": rng.random(rows) < 0.2,
            "truncated": rng.random(rows) < 0.2,
        }
        columns["discount"] = np.where(columns["terminated"], 0, 0.99).astype(np.float32)
        if self.is_on_policy:
            columns["cut"] = columns["terminated"] | columns["truncated"]
            columns["cut"][ROWS - 1 :: ROWS] = True  # as rollouts end; learners share them whole
        return _tensors(columns)

    def learn(self, algorithm: Algorithm, first: int, last: int, rows: int = ROWS) -> list[Update]:
        """Updates with these numbers."""
        return [algorithm.learn(self.batch(i, rows), Counts(i, 10 * i)) for i in range(first, last)]


def check_parameters(case: Case) -> None:
    """`policy_params` is what the policy loads, and `load_policy` its inverse."""
    algorithm, other = case.algorithm(0), case.algorithm(1)
    params = algorithm.policy_params()
    _check_column("policy_params", params, Column((), "float32"), len(params))
    policy = case.policy()
    for wrong in (params[:-1], np.append(params, params[:1])):
        try:
            policy.load(wrong)
        except ValueError:
            continue
        raise AssertionError(f"Policy.load takes {len(wrong)} parameters; policy_params gives {len(params)}")
    params.flags.writeable = False
    policy.load(params)
    other.load_policy(params)
    assert np.array_equal(other.policy_params(), params), "load_policy is not the inverse of policy_params"
    algorithm.learn(case.batch(), Counts())
    assert not np.array_equal(algorithm.policy_params(), params), "an update changes nothing that the policy uses"
    assert np.array_equal(other.policy_params(), params), "two algorithms share parameters"


def check_actions(case: Case) -> None:
    """Actions have the environment's form; they follow from the seed, and the best ones from the observation alone."""
    policy, again, other = (case.policy(seed) for seed in (1, 1, 2))
    for rows in (1, 7, 50):
        obs, column = case.obs(rows), case.spec.action.column
        for how in ("act", "random"):
            drawn, same, another = (getattr(one, how)(obs) for one in (policy, again, other))
            assert drawn.keys() == {"action", *case.extra}, f"{how} gives {sorted(drawn)}"
            for key, values in drawn.items():
                _check_column(f"{how}: {key}", values, column if key == "action" else case.extra[key], rows)
            assert np.array_equal(drawn["action"], same["action"]), f"{how} does not follow from the seed"
            differ = rows < 50 or not np.array_equal(drawn["action"], another["action"])
            assert differ, f"{how} gives the same for two seeds: the policy does not explore by its own rng"
            _check_bounds(how, drawn, case)
        best = policy.greedy(obs)
        _check_column("greedy", best, column, rows)
        assert np.array_equal(best, other.greedy(obs)), "greedy depends on the seed"
        assert _equal(_tensors({"obs": obs}), _tensors({"obs": case.obs(rows)})), "the policy changes its observations"
    other.load_state(policy.state())
    ours, theirs = (one.act(case.obs(7))["action"] for one in (policy, other))
    assert np.array_equal(ours, theirs), "Policy.state does not hold all that acting depends on"


def check_update(case: Case) -> None:
    """An update learns, leaves its batch as it is, and gives finite numbers; weights and priorities fit each other."""
    algorithm, batch = case.algorithm(), case.batch()
    before = algorithm.state()
    update = algorithm.learn(batch, Counts())
    assert _equal(batch, case.batch()), "update changes its batch"
    assert not _equal(before, algorithm.state()), "update changes nothing"
    for name, value in update.metrics.items():
        assert getattr(value, "shape", None) == (), f"metric {name} has to be a scalar tensor, got {value!r}"
        assert torch.isfinite(value), f"metric {name} is {float(value)}"
    if update.priorities is None:
        return
    assert update.priorities.shape == (ROWS,), f"priorities have shape {list(update.priorities.shape)}, not [{ROWS}]"
    assert (update.priorities >= 0).all(), "priorities have to be 0 or more"
    ones, weighted = case.algorithm(), case.algorithm()
    ones.learn(case.batch() | {"weight": torch.ones(ROWS)}, Counts())
    weighted.learn(case.batch() | {"weight": torch.linspace(0.1, 1.0, ROWS)}, Counts())
    assert _close(ones.state(), algorithm.state()), "weights of 1 are not the same as no weights"
    assert not _equal(weighted.state(), algorithm.state()), "it gives priorities, and ignores the weights"


def check_resume(case: Case) -> None:
    """Equal seeds give equal updates, and a loaded state goes on to the last bit."""
    one, same, other = case.algorithm(3), case.algorithm(3), case.algorithm(4)
    case.learn(one, 0, 5)
    random = torch.get_rng_state()
    torch.manual_seed(3)
    same = case.algorithm(3)
    case.learn(same, 0, 5)
    assert _equal(one.state(), same.state()), "equal seeds give unequal updates"
    assert not np.array_equal(one.policy_params(), other.policy_params()), "all seeds begin with the same parameters"
    state = {name: tensor.clone() for name, tensor in one.state().items()}
    torch.set_rng_state(random)
    case.learn(one, 5, 10)
    other.load_state(state)
    torch.set_rng_state(random)
    case.learn(other, 5, 10)
    differ = [name for name, tensor in one.state().items() if not torch.equal(tensor, other.state()[name])]
    assert not differ, (
        f"a resumed run does not go on exactly: {', '.join(differ)}; all that it remembers has to be saved"
    )


def check_learners(case: Case, updates: int = 20) -> None:
    """Two learners with half of the rows each stay equal to one another, and to one with all rows."""
    groups = Together.pair()
    try:
        pair = [case.algorithm(0, Context(torch.device("cpu"), group)) for group in groups]
    except Refused:
        return
    alone = case.algorithm(0)
    batches = [case.batch(i, 2 * ROWS) for i in range(updates)]

    def learn(rank: int) -> None:
        for i, batch in enumerate(batches):
            pair[rank].learn(_rows(batch, slice(rank * ROWS, (rank + 1) * ROWS)), Counts(i, 10 * i))

    for i, batch in enumerate(batches):
        alone.learn(batch, Counts(i, 10 * i))
    groups[0].run(learn)
    first, second, one = (algorithm.state() for algorithm in (*pair, alone))
    for name, tensor in one.items():
        assert torch.equal(first[name], second[name]), f"two trainers drift apart: {name}; see trainer.num in the docs"
        error = float((first[name].float() - tensor.float()).abs().max()) if tensor.numel() else 0.0
        close = torch.allclose(first[name].float(), tensor.float(), rtol=1e-3, atol=1e-4)
        assert close, f"two trainers are not equal to one with all rows: {name} differs by {error:.3g}"


def check_skip(case: Case) -> None:
    """With trainer.on_nonfinite=skip an update of a batch that is not finite changes nothing."""
    algorithm = case.algorithm(0, Context(torch.device("cpu"), skips=True))
    case.learn(algorithm, 0, 3)
    before = algorithm.params.state() | algorithm.optimizer.state()
    batch = case.batch(3)
    batch["reward"][3] = np.inf
    update = algorithm.learn(batch, Counts(3, 30))
    assert (update.steps, update.skipped > 0) == (0, True), "an infinite reward was learned from"
    after = algorithm.params.state() | algorithm.optimizer.state()
    changed = [n for n, tensor in before.items() if not torch.equal(tensor, after[n]) and "generator." not in n]
    assert not changed, f"a skipped update changed {', '.join(changed)}"


def check_learning(name: str, *overrides: str, updates: int = 600) -> None:
    """Raise AssertionError where so many updates, one for each step of 8 environments, do not solve a probe."""
    case = Case(name, "env=" + PROBES[load_algorithm(name).ACTIONS[0]], "network.hidden=[32,32]", *overrides)
    policy = _learned(case, updates, num_envs=8)
    if case.spec.action.kind == "box":
        goals = np.linspace(-0.8, 0.8, 33, dtype=np.float32)[:, None]
        error = float(np.square(policy.greedy(goals) - goals).mean())
        assert error < 0.02, f"{name} misses the goals of Reach by {error:.3g} (mean square) after {updates} updates"
    else:
        chosen = policy.greedy(np.eye(3, dtype=np.float32)).tolist()
        assert chosen == [0, 1, 2], f"{name} chooses {chosen} in Choose after {updates} updates, best are [0, 1, 2]"


def check_gradients(
    params: Params,
    loss: "Callable[[], torch.Tensor]",
    write: Callable[[], object] | None = None,
    directions: int = 4,
    eps: float = 1e-3,
    tolerance: float = 0.02,
) -> None:
    """Raise AssertionError where `params.grad` is not the slope of `loss()`, by central differences in each part.

    `write` writes the gradients; by default `loss().backward()` does. Each direction, of length 1, has a random half
    and one up the gradient; slopes may differ by `tolerance` times the length of the part's gradient: all is float32.
    """
    params.grad.zero_()
    if write is None:
        loss().backward()  # type: ignore[no-untyped-call]
    else:
        write()
    params.collect()
    generator, all_of_it = torch.Generator().manual_seed(11), float(params.grad.norm())
    assert all_of_it > 0.0, "the gradient is 0"
    for name in [name for name in params.slices for _ in range(directions)]:
        part, grad = params[name].flat, params[name].grad
        flat, length = part.clone(), max(float(grad.norm()), 1e-2 * all_of_it)
        step = torch.nn.functional.normalize(torch.randn(len(flat), generator=generator), dim=0) + grad / length
        step /= step.norm()
        ends = []
        for sign in (1.0, -1.0):
            part.copy_(flat + sign * eps * step)
            ends.append(float(loss().detach()))
        part.copy_(flat)
        slope, told = (ends[0] - ends[1]) / (2 * eps), float(grad @ step)
        assert abs(slope - told) <= tolerance * length, (
            f"{name}: the slope is {slope:.6g}, the gradient says {told:.6g}"
        )


class Together(Group):
    """Learners in threads of one process, which average through memory."""

    def __init__(self, rank: int, members: "list[Together]") -> None:
        super().__init__(rank, 2)
        self.members, self.barrier = members, threading.Barrier(2, timeout=60.0)
        self.given: torch.Tensor | None = None

    @classmethod
    def pair(cls) -> "list[Together]":
        """Two that know each other."""
        members: list[Together] = []
        members += [cls(rank, members) for rank in range(2)]
        members[1].barrier = members[0].barrier
        return members

    def run(self, learn: Callable[[int], None]) -> None:
        """`learn(rank)` of both at once; raises what one of them raised."""
        errors: list[BaseException] = []

        def member(rank: int) -> None:
            try:
                learn(rank)
            except BaseException as error:
                errors.append(error)
                self.barrier.abort()

        threads = [threading.Thread(target=member, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    def _all_reduce(self, tensor: "torch.Tensor", operation: Any) -> None:  # Any: a torch.distributed.ReduceOp
        self.given = tensor.detach().clone()
        self.barrier.wait()
        both = torch.stack([member.given for member in self.members if member.given is not None])
        self.barrier.wait()
        is_sum = operation == torch.distributed.ReduceOp.SUM
        tensor.copy_(both.sum(0) if is_sum else both.max(0).values)


def _learned(case: Case, updates: int, num_envs: int) -> Policy:
    """The policy after so many updates in a plain loop: envs, builder, store; on-policy each update has a rollout."""
    algo = case.config.algo
    algorithm, envs = case.algorithm(), EnvBatch(case.config.env, case.spec, range(num_envs))
    policy, sampler = case.policy(0, algorithm), Uniform(np.random.default_rng(0))
    builder = RolloutBuilder(algo.gamma) if case.is_on_policy else NStepBuilder(algo.n_step, algo.gamma)
    store = RingStore(transition_schema(case.spec, case.extra), 10_000)
    steps, random_steps = (32, 0) if case.is_on_policy else (1, 20)
    for i in range(random_steps + updates):
        counts = Counts(max(0, i - random_steps), i * steps * num_envs)
        policy.load(algorithm.policy_params())
        policy.explore(algorithm.exploration(counts.env_steps))
        for _ in range(steps):
            obs = envs.obs.copy()
            columns = policy.random(obs) if i < random_steps else policy.act(obs)
            builder.append({"obs": obs, **columns, **vars(envs.step(columns["action"]))})
        rows = builder.take()
        if not case.is_on_policy:
            store.insert(rows)
            rows = store.take(sampler.sample(len(store), 1, 64).slots[0])
        if i >= random_steps:
            algorithm.learn(_tensors(rows), counts)
    policy.load(algorithm.policy_params())
    return policy


def _random(path: str, column: Column, rows: int, rng: np.random.Generator) -> Array:
    shape = (rows, *column.shape)
    if column.dtype == "bool":
        return np.ones(shape, np.bool_) if path == MASK else rng.random(shape) < 0.5
    if column.dtype == "float32":
        return rng.standard_normal(shape, np.float32)
    most = np.array(column.choices).reshape(column.shape) if column.choices else 256
    return rng.integers(most, size=shape).astype(column.dtype)


def _check_column(what: str, values: Array, column: Column, rows: int) -> None:
    given, needed = f"{values.dtype}{list(values.shape)}", f"{column.dtype}{[rows, *column.shape]}"
    assert given == needed, f"{what} is {given}, needed is {needed}"


def _check_bounds(how: str, columns: Columns, case: Case) -> None:
    action, spec = columns["action"], case.spec.action
    if spec.kind == "box":  # a sample of an unbounded density is clipped by the environment
        most = np.inf if how == "act" and "log_prob" in columns else 1.0
        assert np.abs(action).max() <= most, f"{how}: actions are in [-1, 1], got {float(np.abs(action).max())}"
    else:
        allowed = (action >= 0) & (action < np.array(spec.choices if action.ndim > 1 else spec.size))
        assert allowed.all(), f"{how}: choices count from 0 and are below {spec.choices}"


def _tensors(columns: Mapping[str, Any]) -> dict[str, Any]:  # Any: an array, or a dict of them
    return {n: _tensors(c) if isinstance(c, Mapping) else torch.from_numpy(c.copy()) for n, c in columns.items()}


def _rows(batch: Batch, where: slice) -> dict[str, Any]:  # Any: as in Batch
    return {name: _rows(c, where) if isinstance(c, Mapping) else c[where] for name, c in batch.items()}


def _equal(ours: Batch, theirs: Batch) -> bool:
    return ours.keys() == theirs.keys() and all(
        _equal(ours[n], theirs[n]) if isinstance(ours[n], Mapping) else torch.equal(ours[n], theirs[n]) for n in ours
    )


def _close(ours: Batch, theirs: Batch) -> bool:
    return all(torch.allclose(ours[name].float(), theirs[name].float(), rtol=1e-4, atol=1e-6) for name in ours)
