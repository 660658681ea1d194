"""Every pair of types, every pattern or every kind of pattern, against torch bit for bit."""

import pytest
import tensorbus
import torch

FLOATS = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
TYPES = [*FLOATS, *INTEGERS, torch.bool]
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
WHOLE = tensorbus.Layout((1,), [tensorbus.Replicate()])

# torch converts what is left over after whole vectors by other code, which gives other NaNs.
VECTOR = 256


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(BITS[tensor.dtype.itemsize])


def every_pattern(dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.bool:
        return (torch.arange(512) % 2).to(torch.bool)
    count = 256**dtype.itemsize
    return torch.arange(count).to(BITS[dtype.itemsize]).view(dtype)


def neighbourhood_of_narrower_floats(dtype: torch.dtype) -> torch.Tensor:
    """Every 8- and 16-bit float, every middle between two of them, and what lies beside both."""
    parts = []
    extra = 52 - 23 if dtype == torch.float64 else 0
    for narrow, mantissa in (
        (torch.float16, 10),
        (torch.bfloat16, 7),
        (torch.float8_e4m3fn, 3),
        (torch.float8_e5m2, 2),
    ):
        exact = bits(every_pattern(narrow).to(dtype))
        half = 1 << (23 - mantissa - 1 + extra)
        parts += [exact + step + beside for step in (0, half) for beside in (-1, 0, 1)]
    return torch.cat(parts).view(dtype)


def patterns(dtype: torch.dtype) -> torch.Tensor:
    if dtype.itemsize <= 2:
        return every_pattern(dtype)
    generator = torch.Generator().manual_seed(dtype.itemsize)
    raw = torch.randint(0, 256, (8 * 40_000,), generator=generator, dtype=torch.uint8)
    parts = [raw.view(dtype)]
    if dtype.is_floating_point:
        parts.append(neighbourhood_of_narrower_floats(dtype))
        # Around every power of two that an integer type ends at, and small numbers.
        ends = torch.tensor([2.0**n for n in (7, 8, 15, 16, 31, 32, 53, 62, 63)], dtype=dtype)
        for step in (-1, 0, 1):
            parts += [(bits(ends) + step).view(dtype), -(bits(ends) + step).view(dtype)]
        parts.append(torch.randn(4096, generator=generator, dtype=dtype) * 1000)
        if dtype == torch.float64:
            # float32 values, the middles between them and their neighbours: rounding twice.
            exact = bits(torch.randn(4096, generator=generator).to(dtype))
            parts += [
                (exact + step + beside).view(dtype)
                for step in (0, 1 << 28)
                for beside in (-1, 0, 1)
            ]
    else:
        info = torch.iinfo(dtype)
        parts.append(torch.tensor([info.min, info.min + 1, -1, 0, 1, info.max - 1, info.max]))
        powers = torch.tensor([1 << n for n in range(dtype.itemsize * 8 - 1)])
        parts += [powers - 1, powers, powers + 1]
        parts = [part.to(dtype) for part in parts]
    return torch.cat(parts)


def whole_vectors(tensor: torch.Tensor) -> torch.Tensor:
    missing = -tensor.numel() % VECTOR
    return torch.cat([bits(tensor), bits(tensor).new_zeros(missing)]).view(tensor.dtype)


def converted(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    result = torch.empty(tensor.shape, dtype=dtype)
    tensorbus.redistribute(WHOLE, {0: tensor}, WHOLE, {0: result})
    return result


def is_undefined_in_torch(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if not tensor.dtype.is_floating_point or dtype not in INTEGERS:
        return torch.zeros(tensor.shape, dtype=torch.bool)
    wide = tensor.to(torch.float64).trunc()
    info = torch.iinfo(dtype)
    above = wide >= 2.0**63 if dtype == torch.int64 else wide > info.max
    return above | (wide < info.min) | wide.isnan()


@pytest.mark.proves("B4.3")
@pytest.mark.parametrize("to", TYPES, ids=str)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_conversion_gives_the_bits_that_torch_gives(dtype, to):
    values = whole_vectors(patterns(dtype))
    expected, result = bits(values.to(to)), bits(converted(values, to))
    wrong = (expected != result) & ~is_undefined_in_torch(values, to)
    assert not wrong.any(), (
        f"{bits(values)[wrong][:4]} gave {result[wrong][:4]}, not {expected[wrong][:4]}"
    )


@pytest.mark.proves("B4.3")
@pytest.mark.parametrize("to", TYPES, ids=str)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_strided_elements_convert_like_dense_ones(dtype, to):
    values = patterns(dtype)[-997:]
    spaced = bits(values).repeat_interleave(3)[::3].view(dtype)
    assert torch.equal(bits(converted(spaced, to)), bits(converted(values, to)))


@pytest.mark.proves("B4.3")
@pytest.mark.parametrize("to", INTEGERS, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_floats_beyond_an_integer_saturate_and_nan_is_zero(dtype, to):
    values = patterns(dtype)
    result = converted(values, to).to(torch.int64)
    wide, info = values.to(torch.float64), torch.iinfo(to)
    assert (result[wide.trunc() < info.min] == info.min).all()
    assert (result[wide.trunc() > info.max] == info.max).all()
    assert (result[wide.isnan()] == 0).all()
