from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rl_training.config.yaml_text import format_yaml, parse_yaml

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
