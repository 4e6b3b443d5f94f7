"""The weights that bring held-out data to the training data's mix, by slow loops."""

import math


def slow_mix(target, prior, weight=None, *, least=10, apart=1.5, times=3.0):
    """w_i = u_i π(g) / Σ_g u: classes from rare to frequent, joined until each group is whole."""
    counts, probs = prior.counts, prior.probs
    if counts is not None and counts.dtype.kind != "i":
        counts = None
    u = [1.0] * len(target) if weight is None else [float(w) for w in weight]
    held = [0] * prior.num_classes
    for y, w in zip(target, u, strict=True):
        held[y] += w > 0
    groups = [[]]
    for k in sorted(range(prior.num_classes), key=lambda k: (prior.probs[k], k)):
        last = groups[-1]
        there = sum(held[j] for j in last)
        whole = there >= least or (there > 0 and probs[k] >= times * probs[last[0]])
        if whole and counts is not None:
            whole = math.sqrt(counts[k]) - math.sqrt(counts[last[0]]) >= apart
        if whole:
            groups.append([])
        groups[-1].append(k)
    if len(groups) > 1:
        there = sum(held[j] for j in groups[-1])
        close = probs[groups[-1][0]] < times * probs[groups[-2][0]]
        if there == 0 or (there < least and close):
            rest = groups.pop()
            groups[-1] += rest
    out = []
    for y, w in zip(target, u, strict=True):
        group = next(group for group in groups if y in group)
        total = sum(v for z, v in zip(target, u, strict=True) if z in group)
        out.append(w * sum(prior.probs[j] for j in group) / total)
    return out
