import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import drl_cli
from drl_cli.algos.lookup import algorithms, load_algorithm
from drl_cli.errors import UsageError
from drl_cli.settings.build import keys_of
from drl_cli.settings.conf import conf_dir
from drl_cli.settings.key_help import LOADER, answer, find, read, sections

DOCS = Path(drl_cli.__file__).parents[1] / "docs"


def by_name(found):
    return {key.name: key for section in found for key in section.keys}


def refused(*args):
    with pytest.raises(UsageError) as caught:
        answer(args)
    return "; ".join(caught.value.problems)


@pytest.mark.slow
def test_every_key_is_there_with_a_meaning():
    every = by_name(sections([]))
    wanted = set().union(*(keys_of(load_algorithm(name).Config) for name in algorithms()))
    parents = {name for name in wanted if any(other.startswith(f"{name}.") for other in wanted)}
    assert (
        set(every) - {"network", "replay", "optimizer"} == wanted - parents
    )  # some algorithms choose another of these
    assert [key for key in every.values() if not key.help or not key.default or not key.type.text] == []


def test_the_default_option_in_full_and_of_the_others_what_differs():
    first, *others = find("network")
    assert first.title == "network=auto (default)"
    assert {key.name for key in first.keys} == {
        f"network.{name}" for name in read((conf_dir() / "network/auto.yaml").read_text())
    }
    gru = next(section for section in others if section.title == "network=gru")
    assert [(key.name, key.default) for key in gru.keys] == [("network.memory", "gru")]
    assert [section.title for section in find("worker")] == ["worker"]


@pytest.mark.parametrize("word", ["replay.fifo-once", "replay=fifo-once"])
def test_one_option_with_the_types_that_it_has(word):
    (section,) = find(word)
    assert section.about.startswith("A queue for on-policy learning")
    assert by_name([section])["replay.shards"].type.text == "1"
    assert by_name([section])["replay.max_staleness"].type.text == "int >= 0 or auto"


@pytest.mark.slow
def test_an_algorithm_with_what_it_sets_elsewhere():
    (section,) = find("algo.ppo")
    keys = by_name([section])
    assert (keys["replay"].type.text, keys["replay"].default) == ("option", "fifo-once")
    assert (keys["network.activation"].default, keys["algo.clip"].type.text) == ("tanh", "float > 0")
    assert all(name in {section.title for section in find("algo.lr")} for name in ("algo=dqn", "algo=ppo", "algo=sac"))


@pytest.mark.slow
def test_a_tuned_set_is_shown_but_not_among_the_keys():
    (section,) = find("tuned=sac-Pendulum-v1")
    assert by_name([section])["algo.alpha_lr"].default == "1e-3"
    assert not any(section.title.startswith("tuned") for section in sections([]))


def test_the_last_part_of_a_key_finds_the_key():
    assert {key.name for section in sections(["lr"]) for key in section.keys} == {"algo.lr", "reward.lr"}
    assert {key.name for section in sections(["learning", "rate"]) for key in section.keys} == {"algo.lr"}
    assert {key.name for section in sections(["batch", "size"]) for key in section.keys} == {"trainer.batch_size"}
    assert {section.title for section in sections(["ray", "checkpoint"])} == {"ray", "checkpoint"}
    with pytest.raises(UsageError, match=r"no group or key 'LR'. Did you mean algo.lr\?"):
        sections(["LR"])
    assert {key.name for section in sections(["num"]) for key in section.keys} == {
        "worker.num",
        "trainer.num",
        "reanalyzer.num",
    }


@pytest.mark.slow
def test_a_wrong_option_is_an_error():
    assert refused("format=html") == "format: 'html' is not one of text, markdown"
    assert refused("fromat=text").startswith("fromat: no such option. Did you mean format?")
    assert refused("algo=sca").startswith("unknown algorithm 'sca'. Did you mean 'sac'?")


def test_both_yaml_parsers_read_the_same():
    for path in conf_dir().rglob("*.yaml"):
        content = path.read_text()
        ours, slow = yaml.compose(content, Loader=LOADER), yaml.compose(content, Loader=yaml.SafeLoader)
        if slow is not None:
            assert [key.end_mark.index for key, _ in ours.value] == [key.end_mark.index for key, _ in slow.value]


def test_a_comment_is_what_stands_behind_the_value():
    content = "# About\ndefaults: [_self_]\na: 'x # y'  # one\nb: {c: 1}  # two\nd:\n  e: null\n"
    assert read(content) == {"a": ("'x # y'", "one"), "b": ("{c: 1}", "two"), "d.e": ("null", "")}


@pytest.mark.slow
def test_the_page_of_keys_is_current():
    page = "\n".join(answer(["format=markdown"])) + "\n"
    assert (DOCS / "reference.md").read_text() == page, "drl-list keys format=markdown > docs/reference.md"


@pytest.mark.slow
def test_keys_and_completion_import_little():
    """What they import is what they take, and a tab is pressed often."""
    script = """
import sys
from drl_cli.cli.complete import completions
from drl_cli.settings.key_help import answer
answer([])
completions("drl-train worker.")
print(*{"torch", "ray", "gymnasium", "hydra", "omegaconf", "rich"} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
