from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.lib.array_utils import byte_bounds

from tianji_algos.fields import FieldSpec
from tianji_cli.wire.fragment import HEADER, Fragment, FragmentLayout, common_fields
from tianji_cli.wire.records import ALIGNMENT, job_number

dtypes = st.sampled_from(["?", "u1", "i2", "<f4", ">f4", "f8", "i8", "c16", "S5", "M8[ns]"]).map(np.dtype)
shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
specs = st.builds(FieldSpec, st.text(min_size=1, max_size=8), dtypes, shapes, st.booleans())
layouts = st.builds(
    FragmentLayout,
    st.integers(1, 6),
    st.integers(1, 5),
    st.lists(specs, max_size=6, unique_by=lambda spec: spec.name).map(tuple),
)


def filled(layout: FragmentLayout, seed: int) -> tuple[bytearray, Fragment]:
    """A fragment of random values in memory that was full of rubbish."""
    rng = np.random.default_rng(seed)
    memory = bytearray(rng.bytes(layout.nbytes))
    fragment = Fragment(layout, memoryview(memory))
    for array in fragment.fields.values():
        values = rng.integers(0, 2, array.nbytes, np.uint8).tobytes()
        array[...] = np.frombuffer(values, array.dtype).reshape(array.shape)
    return memory, fragment


@given(layouts)
def test_fields_lie_apart_aligned_and_inside_the_fragment(layout: FragmentLayout) -> None:
    memory = np.zeros(layout.nbytes, np.uint8)
    base, _ = byte_bounds(memory)
    end = HEADER.itemsize
    for spec in layout.fields:
        view = layout.views(memory.data)[spec.name]
        assert view.dtype == spec.dtype
        assert view.shape == (layout.steps + spec.bootstrap, layout.num_envs, *spec.shape)
        assert layout.offsets[spec.name] % ALIGNMENT == 0
        if view.size:
            first, last = (bound - base for bound in byte_bounds(view))
            assert end <= first
            end = last
    assert end <= layout.nbytes
    assert layout.nbytes % ALIGNMENT == 0


@given(layouts, st.integers(0, 1000))
def test_values_survive_the_way_as_raw_bytes(layout: FragmentLayout, seed: int) -> None:
    memory, sent = filled(layout, seed)
    sent.begin(job=2**64 - 1, actor=3, incarnation=1, sequence=2**40, before=2**50, version=9)
    received = Fragment(layout, memoryview(bytes(memory)))
    assert received.header == sent.header
    assert {name: array.tobytes() for name, array in received.fields.items()} == {
        name: array.tobytes() for name, array in sent.fields.items()
    }
    assert received.refusal(2**64 - 1, [3]) is None


@given(layouts, layouts)
def test_layouts_share_a_fingerprint_only_if_they_are_equal(a: FragmentLayout, b: FragmentLayout) -> None:
    assert (a.fingerprint == b.fingerprint) == (a == b)
    assert replace(a).fingerprint == a.fingerprint


@given(layouts, st.data())
@settings(max_examples=200)
def test_any_change_changes_the_fingerprint(layout: FragmentLayout, data: st.DataObject) -> None:
    fields = list(layout.fields)
    changes: list[dict[str, Any]] = [{"steps": layout.steps + 1}, {"num_envs": layout.num_envs + 1}]
    if fields:
        i = data.draw(st.integers(0, len(fields) - 1))
        change = data.draw(st.sampled_from(["name", "dtype", "shape", "bootstrap"]))
        value = {
            "name": fields[i].name + "'",
            "dtype": data.draw(dtypes),
            "shape": data.draw(shapes),
            "bootstrap": not fields[i].bootstrap,
        }[change]
        assume(getattr(fields[i], change) != value)
        changed = [replace(spec, **{change: value}) if spec is fields[i] else spec for spec in fields]
        assume(len({spec.name for spec in changed}) == len(changed))
        changes += [{"fields": tuple(changed)}, {"fields": tuple(fields[:-1])}]
    if len(fields) > 1:
        changes.append({"fields": (*fields[1:], fields[0])})
    fingerprints = {replace(layout, **change).fingerprint for change in changes}
    assert len(fingerprints) == len(changes)
    assert layout.fingerprint not in fingerprints


def test_records_of_other_parts_have_other_fingerprints() -> None:
    layouts = [
        FragmentLayout(1, 1, (FieldSpec("x", np.dtype([(name, "<f4"), ("b", "<i4")])),)) for name in "ac"
    ]
    assert layouts[0].fingerprint != layouts[1].fingerprint


LAYOUT = FragmentLayout(2, 3, common_fields(gym.spaces.Box(-1, 1, (4,), np.float32)))


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("magic", 0, "its magic is 0x0"),
        ("schema", 2, "its schema is 0x2, not 0x1"),
        ("job", 6, "its job is 0x6, not 0x5"),
        ("layout", 0, "its layout is 0x0"),
        ("actor", 4, "its actor 4 does not live there"),
        ("samples", 7, "it claims 7 samples where 6 fit"),
    ],
)
def test_what_is_no_fragment_of_the_job_is_refused(field: str, value: int, reason: str) -> None:
    fragment = Fragment(LAYOUT, memoryview(bytearray(LAYOUT.nbytes)))
    fragment.begin(job=5, actor=1, incarnation=0, sequence=0, before=0, version=0)
    fragment.header["samples"] = 6
    assert fragment.refusal(5, (1, 2)) is None
    fragment.header[field] = value
    assert reason in str(fragment.refusal(5, (1, 2)))


@pytest.mark.parametrize("dtype", [np.dtype(object), np.dtype([("a", object)]), np.dtype("S0")])
def test_dtypes_that_cannot_live_in_raw_memory_are_refused(dtype: np.dtype[Any]) -> None:
    with pytest.raises(ValueError, match=r"'x'.*cannot live in shared memory"):
        FragmentLayout(1, 1, (FieldSpec("x", dtype),))


@pytest.mark.parametrize(("steps", "num_envs"), [(0, 1), (1, 0), (-1, 2)])
def test_a_fragment_without_steps_or_environments_is_refused(steps: int, num_envs: int) -> None:
    with pytest.raises(ValueError, match="needs steps and environments"):
        FragmentLayout(steps, num_envs, LAYOUT.fields)


def test_repeated_field_names_are_refused() -> None:
    with pytest.raises(ValueError, match="distinct names"):
        FragmentLayout(1, 1, (LAYOUT.fields[0], LAYOUT.fields[0]))


def test_observations_without_a_fixed_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="no fixed shape"):
        common_fields(gym.spaces.Sequence(gym.spaces.Discrete(2)))


def test_other_job_ids_give_other_numbers() -> None:
    assert len({job_number(f"job-{i}") for i in range(1000)}) == 1000
