# SPDX-License-Identifier: Apache-2.0
"""Rounds of measurements for the scripts of this folder: every contender once in each round, medians, spreads, and ratios that are
taken within each round. tools/feedlane/bench/measure.hpp does the same for the measurements in C++."""

import statistics


def alternate(contenders, rounds):
    """{name: its value of each round}. `contenders` maps names to functions that measure one round. Every other round runs from the
    last to the first; before them, one round that is not counted."""
    values = {name: [] for name in contenders}
    for number in range(-1, rounds):
        for name in list(contenders) if number % 2 == 0 else reversed(contenders):
            value = contenders[name]()
            if number >= 0:
                values[name].append(value)
    return values


def ratios(ours, theirs):
    """Round by round: what disturbed a round disturbed both."""
    return [our / their for our, their in zip(ours, theirs, strict=True)]


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "rounds": list(values)}


def cell(values, digits=".4g"):
    """For tables: "median [min .. max]"."""
    return f"{statistics.median(values):{digits}} [{min(values):{digits}} .. {max(values):{digits}}]"
