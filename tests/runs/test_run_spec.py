import hashlib
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail import InputError
from longtail.runs import DataSpec, Part, RecipeSpec, RunSpec
from run_factory import make_spec

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)
names = st.text(min_size=1, max_size=8)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
mappings = st.dictionaries(names, values, max_size=4)


@given(mappings, mappings, mappings, st.integers(0, 2**40))
@settings(max_examples=60, deadline=None)
def test_a_spec_survives_a_file_exactly(model, method, recipe, seed):
    spec = make_spec(
        model=Part("mlp", model),
        method=Part("softmax", method),
        recipe=RecipeSpec("digits", recipe, {}),
        seed=seed,
    )
    text = json.dumps(spec.to_json(), allow_nan=False)
    again = RunSpec.from_json(json.loads(text))
    assert again == spec
    assert again.hash8 == spec.hash8
    assert hash(again) == hash(spec)
    assert json.dumps(again.to_json(), allow_nan=False) == text


def test_a_spec_can_not_be_changed():
    spec = make_spec()
    with pytest.raises(AttributeError):
        spec.seed = 1
    given_list = [1, 2]
    spec = make_spec(model=Part("mlp", {"hidden": given_list}))
    given_list.append(3)
    assert spec.model.settings["hidden"] == (1, 2)


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 5},
        {"method": Part("logit-adjusted", {"tau": 1.5})},
        {"model": Part("mlp", {"hidden": [16, 32]})},
        {"dataset": DataSpec("digits-lt", "exp", 100.0, held_out=0.2)},
        {"dataset": DataSpec("digits-lt", "exp", 50.0, seed=1, held_out=0.2)},
        {"recipe": RecipeSpec("digits", {"epochs": 4, "lr": 0.1, "milestones": [1, 2]})},
        {"settings": {"precision": "bfloat16"}},
    ],
)
def test_whatever_changes_the_result_changes_the_hash(changes):
    assert make_spec(**changes).hash8 != make_spec().hash8


@pytest.mark.parametrize(
    "changes",
    [
        {"recipe": RecipeSpec("other", {"lr": 0.1, "epochs": 3, "milestones": (1, 2)})},
        {"method": Part("logit-adjusted", {"tau": 1})},
        {"method": Part("logit-adjusted", {"tau": np.float64(1.0)})},
        {"dataset": DataSpec("digits-lt", "exp", 50, held_out=0.2)},
        {"seed": np.int64(4)},
    ],
)
def test_what_does_not_change_the_result_leaves_the_hash_alone(changes):
    assert make_spec(**changes).hash8 == make_spec().hash8


def test_the_hash_is_of_the_canonical_identity():
    spec = RunSpec(dataset="digits-lt", model="mlp", method="softmax", recipe="digits")
    text = '{"dataset":{"name":"digits-lt"},"method":{"name":"softmax"},"model":{"name":"mlp"}'
    text += ',"recipe":{}}'
    assert spec.hash8 == hashlib.sha256(text.encode()).hexdigest()[:8]
    assert spec.folder.as_posix() == f"digits-lt/softmax-s0-{spec.hash8}"


def test_the_difference_names_each_value():
    other = make_spec(
        method=Part("logit-adjusted", {"tau": 2.0}),
        recipe=RecipeSpec("paper", {**make_spec().recipe.values, "nesterov": True}),
    )
    assert make_spec().difference(other) == [
        "method.settings.tau: 1.0 against 2.0",
        "recipe.values.nesterov: nothing against True",
    ]
    assert make_spec().difference(make_spec()) == []


def test_a_missing_field_is_refused_and_a_missing_default_filled():
    document = make_spec(seed=0).to_json()
    del document["seed"], document["dataset"]["held_out"]
    assert RunSpec.from_json(document).dataset.held_out == 0.0
    del document["method"]
    with pytest.raises(InputError, match="'method'"):
        RunSpec.from_json(document)


def test_names_that_can_not_be_folders_are_refused():
    with pytest.raises(InputError, match=r"since folders are named after them; got '\.\./etc'"):
        make_spec(dataset="../etc")
