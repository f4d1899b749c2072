"""check_algorithm: the promises that every algorithm keeps."""

from collections.abc import Callable
from typing import Any

import numpy as np

from drl_cli.algos.base import Batch, Counts, Update
from drl_cli.config.rows import has_step_states
from drl_cli.errors import Refused
from drl_cli.preflight.algorithm import write_problems
from drl_cli.settings.algorithm import refusal
from drl_cli.testing.case import ROWS, Case, Together, close, equal, like, tensors
from drl_cli.types import Array, Column, Columns, PreviousStep, flat_columns, gathered, map_parts
from drl_cli.utils.lazy import Tensor, torch


def boundary_checks(case: Case) -> list[Callable[[Case], object]]:
    """Return the checks that a case with such rows has to pass."""
    checks: list[Callable[[Case], object]] = [check_padding] if case.sequences else []
    checks += [check_burn_in] if case.sequences and case.sequences.burn_in else []
    return [*checks, *([check_batch_end] if case.is_on_policy else [])]


def check_padding(case: Case) -> None:
    """Check that the values in the padding of sequences change neither parameters nor priorities of valid steps."""
    batch = case.batch()
    valid, noise = batch["valid"], case.batch(seed=1)
    once = () if has_step_states(case.config) else ("state",)
    filled = {name: _mixed(batch[name], noise[name], valid) for name in batch if name not in ("valid", *once)}
    _check_same(case, batch, batch | filled, "the padding of sequences")


def check_burn_in(case: Case) -> None:
    """Check that actions, rewards and episode ends of the burn-in steps do not change what is learned."""
    assert case.sequences is not None
    batch, noise = case.batch(), case.batch(seed=1)
    learned = torch.arange(case.sequences.length).expand_as(batch["valid"]) >= case.sequences.burn_in
    names = ("action", "reward", "discount", "terminated", "truncated")
    filled = {name: _mixed(batch[name], noise[name], learned) for name in names}
    _check_same(case, batch, batch | filled, "an action or reward of the burn-in")


def check_batch_end(case: Case) -> None:
    """Check that an on-policy batch may end inside an episode: its last row ends a piece, whatever its `cut` is."""
    batch = case.batch()
    for name in ("terminated", "truncated", "cut"):
        batch[name][-1] = False
    batch["discount"][-1] = 0.99
    closed = batch | {"cut": batch["cut"].clone()}
    closed["cut"][-1] = True
    one, two = case.algorithm(), case.algorithm()
    one.learn(batch, Counts())
    two.learn(closed, Counts())
    assert close(one.state(), two.state()), (
        "cut of the batch's last row changes what is learned; a batch may end inside an episode, where cut is False: "
        "use drl.Rollouts, or treat the last row as a cut"
    )


def _mixed(kept: Any, noise: Any, keep: Tensor) -> Any:  # Any: a tensor, or a dict of tensors
    """Return sequences `[rows, length, ...]`: the steps of `kept` where `keep` is True, steps of `noise` elsewhere."""
    if isinstance(kept, dict):
        return {name: _mixed(part, noise[name], keep) for name, part in kept.items()}
    return torch.where(like(keep, kept), kept, noise.roll(-1, 0))


def _check_same(case: Case, batch: Batch, other: Batch, what: str) -> None:
    assert case.sequences is not None
    assert not equal(batch, other), f"the test's batch does not have {what}"
    one, two = case.algorithm(), case.algorithm()
    first, second = one.learn(batch, Counts()), two.learn(other, Counts())
    assert close(one.state(), two.state()), f"{what} changes what is learned"
    if first.priorities is not None and second.priorities is not None:
        valid = batch["valid"][:, case.sequences.burn_in :]
        same = close({"": first.priorities[valid]}, {"": second.priorities[valid]})
        assert same, f"{what} changes priorities of valid steps"


UPDATES = 10
"""The policy's parameters have to change within this number of updates."""


