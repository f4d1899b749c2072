from dataclasses import dataclass, field

import pytest

from drl_cli.errors import UsageError
from drl_cli.settings.options import parse, usage
from drl_cli.utils.ranges import Count


@dataclass(frozen=True)
class Options:
    run: str
    episodes: Count = field(default=20, metadata={"help": "how many"})
    min_return: float | None = None
    fast: bool = False


def problems_of(*args, positional=None):
    with pytest.raises(UsageError) as caught:
        parse(args, Options, positional)
    assert caught.value.exit_code == 2
    return caught.value.problems


def test_values_are_typed_and_the_rest_keeps_its_default():
    assert parse(["run=a=b", "episodes=1e2", "fast=true"], Options) == Options("a=b", 100, None, True)
    assert parse(["run=1", "min_return=-2e2"], Options) == Options("1", 20, -200.0, False)


def test_a_bare_word_is_the_positional_option():
    assert parse(["latest", "episodes=3"], Options, "run") == Options("latest", 3)


def test_all_problems_at_once_with_the_nearest_name():
    problems = problems_of("episode=3", "episodes=0", "min_return=high", "fast=1")
    assert len(problems) == 5
    assert problems[0].startswith("episode: no such option. Did you mean episodes?")
    assert "options: run, episodes, min_return, fast" in problems[0]
    assert problems[1:4] == [
        "episodes: must be >= 1, got 0",
        "min_return: must be a number, got 'high'",
        "fast: must be true or false, got 1",
    ]
    assert problems[4].startswith("run: is missing")


def test_a_key_that_is_given_twice_is_a_warning(capsys):
    assert parse(["run=a", "episodes=2", "run=b", "c"], Options, "run").run == "c"
    assert capsys.readouterr().err == "warning: run is given 3 times; run=c counts\n"
    parse(["run=a", "episodes=2"], Options)
    assert capsys.readouterr().err == ""


def test_a_bare_word_without_a_positional_option_is_an_error():
    assert problems_of("run=x", "latest")[0].startswith("latest: no such option.")
    assert problems_of("run=x", "name=y")[0].startswith("name: no such option.")


def test_the_name_of_runs_is_a_word_that_names_runs():
    assert parse(["name=wide", "episodes=3"], Options, "run") == Options("name=wide", 3)
    assert problems_of("name=wide", positional="format")[0].startswith("name: no such option.")


@pytest.mark.parametrize("text", ["[1", "{", "'", "a: b: c"])
def test_text_that_is_no_yaml_is_an_error_of_the_user(text):
    (problem,) = problems_of("run=x", f"episodes={text}")
    assert problem.startswith("episodes: ")


def test_usage_lists_every_option_with_help_and_default():
    text = usage("drl-x", Options, "does x")
    assert text.splitlines()[0] == "drl-x [key=value ...]   does x"
    lines = text.splitlines()[2:]
    assert [line.split()[0] for line in lines] == ["run", "episodes", "min_return", "fast"]
    assert "how many (default 20)" in lines[1]
    assert "default" not in lines[0]
    assert "default" not in usage("drl-x", Lists, "").splitlines()[2]  # the default is empty


@dataclass(frozen=True)
class Lists:
    runs: tuple[str, ...] = field(default=(), metadata={"help": "which"})
    png: str | None = "x.png"


@pytest.mark.parametrize(
    ("args", "runs"),
    [
        *[(["runs=[*a*,b/c*]"], ("*a*", "b/c*")), (["runs=['a b', \"c\"]"], ("a b", "c")), (["runs=a"], ("a",))],
        *[(["runs=a,b"], ("a", "b")), (["runs=[[ab]*,c]"], ("[ab]*", "c"))],
        *[(["a", "b*", "[c,d]"], ("a", "b*", "c", "d")), (["runs=[]"], ()), ([], ())],
    ],
)
def test_a_list_of_texts_takes_globs_and_bare_words(args, runs):
    assert parse(args, Lists, "runs").runs == runs


def test_null_is_no_text_where_there_may_be_none():
    assert parse(["png=null"], Lists).png is None
    assert parse(["png=null.png"], Lists).png == "null.png"
    assert parse(["run=null"], Options).run == "null"
