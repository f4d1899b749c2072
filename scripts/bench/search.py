"""Simulations per second of tree searches, beside mctx on JAX and LightZero's C++ tree.

    python scripts/bench/search.py --peers PEERS_VENV [--batch 16] [--simulations 25] [--units 128] [--actions 4]

PEERS_VENV has mctx (`pip install mctx`), and for LightZero its wheel (`pip install --no-deps lightzero`) and torch. All
sides have the same model: dynamics and prediction with one hidden layer each. Our sides call the model as compiled code
(`ours`), as a replayed list of operations, or as plain torch; `numpy` has no C++ kernel. Each figure is of processor
time, which other programs disturb less. `not the model` is the share of the time of a search that its calls of the
model alone do not take.
"""

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from alternate import Figures, alternate, peer_python, serve, table

OBS, GAMMA = 8, 0.997
LAYERS = {  # name: inputs, outputs; 0 is the number of units, -1 of actions
    "root1": (OBS, 0),
    "root2": (0, 0),
    "dynamics1": (0, 0),
    "action": (-1, 0),
    "dynamics2": (0, 0),
    "reward": (0, 1),
    "hidden": (0, 0),
    "policy": (0, -1),
    "value": (0, 1),
}
MODEL = "only the model"
Search = Callable[[], Any]


def weights(args: argparse.Namespace) -> dict[str, Any]:
    import numpy as np

    random = np.random.default_rng(0)
    sizes = {0: args.units, -1: args.actions}
    shapes = {name: [sizes.get(size, size) for size in shape] for name, shape in LAYERS.items()}
    return {name: random.normal(0, rows**-0.5, (rows, n)).astype(np.float32) for name, (rows, n) in shapes.items()}


class TorchModel:
    def __init__(self, args: argparse.Namespace) -> None:
        import torch

        torch.set_num_threads(1)
        self.weights = {name: torch.from_numpy(array) for name, array in weights(args).items()}
        self.biases = {name: torch.zeros(array.shape[1]) for name, array in self.weights.items()}
        self.discount = torch.full((args.batch,), GAMMA)
        self.obs = torch.randn(args.batch, OBS, generator=torch.Generator().manual_seed(0))

    def linear(self, name: str, x: Any) -> Any:
        return self.biases[name].addmm(x, self.weights[name])

    def prediction(self, x: Any) -> tuple[Any, Any]:
        hidden = self.linear("hidden", x).relu()
        return self.linear("policy", hidden), self.linear("value", hidden).flatten()

    def root(self, obs: Any) -> tuple[Any, ...]:
        x = self.linear("root2", self.linear("root1", obs).relu())
        return x, *self.prediction(x)

    def recurrent(self, embedding: Any, action: Any) -> tuple[Any, ...]:
        x = self.linear("dynamics1", embedding) + self.weights["action"].index_select(0, action)
        x = self.linear("dynamics2", x.relu())
        return self.linear("reward", x).flatten(), self.discount, *self.prediction(x), x


def ours(args: argparse.Namespace) -> dict[str, Search]:
    import numpy as np
    import torch

    from drl_cli.chains.chain import Chain
    from drl_cli.chains.replays import Replays
    from drl_cli.chains.when import When
    from drl_cli.search import compiled, run
    from drl_cli.search.model import Repeated

    plain = TorchModel(args)
    model: Any = plain
    if args.side in ("ours", "numpy"):
        model = Repeated(plain, lambda call: Chain(call, None, When("before")))
    elif args.side == "replayed":
        model = Repeated(plain, lambda call: Replays(call, None))
    if args.side == "numpy":
        compiled.load = lambda: None
    elif compiled.load() is None:
        raise SystemExit("the kernel was not compiled")
    random = np.random.default_rng(0)
    dirichlet = random.dirichlet([0.3] * args.actions, args.batch)
    noise = random.gumbel(size=(args.batch, args.actions))
    embedding, action = torch.zeros(args.batch, args.units), torch.zeros(args.batch, dtype=torch.int64)

    @torch.no_grad()
    def only_the_model() -> None:
        model.root(plain.obs)
        for _ in range(args.simulations):
            model.recurrent(embedding, action)

    return {
        "PUCT": lambda: run.puct(model, plain.obs, args.simulations, noise=dirichlet),
        "Gumbel": lambda: run.gumbel(model, plain.obs, args.simulations, noise),
        MODEL: only_the_model,
    }