def check_algorithm(name: str, *overrides: str) -> None:
    """Raise AssertionError at the first requirement that an algorithm does not meet; the message names the requirement.

    Parameters must fit the policy. Actions must fit the environment. Equal seeds must give equal results. Training must
    continue bit-equally from a loaded state. Two trainers must give the same parameters as one trainer with all rows. A
    skipped update must change nothing. Replayed updates must compute the same bits. An algorithm may refuse several
    trainers if its layers work only with one.
    """
    case = Case(name, *overrides)
    problem = refusal(case.config.algo.name, case.spec, case.module.MODES[0], case.config.replay.table)
    assert problem is None, problem
    checks: list[Callable[[Case], object]] = [
        check_parameters,
        check_actions,
        check_update,
        check_columns,
        check_resume,
        check_trainers,
        check_skip,
        check_replays,
        *boundary_checks(case),
    ]
    for check in checks:
        check(case)


def check_parameters(case: Case) -> None:
    """Check that the policy loads what `policy_params` returns, and that `load_policy` is the inverse function."""
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
    parts = {name: algorithm.params[name].flat.clone() for name in algorithm.params.slices}
    policy.load(params)
    other.load_policy(params)
    assert np.array_equal(other.policy_params(), params), "load_policy is not the inverse of policy_params"
    case.learn(algorithm, 0, UPDATES)  # an algorithm may update its policy less often than its critic
    is_changed = not np.array_equal(algorithm.policy_params(), params)
    hint = "if a part is updated less often, pass the option that makes it more often, such as algo.actor_period=2"
    assert is_changed, f"{UPDATES} updates change nothing that the policy uses; {hint}"
    still = [name for name, flat in parts.items() if len(flat) and torch.equal(algorithm.params[name].flat, flat)]
    assert not still, f"{UPDATES} updates do not change the parameters of {', '.join(still)}; {hint}"
    assert np.array_equal(other.policy_params(), params), "two algorithms share parameters"


def check_actions(case: Case) -> None:
    """Check that actions fit the environment, equal seeds give equal actions, and `greedy` ignores the seed."""
    policy, same_seed, other = (case.policy(seed) for seed in (1, 1, 2))
    for rows in (1, 7, 50):
        obs, column, last = case.obs(rows), case.spec.action.column, PreviousStep.none(case.spec, rows)
        for how in ("act", "random"):
            drawn, again, _ = (getattr(one, how)(obs, last) for one in (policy, same_seed, other))
            assert drawn.keys() == {"action", *case.extra}, f"{how} gives {sorted(drawn)}"
            for key, values in drawn.items():
                _check_column(f"{how}: {key}", values, column if key == "action" else case.extra[key], rows)
            assert np.array_equal(drawn["action"], again["action"]), f"{how} does not follow from the seed"
            if rows == 50:  # all rows of a call may share their noise, so many calls are compared
                trio = (policy, same_seed, other)
                calls = [[getattr(one, how)(obs, last)["action"] for _ in range(20)] for one in trio]
                differ = not np.array_equal(calls[0], calls[2])
                assert differ, f"{how} gives the same for two seeds: the policy does not explore by its own rng"
            _check_bounds(how, drawn, case)
        best = policy.greedy(obs, last)
        _check_column("greedy", best, column, rows)
        assert np.array_equal(best, other.greedy(obs, last)), "greedy depends on the seed"
        assert equal(tensors({"obs": obs}), tensors({"obs": case.obs(rows)})), "the policy changes its observations"
    last = PreviousStep.none(case.spec, 7)
    policy.act(case.obs(7), last)
    other.load_state(policy.state())
    within = last._replace(begins=np.zeros(7, np.bool_))  # a later step of the same episodes
    acted, restored = (one.act(case.obs(7, seed=6), within) for one in (policy, other))
    is_same = all(np.array_equal(acted[key], restored[key]) for key in acted)
    assert is_same, "Policy.state does not hold everything that act depends on"


