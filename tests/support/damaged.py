"""A JSON value with one place changed: what a reader must name, or bear."""

import copy

MISSING = object()  # the place itself is taken out


def damaged(value, place, wrong):
    """A copy with `wrong` at the place, names and indices from outside to inside."""
    found = copy.deepcopy(value)
    *way, last = place
    at = found
    for step in way:
        at = at[step]
    if wrong is MISSING:
        del at[last]
    else:
        at[last] = wrong
    return found
