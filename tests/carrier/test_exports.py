"""The public surface of the package."""

from spark_channel import carrier


def test_all_is_sorted_and_is_what_the_package_exports() -> None:
    public = {
        name
        for name, value in vars(carrier).items()
        if not name.startswith("_") and not hasattr(value, "__spec__")
    }
    assert list(carrier.__all__) == sorted(carrier.__all__)
    assert public == set(carrier.__all__)
