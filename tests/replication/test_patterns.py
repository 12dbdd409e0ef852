"""Names and patterns of tables, without regard to case."""

import pytest

from spark_channel.replication.patterns import Labels, Names, is_pattern, matches


@pytest.mark.parametrize(
    ("pattern", "name", "whether"),
    [
        ("shop.*", "shop.orders", True),
        ("shop.*", "SHOP.Orders", True),
        ("shop.*", "shop2.orders", False),
        ("shop.o?", "shop.ob", True),
        ("shop.o?", "shop.o", False),
        ("shop.(a|b)", "shop.a", False),
        ("*", "a\nb", True),
    ],
)
def test_a_star_is_any_text_and_other_signs_are_themselves(
    pattern: str, name: str, whether: bool
) -> None:
    assert matches(pattern, name) is whether


def test_names_are_found_beside_patterns() -> None:
    names = Names(["shop.Orders", "shop.*_old", "log.?"])
    assert names.patterns == ["shop.*_old", "log.?"]
    assert names.same_as(["SHOP.ORDERS"]) == ["shop.Orders"]
    assert names.patterns_of(["shop.a_old", "x"]) == ["shop.*_old"]
    assert "shop.orders" in names
    assert "log.a" in names
    assert "log.ab" not in names


def test_a_label_has_no_wildcards() -> None:
    labels = Labels(["a*b", "c"])
    assert labels.some("A*B")
    assert labels.some("a*")
    assert not labels.some("axb")
    assert is_pattern("a*b")
