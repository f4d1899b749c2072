"""Minari's DataCollector uses one function of jax. This file replaces it where jax is not installed."""

import importlib.util
import sys
import types


def install(monkeypatch):
    if importlib.util.find_spec("jax") is None:
        module = types.ModuleType("jax.tree_util")
        module.tree_map = tree_map
        monkeypatch.setitem(sys.modules, "jax", types.ModuleType("jax"))
        monkeypatch.setitem(sys.modules, "jax.tree_util", module)


def tree_map(function, tree, *others):
    if isinstance(tree, dict):
        return {key: tree_map(function, value, *(other[key] for other in others)) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(tree_map(function, *values) for values in zip(tree, *others, strict=True))
    return function(tree, *others)
