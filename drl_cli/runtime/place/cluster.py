"""A cluster that exists: is it there, is each of its nodes fit for this run, what has to be shipped to them."""

import importlib.util
import os
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MAX_SHIPPED_MB = 50
VARIABLES = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


@dataclass(frozen=True)
class Node:
    """A live node that takes work; `memory` [bytes] is what Ray gives out there."""

    id: str
    address: str
    cpus: float
    memory: int = 0

    def __str__(self) -> str:
        return f"node {self.address} ({self.id[:6]})"


@dataclass(frozen=True)
class Answer:
    """What a node says of itself; `package` is None where ours can't be imported, `problem` what went wrong."""

    python: str
    ray: str
    package: str | None
    problem: str | None


def process_variables() -> dict[str, str]:
    """Environment of every process: one thread for numpy and torch (the trainer sets its own), all devices visible."""
    return VARIABLES | {name: os.environ[name] for name in (*VARIABLES, "OMP_WAIT_POLICY") if name in os.environ}


def share_cores(mode: str) -> None:
    """Have a trainer's threads wait asleep where workers use the same cores: waiting busily they wait 20 times as long.

    Before torch is imported. Elsewhere they wait as OpenMP has it, busily for some milliseconds, which is faster.
    """
    if mode == "async":
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def unreachable(address: str) -> str | None:
    """Why no cluster can be joined at host:port, or None. Ray itself would try for minutes and not say why."""
    if os.environ.get("RAY_USE_TLS") == "1":
        return None
    import grpc

    token = _token()
    with grpc.insecure_channel(address) as channel:
        ask = channel.unary_unary("/ray.rpc.NodeInfoGcsService/GetClusterId")
        try:
            ask(b"", timeout=5, metadata=[("authorization", f"Bearer {token}")] if token else None)
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.UNAUTHENTICATED:
                ours = "ours is another" if token else "we have none"
                return (
                    f"ray.address: the cluster at {address} asks for a token and {ours}. Set RAY_AUTH_MODE=token and "
                    "RAY_AUTH_TOKEN=... (or RAY_AUTH_TOKEN_PATH) to those of the cluster"
                )
            return f"ray.address: no Ray cluster answers at {address}. Start one there: ray start --head --port=..."
    return None


def why_not_joined(address: str, error: Exception) -> str:
    """What Ray raised, in one line."""
    if address == "auto" and isinstance(error, ConnectionError):
        return (
            "ray.address=auto: no Ray cluster runs here. Start one (ray start --head), name one "
            "(ray.address=host:port), or leave ray.address out for a session of our own"
        )
    return f"ray.address={address}: {' '.join(str(error).split())}"


def _token() -> str | None:
    """The token that Ray would send: from the environment, a file named there, or the user's own."""
    if os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
        return None
    if os.environ.get("RAY_AUTH_TOKEN"):
        return os.environ["RAY_AUTH_TOKEN"]
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    return path.read_text().strip() if path.is_file() else None


def unfit(answers: Mapping[Node, Answer | None], ours: Answer) -> list[str]:
    """A line for every node that can't run our roles; None is a node that did not answer."""
    problems = []
    for node, answer in answers.items():
        if answer is None:
            problems.append(f"{node} does not answer")
        elif (answer.python, answer.ray) != (ours.python, ours.ray):
            problems.append(
                f"{node} has Python {answer.python} and Ray {answer.ray}, here are {ours.python} and {ours.ray}: "
                "install the same on both"
            )
        elif answer.package is not None and answer.package != ours.package:
            problems.append(f"{node} has drl-cli {answer.package}, here is {ours.package}: install the same on both")
        elif answer.problem is not None:
            problems.append(f"{node}: {answer.problem}")
    return problems


def shipped_modules(modules: Sequence[str], max_mb: float = MAX_SHIPPED_MB) -> list[Path]:
    """Files and packages that these modules need on the nodes: themselves, and what was imported from beside them.

    None for what is installed: that has to be installed on the nodes, too. Raises ValueError beyond `max_mb`.
    """
    needed = {module.split(".", 1)[0] for module in modules}
    folders = {path.parent for path in map(_location, needed) if path is not None}
    names = {name.split(".", 1)[0] for name in sys.modules} - {__package__.split(".", 1)[0], "__main__"}
    found = {path for path in map(_location, names | needed) if path is not None and path.parent in folders}
    for path in sorted(found):
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) / 2**20 if path.is_dir() else 0
        if size > max_mb:
            raise ValueError(
                f"{', '.join(modules)}: {path} has to be on the nodes; its {size:.0f} MB are too many to ship: "
                "install it there"
            )
    return sorted(found)


def _location(module: str) -> Path | None:
    """The file or folder of a top-level module that is not installed."""
    try:
        spec = importlib.util.find_spec(module)
    except ValueError:  # something in sys.modules that was never found as a module is
        return None
    if spec is None or not spec.has_location or spec.origin is None:
        return None
    path = Path(spec.origin).resolve()
    installed = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    if installed & set(path.parents):
        return None
    return path.parent if spec.submodule_search_locations else path
