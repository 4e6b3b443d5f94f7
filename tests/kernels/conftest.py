"""Marks of the kernel batteries, which other files import where there is a GPU."""


def pytest_itemcollected(item):
    if getattr(item, "module", None) and item.function.__module__.endswith("_battery"):
        item.add_marker("gpu")
