"""Find which packages of an extra are installed or missing, from package metadata and without importing them."""

from importlib.metadata import PackageNotFoundError, distribution, version

from packaging.requirements import Requirement


def version_of(package: str) -> str | None:
    """Return the installed version of a package, or None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def extras(package: str = "drl-cli") -> list[str]:
    """Return the package's extras, except those for development, or [] if the package is not installed."""
    if version_of(package) is None:
        return []
    names = distribution(package).metadata.get_all("Provides-Extra") or []
    return [name for name in names if name != "dev"]


def missing(package: str, extra: str = "") -> list[str]:
    """Return the missing dependencies of an installed package, or of its extra, including nested extras."""
    lacking: list[str] = []
    for needed in map(Requirement, distribution(package).requires or []):
        is_always = needed.marker is None or needed.marker.evaluate({"extra": ""})
        is_for_extra = needed.marker is not None and needed.marker.evaluate({"extra": extra}) and not is_always
        if not (is_for_extra if extra else is_always):
            continue
        if version_of(needed.name) is None:
            lacking.append(needed.name)
        else:
            lacking += [name for inner in sorted(needed.extras) for name in missing(needed.name, inner)]
    return lacking
