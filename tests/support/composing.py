"""Compose the config of a drl-train command line in milliseconds. A test compares it with what Hydra composes."""

import copy
import functools


def compose_plain(*overrides):
    """Return the plain mapping that Hydra composes from these overrides.

    Our options are merged, and values are put in, as Hydra does it. Hydra composes everything itself if an option is
    the user's, or if an override is more than a value for a key.
    """
    from drl_cli.settings.conf import conf_dir, groups, own_dirs, tuned_section
    from drl_cli.settings.first_try import with_first_try

    conf, names = conf_dir(), groups()
    parsed = [_parsed(each) for each in overrides]
    choices = {each.key_or_group: each.value() for each in parsed if each.key_or_group in names}
    values = [each for each in parsed if each.key_or_group not in names]
    is_plain = len(choices) + len(values) == len(parsed) and not any(
        each.is_sweep_override() or each.package or (each.type.name != "CHANGE" and each.key_or_group in names)
        for each in parsed
    )
    ours = all(
        group == "env" or (conf / group / f"{option}.yaml").is_file() or (group == "tuned" and tuned_section(option))
        for group, option in choices.items()
    )
    if not own_dirs and ours and is_plain:
        merged, tuned = _merged_once(conf, *choices.items())
        plain = copy.deepcopy(merged)
        if all(_is_put(plain, each) for each in values):
            return with_first_try(plain, {"tuned": tuned})
    return by_hydra(*overrides)


def _is_put(plain, override):
    """Put the override's value in its place; return False if only Hydra can do it."""
    *path, name = override.key_or_group.split(".")
    for key in path:
        plain = plain.get(key) if isinstance(plain, dict) else None
    value = override.value()
    is_simple = override.type.name == "CHANGE" and "$" not in override.input_line and not isinstance(value, dict)
    if not (is_simple and isinstance(plain, dict) and name in plain and not isinstance(plain[name], dict)):
        return False
    plain[name] = value
    return True


@functools.cache
def _parsed(word):
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create().parse_override(word)


def by_hydra(*overrides):
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf, open_dict

    from drl_cli.settings.conf import conf_dir
    from drl_cli.settings.first_try import with_first_try
    from drl_cli.settings.hydra_plugins import register

    register()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        node = compose("train", overrides=list(overrides), return_hydra_config=True)
        choices = OmegaConf.to_container(node.hydra.runtime.choices)
        with open_dict(node):
            del node["hydra"]
        return with_first_try(OmegaConf.to_container(node, resolve=True), choices)


@functools.cache
def _merged_once(conf, *choices):
    """Return train.yaml with the options of its defaults list, of the algorithm and of `choices` on top of it.

    Return the option of the group `tuned` too.
    """
    from drl_cli.settings.conf import option_text

    main = dict(_read((conf / "train.yaml").read_text())[1])
    chosen = {group: option for entry in main.pop("defaults")[1:] for group, option in entry.items()}
    typed = dict(choices)
    algo = typed.get("algo", chosen["algo"])
    chosen |= _overridden(algo) | typed
    tuned = chosen.pop("optional tuned")
    chosen["tuned"] = chosen.pop("tuned", f"{algo}-{chosen['env']}" if "$" in tuned else tuned)
    plain = copy.deepcopy(main)
    for group, option in chosen.items():
        if group != "tuned" or option_text(group, option) is not None:
            for content in _contents(group, option):
                _merge(plain, copy.deepcopy(content))
    return plain, chosen["tuned"]


def _contents(group, option):
    """Yield what an option sets, after what the options set that it builds on."""
    from drl_cli.settings.conf import option_text
    from drl_cli.settings.env_names import env_options

    text = option_text(group, option)
    if group == "env" and text is None:
        yield {"env": env_options(option)}
        return
    is_global, content = _read(text)
    own = {key: value for key, value in content.items() if key != "defaults"}
    for base in _bases(content):
        yield from _contents(group, base)
    yield own if is_global else {group: own}


def _overridden(algo):
    """Return the options of other groups that the yaml of an algorithm chooses."""
    from drl_cli.settings.conf import option_text

    content, found = _read(option_text("algo", algo))[1], {}
    for base in _bases(content):
        found |= _overridden(base)
    for entry in content.get("defaults", ()):
        found |= (
            {key.removeprefix("override /"): option for key, option in entry.items()} if isinstance(entry, dict) else {}
        )
    return found


def _bases(content):
    return [
        entry.partition("@")[0] for entry in content.get("defaults", ()) if isinstance(entry, str) and entry != "_self_"
    ]


@functools.cache
def _read(text):
    """Return whether a yaml has the full names of keys, and its content."""
    from omegaconf import OmegaConf

    return text.startswith("# @package _global_"), OmegaConf.to_container(OmegaConf.create(text))


def _merge(plain, content):
    for key, value in content.items():
        if isinstance(value, dict) and isinstance(plain.get(key), dict):
            _merge(plain[key], value)
        else:
            plain[key] = value
