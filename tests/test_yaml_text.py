from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_training.config.yaml_text import format_yaml, parse_yaml
from rl_training.errors import UserError

plain_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
plain_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | plain_text
    | st.sampled_from(
        ["1e5", ".5", "0x1F", "1_000", "~", "<<", "=", "-", "? a", "# a", "*a", "&a"]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(plain_text, inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(plain_text, plain_values, max_size=3))
def test_any_plain_value_survives_yaml(values: dict[str, Any]) -> None:
    for one_line in (False, True):
        again = parse_yaml(format_yaml(values, one_line=one_line), source="text")
        assert again == values
        assert repr(again) == repr(values)  # 1, 1.0 and True are equal


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("? [a, b]\n: 1", "a key must be text, not a list or a mapping"),
        ("? {a: b}\n: 1", "a key must be text, not a list or a mapping"),
        ("a: !!int abc", "'abc' cannot be read as int"),
        ("a: !!float x", "'x' cannot be read as float"),
        ("a: !!bool x", "'x' cannot be read as bool"),
        ("a: !!timestamp x", "'x' cannot be read as timestamp"),
        ("a: " + "1" * 5000, "cannot be read as int"),
    ],
)
def test_text_that_does_not_fit_its_tag_is_refused_in_one_line(text: str, complaint: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_yaml(text, source="file.yaml")
    message = str(caught.value)
    assert message.startswith("file.yaml: line ")
    assert complaint in message
    assert "\n" not in message