def mctx(args: argparse.Namespace) -> dict[str, Search]:
    import os

    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    import jax
    import jax.numpy as jnp
    import mctx
    import numpy as np

    params = {name: jnp.asarray(array) for name, array in weights(args).items()}
    obs = jnp.asarray(np.random.default_rng(1).normal(size=(args.batch, OBS)), jnp.float32)

    def linear(params: Any, name: str, x: Any) -> Any:
        return x @ params[name] + jnp.zeros(params[name].shape[1])

    def prediction(params: Any, x: Any) -> tuple[Any, Any]:
        hidden = jax.nn.relu(linear(params, "hidden", x))
        return linear(params, "policy", hidden), linear(params, "value", hidden)[:, 0]

    def recurrent(params: Any, key: Any, action: Any, embedding: Any) -> tuple[Any, Any]:
        x = jax.nn.relu(linear(params, "dynamics1", embedding) + params["action"][action])
        x = linear(params, "dynamics2", x)
        logits, value = prediction(params, x)
        reward, discount = linear(params, "reward", x)[:, 0], jnp.full(args.batch, GAMMA)
        return mctx.RecurrentFnOutput(reward=reward, discount=discount, prior_logits=logits, value=value), x

    def task(policy: Any) -> Search:
        @jax.jit
        def search(params: Any, key: Any, obs: Any) -> Any:
            x = linear(params, "root2", jax.nn.relu(linear(params, "root1", obs)))
            logits, value = prediction(params, x)
            root = mctx.RootFnOutput(prior_logits=logits, value=value, embedding=x)
            found = policy(params, key, root, recurrent, num_simulations=args.simulations)
            return found.action, found.action_weights, found.search_tree.node_values[:, 0]

        key = jax.random.PRNGKey(0)
        return lambda: [np.asarray(x) for x in search(params, key, obs)]

    return {"PUCT": task(mctx.muzero_policy), "Gumbel": task(mctx.gumbel_muzero_policy)}


def lightzero(args: argparse.Namespace) -> dict[str, Search]:
    """The loops of lzero/mcts/tree_search/mcts_ctree.py around LightZero's compiled trees, with our plain model."""
    import numpy as np
    import torch

    def load(folder: str, name: str) -> Any:
        [path] = Path(sys.prefix).glob(f"lib/python*/site-packages/lzero/mcts/ctree/{folder}/{name}*.so")
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    model, batch, simulations = TorchModel(args), args.batch, args.simulations
    puct_tree, gumbel_tree = load("ctree_muzero", "mz_tree"), load("ctree_gumbel_muzero", "gmz_tree")
    noises = np.random.default_rng(0).dirichlet([0.3] * args.actions, batch).astype(np.float32).tolist()
    legal, to_play = [[*range(args.actions)]] * batch, [-1] * batch

    @torch.no_grad()
    def search(tree: Any, is_gumbel: bool) -> Any:
        root, logits, value = model.root(model.obs)
        roots = tree.Roots(batch, legal)
        values = [value.tolist()] if is_gumbel else []
        roots.prepare(0.25, noises, [0.0] * batch, *values, logits.tolist(), to_play)
        pool, bounds = [root.numpy()], tree.MinMaxStatsList(batch)
        bounds.set_delta(0.01)
        for i in range(simulations):
            results = tree.ResultsWrapper(num=batch)
            if is_gumbel:
                chosen = tree.batch_traverse(roots, simulations, 16, GAMMA, results, to_play)
            else:
                chosen = tree.batch_traverse(roots, 19652, 1.25, GAMMA, bounds, results, to_play)
            nodes, rows, actions, players = chosen
            embedding = torch.from_numpy(np.asarray([pool[x][y] for x, y in zip(nodes, rows, strict=True)]))
            action = torch.from_numpy(np.asarray(actions)).long()
            reward, _, logits, value, following = model.recurrent(embedding, action)
            pool.append(following.numpy())
            back = tree.batch_back_propagate if is_gumbel else tree.batch_backpropagate
            back(i + 1, GAMMA, reward.tolist(), value.tolist(), logits.tolist(), bounds, results, players)
        return roots.get_distributions(), roots.get_values()

    return {"PUCT": lambda: search(puct_tree, False), "Gumbel": lambda: search(gumbel_tree, True)}


SIDES = {"ours": ours, "replayed": ours, "plain torch": ours, "numpy": ours, "mctx": mctx, "lightzero": lightzero}


def played(args: argparse.Namespace) -> Callable[[], Figures]:
    searches = SIDES[args.side](args)
    for _ in range(5):  # compiles, and records
        for search in searches.values():
            search()

    def play() -> Figures:
        figures, speeds = Figures(), dict[str, float]()
        for name, search in searches.items():
            num, begin, wall = 0, time.process_time(), time.perf_counter()
            while (spent := time.process_time() - begin) < args.seconds:
                search()
                num += args.batch * args.simulations
            speeds[name] = num / spent
            if name != MODEL:
                figures[f"{name}, simulations/s of processor time"] = num / spent
                figures[f"{name}, simulations/s"] = num / (time.perf_counter() - wall)
        if model := speeds.pop(MODEL, None):
            figures |= {f"{name}, not the model": 1.0 - speed / model for name, speed in speeds.items()}
        return figures

    return play


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path)
    for name, default in (("batch", 16), ("simulations", 25), ("units", 128), ("actions", 4), ("rounds", 7)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--seconds", type=float, default=0.3, help="of processor time for each figure of a round")
    parser.add_argument("--sides", nargs="+", default=[*SIDES], choices=SIDES)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        serve(played(args))
        return
    sizes = [
        word
        for name in ("batch", "simulations", "units", "actions", "seconds")
        for word in (f"--{name}", getattr(args, name))
    ]
    commands = {}
    for side in args.sides:
        is_peer = side in ("mctx", "lightzero")
        if not is_peer or args.peers:
            python = peer_python(args.peers) if is_peer else sys.executable
            commands[side] = [python, __file__, *sizes, "--side", side]
    print(table(alternate(commands, args.rounds)), flush=True)


if __name__ == "__main__":
    main()
