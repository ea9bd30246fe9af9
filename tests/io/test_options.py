"""Declared settings: JSON, repr and command line restore any valid value."""

import argparse
import json
import math
import re
import shlex
from dataclasses import dataclass, fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import widemargin as wm
from widemargin.cli.main import build_parser
from widemargin.io.errors import InputError
from widemargin.io.options import (
    MAX_COUNT,
    Config,
    Option,
    add_arguments,
    document_options,
    given_values,
    option,
    options_of,
)
from widemargin.training.config import parse_mapping

CONFIGS = (wm.TrainConfig, wm.MLPConfig)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1).filter(str.strip)
PLAIN = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**12), 10**12),
        st.floats(-1e9, 1e9),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple), st.dictionaries(TEXTS, inner, max_size=2)
    ),
    max_leaves=5,
)


def values_in(rule: Option) -> st.SearchStrategy:
    """Values in the domain of an option, read from the option itself."""
    if rule.choices:
        found = st.sampled_from(rule.choices)
    elif rule.kind is bool:
        found = st.booleans()
    elif rule.kind is float:
        ends = {"exclude_min": rule.open_low, "exclude_max": rule.open_high}
        found = st.floats(rule.low, min(rule.high, 1e299), **ends)
    elif rule.kind in (int, tuple):
        found = st.integers(int(rule.low), MAX_COUNT if rule.high == math.inf else int(rule.high))
        found = st.lists(found, min_size=1, max_size=4) if rule.kind is tuple else found
    elif rule.kind is dict:
        found = st.dictionaries(TEXTS, PLAIN, max_size=3)
    else:
        found = TEXTS.filter(lambda text: not rule.positional or not text.startswith("-"))
    return st.none() | found if rule.optional else found


def configs_of(cls: type[Config]) -> st.SearchStrategy:
    """Valid values of a class, any of its fields given."""
    by_name = {name: values_in(rule) for name, rule in options_of(cls).items()}
    return st.fixed_dictionaries({}, optional=by_name).map(lambda values: cls(**values))


ANY_CONFIG = st.one_of([configs_of(cls) for cls in CONFIGS])


def read_words(cls: type[Config], words: list[str]) -> Config:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_arguments(parser, cls)
    return cls(**given_values(parser.parse_args(words), cls))


@given(ANY_CONFIG)
def test_json_gives_a_config_back(config):
    again = type(config).from_json(config.to_json())
    assert again == config
    assert again.to_json() == config.to_json()


@given(ANY_CONFIG)
def test_a_repr_gives_a_config_back(config):
    assert eval(repr(config), {type(config).__name__: type(config)}) == config


@given(ANY_CONFIG)
def test_the_command_gives_a_config_back(config):
    words = shlex.split(shlex.join(config.to_command()))
    assert tuple(words[:2]) == config.command
    assert read_words(type(config), words[2:]) == config


@given(st.sampled_from(CONFIGS).flatmap(lambda cls: st.tuples(st.just(cls), st.sampled_from(sorted(options_of(cls))))))
def test_what_is_no_value_of_any_option_is_one_line(which):
    cls, name = which
    for wrong in (object(), b"x", math.nan, [[]], 3j):
        with pytest.raises(InputError, match=name) as refused:
            cls(**{name: wrong})
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("cls", CONFIGS)
def test_every_field_has_a_meaning_a_domain_and_a_place_in_help_and_docs(cls):
    parser = build_parser().subparser_for(cls.command[1:])
    shown = re.sub(r"\s+", " ", parser.format_help())
    for spec in fields(cls):
        rule = spec.metadata["option"]
        assert rule.meaning
        assert rule.domain()
        assert rule.check_value(spec.name, rule.default) == rule.default
        assert f"    {spec.name}: {rule.meaning} ({rule.domain()}; default {rule.default!r})." in cls.__doc__
        assert (rule.metavar if rule.positional else f"--{spec.name.replace('_', '-')}") in shown
        # argparse may break a long word at a dash
        assert rule.help_text().replace(" ", "") in shown.replace(" ", "")


@pytest.mark.parametrize("cls", CONFIGS)
def test_an_unknown_field_gets_the_nearest_name(cls):
    with pytest.raises(InputError, match=rf"unknown field of {cls.__name__} 'epoch'; did you mean 'epochs'\?"):
        cls(epoch=3)
    with pytest.raises(InputError, match="did you mean 'epochs'"):
        replace(cls(), epoch=3)
    with pytest.raises(InputError, match=r"run 7: .*did you mean 'epochs'"):
        cls.from_json('{"epoch": 3}', "run 7")