def check_update(case: Case) -> None:
    """Check that an update changes parameters but not the batch, returns finite metrics, and uses the weights."""
    algorithm, batch = case.algorithm(), case.batch()
    before = algorithm.state()
    update = algorithm.learn(batch, Counts())
    assert equal(batch, case.batch()), "update changes its batch"
    assert not equal(before, algorithm.state()), "update changes nothing"
    for name, value in update.metrics.items():
        assert getattr(value, "shape", None) == (), f"metric {name} has to be a scalar tensor, got {value!r}"
        assert torch.isfinite(value), f"metric {name} is {float(value)}"
    if update.priorities is None:
        return
    needed = [ROWS] if case.sequences is None else [ROWS, case.sequences.seq_len]
    given = list(update.priorities.shape)
    assert given == needed, f"priorities have shape {given}, not {needed}"
    assert (update.priorities >= 0).all(), "priorities have to be 0 or more"
    ones, weighted = case.algorithm(), case.algorithm()
    ones.learn(case.batch() | {"weight": torch.ones(ROWS)}, Counts())
    weighted.learn(case.batch() | {"weight": torch.linspace(0.1, 1.0, ROWS)}, Counts())
    assert close(ones.state(), algorithm.state()), "weights of 1 are not the same as no weights"
    uses_weights = not equal(weighted.state(), algorithm.state())
    assert uses_weights or not case.module.WEIGHTS, (
        "update gives priorities, but ignores the weights; if the algorithm needs none, set WEIGHTS = False"
    )


def check_columns(case: Case) -> None:
    """Check that `Update.columns` has the columns in `WRITES`, with the shapes and dtypes of the batch's columns."""
    batch, writes = case.batch(), case.module.WRITES
    columns = case.algorithm().learn(batch, Counts()).columns
    unknown = sorted(columns.keys() ^ {*writes})
    assert not unknown, f"Update.columns has {sorted(columns)}, and WRITES has {sorted(writes)}: {', '.join(unknown)}"
    if not writes:
        return
    for problem in write_problems(case.config, case.spec):
        raise AssertionError(problem)
    stored = {key: part for name, column in batch.items() for key, part in flat_columns(name, column).items()}
    for name, values in columns.items():
        given, needed = (f"{column.dtype}{list(column.shape)}" for column in (values, stored[name]))
        assert given == needed, f"Update.columns: {name} is {given}, needed is {needed}"
        assert not values.requires_grad, f"Update.columns: {name} has a gradient; say .detach()"
        is_finite = not values.is_floating_point() or torch.isfinite(values).all()
        assert is_finite, f"Update.columns: {name} is not finite"


def check_resume(case: Case) -> None:
    """Check that equal seeds give equal updates, and that an algorithm continues bit-equally from a loaded state."""
    one, same, other = case.algorithm(3), case.algorithm(3), case.algorithm(4)
    case.learn(one, 0, 5)
    random = torch.get_rng_state()
    torch.manual_seed(3)
    same = case.algorithm(3)
    case.learn(same, 0, 5)
    assert equal(one.state(), same.state()), "equal seeds give unequal updates"
    assert not np.array_equal(one.policy_params(), other.policy_params()), "all seeds start with the same parameters"
    state = {name: tensor.clone() for name, tensor in one.state().items()}
    torch.set_rng_state(random)
    case.learn(one, 5, 10)
    other.load_state(state)
    torch.set_rng_state(random)
    case.learn(other, 5, 10)
    differ = [name for name, tensor in one.state().items() if not torch.equal(tensor, other.state()[name])]
    assert not differ, f"a resumed run differs in {', '.join(differ)}; save everything that the algorithm remembers"


def check_trainers(case: Case, updates: int = 20) -> None:
    """Check that two trainers, with half of the rows each, stay equal, and match one trainer with all rows."""
    groups = Together.pair()
    try:
        pair = [case.algorithm(0, case.context(group)) for group in groups]
    except Refused:
        return
    single = case.algorithm(0)
    batches = [case.batch(i, 2 * ROWS) for i in range(updates)]

    def learn(rank: int) -> None:
        mine = slice(rank * ROWS, (rank + 1) * ROWS)
        for i, batch in enumerate(batches):
            pair[rank].learn(map_parts(lambda column: column[mine], batch), Counts(i, 10 * i))

    for i, batch in enumerate(batches):
        single.learn(batch, Counts(i, 10 * i))
    groups[0].run(learn)
    first, second, one = (algorithm.state() for algorithm in (*pair, single))
    for name, tensor in one.items():
        assert torch.equal(first[name], second[name]), f"two trainers drift apart: {name}; see trainer.num in the docs"
        error = float((first[name].float() - tensor.float()).abs().max()) if tensor.numel() else 0.0
        is_close = torch.allclose(first[name].float(), tensor.float(), rtol=1e-3, atol=1e-4)
        assert is_close, f"two trainers are not equal to one with all rows: {name} differs by {error:.3g}"


