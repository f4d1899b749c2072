"""Which packages are installed, by the metadata of drl-cli and of those that it names; nothing is imported."""

from importlib.metadata import PackageNotFoundError, distribution, version

from packaging.requirements import Requirement

DEVELOPMENT = ("dev",)


def version_of(package: str) -> str | None:
    """The version that is installed; None where it is not."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def extras(package: str = "drl-cli") -> list[str]:
    """Names of the extras that a user may want; none where the package is not installed."""
    if version_of(package) is None:
        return []
    names = distribution(package).metadata.get_all("Provides-Extra") or []
    return [name for name in names if name not in DEVELOPMENT]


def missing(package: str, extra: str = "") -> list[str]:
    """Names of the packages that one needs, or an extra of it, and that are not installed.

    Extras of what it needs (`gymnasium[mujoco]`) are looked into, versions are not. The package itself is installed.
    """
    lacking: list[str] = []
    for needed in _requirements(package, extra):
        if version_of(needed.name) is None:
            lacking.append(needed.name)
        else:
            lacking += [name for inner in sorted(needed.extras) for name in missing(needed.name, inner)]
    return lacking


def _requirements(package: str, extra: str) -> list[Requirement]:
    """Those of the package itself, or of the extra alone where one is named; for this Python and system."""
    every = map(Requirement, distribution(package).requires or [])
    if not extra:
        return [needed for needed in every if needed.marker is None or needed.marker.evaluate({"extra": ""})]
    return [needed for needed in every if needed.marker is not None and _is_of(needed, extra)]


def _is_of(needed: Requirement, extra: str) -> bool:
    assert needed.marker is not None
    return needed.marker.evaluate({"extra": extra}) and not needed.marker.evaluate({"extra": ""})