def test_a_new_option_appears_everywhere():
    @document_options
    @dataclass(frozen=True, repr=False)
    class Extended(wm.TrainConfig):
        """A run with one more setting."""

        sharpness: float = option(0.5, "how sharp", low=0, high=1)
        folds: tuple[int, ...] = option((1, 2), "which folds", low=0)
        extras: dict = option({"a": 1}, "more", parse=parse_mapping)

    config = Extended(sharpness=0.75, folds=[3], extras={})
    assert repr(config) == "Extended(sharpness=0.75, folds=(3,), extras={})"
    assert config.to_command()[5:] == ["--sharpness", "0.75", "--folds", "3", "--extras", "{}"]
    assert read_words(Extended, config.to_command()[2:]) == config
    assert read_words(Extended, []) == Extended()
    assert Extended.from_json(config.to_json()) == config
    assert json.loads(config.to_json())["sharpness"] == 0.75
    assert "sharpness: how sharp (a number from 0 to 1; default 0.5)." in Extended.__doc__
    assert Extended.__doc__.count("epochs: passes") == 1
    parser = argparse.ArgumentParser()
    add_arguments(parser, Extended)
    assert "how sharp (a number from 0 to 1; default 0.5)" in re.sub(r"\s+", " ", parser.format_help())
    with pytest.raises(InputError, match=r"sharpness.*0 to 1.*2"):
        Extended(sharpness=2)
    with pytest.raises(InputError, match=r"did you mean 'sharpness'"):
        Extended(sharpnes=0.2)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"epochs": True}, "epochs must be a whole number of at least 1, got True"),
        ({"epochs": 2.0}, "epochs must be a whole number of at least 1, got 2.0"),
        ({"epochs": 2**31}, "epochs must be at most 2,147,483,647"),
        ({"seed": 2**63}, "seed must be at most 9,223,372,036,854,775,807"),
        ({"input_size": 4097}, "input_size must be a whole number from 1 to 4,096 or nothing, got 4097"),
        ({"lr": 1e300}, "lr must be below 1e+300"),
        ({"lr": math.inf}, "lr must be below 1e+300"),
        ({"lr": math.nan}, "lr must be a number of at least 0, got nan"),
        ({"lr": "0.1"}, "lr must be a number of at least 0, got '0.1'"),
        ({"neck": "false"}, "neck must be true or false, got 'false'"),
        ({"neck": 1}, "neck must be true or false, got 1"),
        ({"train_fraction": 0}, "train_fraction must be a number above 0 and at most 1, got 0"),
        ({"ema": 1}, "ema must be a number of at least 0 and below 1, got 1"),
        ({"opt": "adm"}, "unknown opt 'adm'; did you mean 'adam'?"),
        ({"opt": None}, "unknown opt 'None'"),
        ({"data": " "}, "data must be a string"),
        ({"name": ""}, "name must be a string or nothing, got ''"),
        ({"name": "\udcff"}, "UTF-8; rename it"),
        ({"model_options": {"a": [math.nan]}}, "model_options: nan must be a finite number"),
        ({"model_options": {"a": {1, 2}}}, "model_options: {1, 2} must be a number, a string, or a list"),
        ({"model_options": {"\udcff": 1}}, "UTF-8"),
        ({"augment_options": [1]}, "augment_options must be names with values, got [1]"),
    ],
)
def test_values_outside_the_domain_are_one_line(values, says):
    with pytest.raises(InputError) as refused:
        wm.TrainConfig(**values)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_values_are_brought_to_their_normal_form():
    import numpy as np

    config = wm.TrainConfig(lr=1, epochs=np.int64(3), clip=np.float32(0.5), model_options={"w": [np.float64(2), [1]]})
    assert repr(config) == "TrainConfig(epochs=3, lr=1.0, model_options={'w': (2.0, (1,))}, clip=0.5)"
    assert (type(config.epochs), type(config.lr), type(config.clip)) == (int, float, float)
    assert wm.MLPConfig(hidden=[np.int64(8), 4]) == wm.MLPConfig(hidden=(8, 4))
    assert wm.TrainConfig(seed=2**63 - 1).seed == 2**63 - 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"kind": "margin_classifier"}', "run.json: contains a margin_classifier"),
        ('{"kind": 3}', "run.json: contains 3"),
        ("[1]", "run.json: not the settings of a run"),
        ('{"epochs": "3"}', "run.json: epochs must be a whole number"),
    ],
)
def test_json_of_something_else_is_one_line(text, says):
    with pytest.raises(InputError, match=re.escape(says)):
        wm.TrainConfig.from_json(text)


def test_json_says_what_it_holds_and_older_files_do_not():
    config = wm.TrainConfig(epochs=3)
    values = json.loads(config.to_json())
    assert next(iter(values.items())) == ("kind", "run")
    del values["kind"]
    assert wm.TrainConfig.from_json(json.dumps(values)) == config