def check_skip(case: Case) -> None:
    """Check that, with trainer.on_nonfinite=skip, an update with an infinite reward changes nothing.

    An algorithm that does not use rewards passes.
    """
    algorithm = case.algorithm(0, case.context(skips=True))
    case.learn(algorithm, 0, 3)
    before = algorithm.params.state() | algorithm.optimizer.state()
    batch = case.batch(3)
    batch["reward"][3] = np.inf
    update = algorithm.learn(batch, Counts(3, 30))
    if update.steps and _ignores_rewards(case):
        return
    assert (update.steps, update.skipped > 0) == (0, True), "an infinite reward was learned from"
    after = algorithm.params.state() | algorithm.optimizer.state()
    changed = [n for n, tensor in before.items() if not torch.equal(tensor, after[n]) and "generator." not in n]
    assert not changed, f"a skipped update changed {', '.join(changed)}"


def _ignores_rewards(case: Case) -> bool:
    """Return whether rewards change nothing, as for an algorithm that imitates actions."""
    one, other = case.algorithm(), case.algorithm()
    one.learn(case.batch(), Counts())
    other.learn(case.batch() | {"reward": torch.zeros(ROWS)}, Counts())
    return equal(one.state(), other.state())


def check_replays(case: Case, updates: int = 14) -> list[str]:
    """Check that replays (trainer.compile=replay) compute the same bits as updates; return why some can't be replayed.

    A replay repeats the tensor operations of earlier updates. So `update` must not depend on anything in Python that
    changes from call to call, but on `counts`.
    """
    plain, context = case.algorithm(3), case.context(replays=True)
    state = torch.get_rng_state()
    replayed = case.algorithm(3, context)

    def update(columns: Columns, counts: Counts) -> dict[str, Tensor]:
        return _results(replayed.learn(gathered(dict(columns)), counts))

    run = context.chain_of(update, replayed, dict) if replayed.is_one_step else update
    for i in range(updates):
        for algorithm in (plain, replayed):
            algorithm.optimizer.schedule(10 * i)
        batch, counts = case.batch(i), Counts(i, 10 * i)
        torch.set_rng_state(state)
        ours = _results(plain.learn(batch, counts))
        torch.set_rng_state(state)
        flat = {key: part for name, column in batch.items() for key, part in flat_columns(name, column).items()}
        theirs = run(flat, counts)
        state = torch.get_rng_state()
        ours, theirs = ours | plain.state(), theirs | replayed.state()
        differ = [name for name, value in ours.items() if name not in theirs or not torch.equal(value, theirs[name])]
        assert not differ, (
            f"a replayed update gives another {differ[0]} than `update` itself: it depends on something in Python that "
            "changes from call to call, such as an own count or random number; use `counts` and torch's generators"
        )
    return [one.why for one in context.recorded if one.why is not None]


def _results(update: Update) -> dict[str, Tensor]:
    priorities = {} if update.priorities is None else {"priorities": update.priorities}
    return {**update.metrics, **update.columns, **priorities}


def _check_column(what: str, values: Array, column: Column, rows: int) -> None:
    given, needed = f"{values.dtype}{list(values.shape)}", f"{column.dtype}{[rows, *column.shape]}"
    assert given == needed, f"{what} is {given}, needed is {needed}"


def _check_bounds(how: str, columns: Columns, case: Case) -> None:
    action, spec = columns["action"], case.spec.action
    if spec.kind == "box":  # a sample may be outside [-1, 1]: the environment clips it
        most = np.inf if how == "act" and "log_prob" in columns else 1.0
        assert np.abs(action).max() <= most, f"{how}: actions are in [-1, 1], got {float(np.abs(action).max())}"
    else:
        allowed = (action >= 0) & (action < np.array(spec.choices if action.ndim > 1 else spec.size))
        assert allowed.all(), f"{how}: choices count from 0 and are below {spec.choices}"
