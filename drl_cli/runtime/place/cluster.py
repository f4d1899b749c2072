"""Check an existing Ray cluster: whether it answers, whether its nodes fit this run, and which files they need."""

import importlib.util
import os
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from drl_cli.errors import ClusterUnfit
from drl_cli.runtime.place.session_folder import token_path
from drl_cli.utils.machine import Node

MAX_SHIPPED_MB = 50
VARIABLES = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


@dataclass(frozen=True)
class Answer:
    """Versions on a node. `package` is None if drl_cli can't be imported there. `problem` is an error text or None."""

    python: str
    ray: str
    package: str | None
    problem: str | None


def process_variables() -> dict[str, str]:
    """Return environment variables for all processes. By default, torch uses one thread, and all GPUs are visible."""
    return VARIABLES | {name: os.environ[name] for name in (*VARIABLES, "OMP_WAIT_POLICY") if name in os.environ}


def share_cores(mode: str) -> None:
    """Make waiting OpenMP threads sleep in mode=async. Call this before torch is imported.

    In mode=async, workers and trainer share the cores. With busy waiting, the trainer's threads would wait 20 times as
    long. In the other modes busy waiting, which is OpenMP's default, is faster.
    """
    if mode == "async":
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def unreachable(address: str) -> str | None:
    """Return why no cluster can be joined at `address`, or None. Ray would try for minutes and give no reason."""
    if os.environ.get("RAY_USE_TLS") == "1":
        return None
    token = _token()
    refusal = _refusal(address, token)
    if refusal == "UNAUTHENTICATED":
        ours = "ours is another" if token else "we have none"
        return (
            f"ray.address: the cluster at {address} asks for a token and {ours}. Set RAY_AUTH_MODE=token and "
            "RAY_AUTH_TOKEN=... (or RAY_AUTH_TOKEN_PATH) to those of the cluster"
        )
    if refusal:
        return f"ray.address: no Ray cluster answers at {address}. Start one there: ray start --head --port=..."
    return None


def _refusal(address: str, token: str | None) -> str | None:
    """Return the name of the gRPC error with which the cluster at `address` answers, or None if it lets us in."""
    import grpc

    with grpc.insecure_channel(address) as channel:
        ask = channel.unary_unary("/ray.rpc.NodeInfoGcsService/GetClusterId")
        try:
            ask(b"", timeout=5, metadata=[("authorization", f"Bearer {token}")] if token else None)
        except grpc.RpcError as error:
            return str(error.code().name)
    return None


def found_here(own: str | None, look: Callable[[], Sequence[str]]) -> str:
    """Return RAY_ADDRESS, or else `own`, the address that a file of this user names.

    Raise ClusterUnfit if there is neither. The message names the reachable addresses that `look` returns: their
    clusters may belong to other users, so the user has to type the address. Addresses at 127.0.0.1 are left out,
    because they are private sessions of other runs, and an attempt to join would never end.
    """
    if address := os.environ.get("RAY_ADDRESS") or own:
        return address  # the caller shows why this address is unreachable
    others = [address for address in look() if not address.startswith("127.0.0.1:") and unreachable(address) is None]
    if others:
        raise ClusterUnfit(
            [
                f"ray.address=auto: you have started no Ray cluster here. Found: {', '.join(others)}. It may belong to "
                f"another user; to join it, type its address: ray.address={others[0]}"
            ]
        )
    raise ClusterUnfit(
        [
            "ray.address=auto: no Ray cluster runs here. Start one (ray start --head), name one "
            "(ray.address=host:port), or leave ray.address out to start a new session"
        ]
    )


def why_not_joined(address: str, error: Exception) -> str:
    """Return one line that explains why Ray could not join the cluster."""
    return f"ray.address={address}: {' '.join(str(error).split())}"


def _token() -> str | None:
    """Return the token that Ray would send: from the environment, from the file named there, or ~/.ray/auth_token."""
    return _own_token() if os.environ.get("RAY_AUTH_MODE", "").lower() == "token" else None


def _own_token() -> str | None:
    if os.environ.get("RAY_AUTH_TOKEN"):
        return os.environ["RAY_AUTH_TOKEN"]
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or token_path())
    return path.read_text().strip() if path.is_file() else None


def take_token(address: str) -> bool:
    """Set RAY_AUTH_MODE=token if the cluster asks for a token, this user has one, and the variable is not set.

    Return whether the variable was set. Every run without ray.address leaves a token, so that a cluster which the user
    starts later asks for it.
    """
    is_open = "RAY_AUTH_MODE" in os.environ or os.environ.get("RAY_USE_TLS") == "1" or _own_token() is None
    is_needed = not is_open and _refusal(address, None) == "UNAUTHENTICATED"
    if is_needed:
        os.environ["RAY_AUTH_MODE"] = "token"
    return is_needed


def unfit(answers: Mapping[Node, Answer | None], ours: Answer) -> list[str]:
    """Return a line for each node that can't run the roles of this run. None means that a node did not answer."""
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
    """Return the files and packages to send to the nodes: these modules, and imported modules from the same folders.

    Installed packages are not sent; they must be installed on the nodes. Raise ValueError if a package is larger than
    `max_mb`.
    """
    needed = {module.split(".", 1)[0] for module in modules}
    folders = {path.parent for path in map(_location, needed) if path is not None}
    names = {name.split(".", 1)[0] for name in sys.modules} - {__package__.split(".", 1)[0], "__main__"}
    found = {path for path in map(_location, names | needed) if path is not None and path.parent in folders}
    for path in sorted(found):
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) / 2**20 if path.is_dir() else 0
        if size > max_mb:
            raise ValueError(
                f"{', '.join(modules)}: {path} is too large to ship to the nodes ({size:.0f} MB): install it there"
            )
    return sorted(found)


def _location(module: str) -> Path | None:
    """Return the file or folder of a top-level module, or None if the module is installed or has no file."""
    try:
        spec = importlib.util.find_spec(module)
    except ValueError:  # an entry of sys.modules that is not an importable module
        return None
    if spec is None or not spec.has_location or spec.origin is None:
        return None
    path = Path(spec.origin).resolve()
    standard = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")}
    if standard & set(path.parents) or {"site-packages", "dist-packages"} & set(path.parts):
        return None
    return path.parent if spec.submodule_search_locations else path
