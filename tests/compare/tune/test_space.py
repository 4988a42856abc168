"""Policies: what is tried, and that each gives every batch a config of the space."""

from dataclasses import dataclass, field

from common.choice.legal import MOST_SEGMENTS
from compare.tune.space import DEFAULT, Policy, Space, changed, flatten, policies


@dataclass(frozen=True)
class Part:
    tile: int = 32
    num_segments: int = 4


@dataclass(frozen=True)
class Config:
    rows: int = 16
    decode: Part = field(default_factory=Part)


SPACE = [Config(rows, Part(tile, n)) for rows in (16, 32) for tile in (16, 32, 64) for n in (1, 4, 8)]
DEFAULTS = [Config(16, Part(32, 49)), Config(16, Part(64, 6))]  # segments are computed: no axis has them


def test_nested_fields_are_named_by_their_part_and_changed_in_place():
    config = Config(16, Part(32, 49))
    assert flatten(config) == {"rows": 16, "decode.tile": 32, "decode.num_segments": 49}
    assert changed(config, {"rows": 32, "decode.tile": 64}) == Config(32, Part(64, 49))


def test_the_default_is_first_and_every_policy_is_legal_for_every_batch():
    found = policies(SPACE, DEFAULTS, 50, seed=0)
    space = Space(SPACE)
    assert found[0] == DEFAULT and len(set(found)) == len(found)
    assert all(space.allows(policy.config(default), default) for policy in found for default in DEFAULTS)
    assert Policy(set=(("rows", 32),)) in found


def test_the_same_seed_draws_the_same_policies_and_another_does_not():
    assert policies(SPACE, DEFAULTS, 6, 1) == policies(SPACE, DEFAULTS, 6, 1) != policies(SPACE, DEFAULTS, 6, 2)
    assert len(policies(SPACE, DEFAULTS, 6, 1)) == 6


def test_computed_segments_are_scaled_and_never_set():
    found = policies(SPACE, DEFAULTS, 50, seed=0)
    assert all(name != "decode.num_segments" for policy in found for name, _ in policy.set)
    twice, half = (Policy(times=(("decode.num_segments", factor),)) for factor in (2.0, 0.5))
    assert {twice, half} <= set(found)
    assert [twice.config(d).decode.num_segments for d in DEFAULTS] == [98, 12]
    assert [half.config(d).decode.num_segments for d in DEFAULTS] == [24, 3]
    assert twice.config(Config(16, Part(32, 100))).decode.num_segments == MOST_SEGMENTS


def test_a_change_outside_the_space_is_not_allowed():
    space = Space([Config(16, Part(16, 1)), Config(32, Part(64, 1)), Config(16, Part(64, 4))])
    default = Config(0, Part(0, 4))
    assert not space.allows(Config(16, Part(16, 4)), default)  # the part as a whole
    assert space.allows(Config(32, Part(16, 1)), default)  # parts one by one
    assert space.allows(Config(16, Part(64, 49)), default)  # but for the computed field
    assert space.allows(Config(16, Part(128, 4)), Config(0, Part(128, 4)))  # nor is a default's own part judged


def test_a_policy_survives_json():
    for policy in policies(SPACE, DEFAULTS, 50, seed=0):
        assert Policy.from_dict(policy.to_dict()) == policy
