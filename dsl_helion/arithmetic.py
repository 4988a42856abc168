"""Division of whole numbers on the device."""

import torch


def div(a, b):
    """a // b of a tensor that is not negative: one operation, where torch's // takes 13 to round negatives down."""
    return torch.div(a, b, rounding_mode="trunc")


def mod(a, b):
    """a % b of a tensor that is not negative."""
    return torch.fmod(a, b)


def cdiv(a, b):
    return div(a + b - 1, b)
