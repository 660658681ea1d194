"""In which types a link stages what it sends: the narrower one if all readers want that."""

import gc
from collections.abc import Callable, Iterator

import pytest
import tensorbus
import torch
from buses import Bus, caught, together
from links import dtensor, links
from processes import eventually
from tensorbus import Link
from tensorbus.pool import use
from torch_oracle import same_bits

MIB = 1 << 20
ODD = [
    float("inf"),
    -float("inf"),
    float("nan"),
    -0.0,
    1e-42,
    1.00390625,
    1.01171875,
    3.4e38,
    65520,
]


def odd_numbers(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    numbers = torch.randn(count, dtype=torch.float64) * 1e3
    numbers[: len(ODD)] = torch.tensor(ODD, dtype=torch.float64)
    return numbers.to(dtype)


def exchange(
    trainers: list[Link], sent: list[dict], readers: list[tuple[Link, dict]], min_readers: int = 0
) -> None:
    """A round in which everybody gets what torch makes of the first rank's tensors."""
    together(
        *(lambda link=link, state=state: link.send_state_dict("x", state, min_readers=min_readers)
          for link, state in zip(trainers, sent, strict=True)),
        *(lambda link=link, got=got: link.recv_state_dict("x", got) for link, got in readers),
    )  # fmt: skip
    for _, got in readers:
        for name, tensor in got.items():
            assert same_bits(tensor, sent[0][name].to(tensor.dtype)), name


@pytest.fixture
def staged() -> Iterator[Callable[[int], bool]]:
    """Whether so many MiB are in use in the pool since the test began, beside what agents need."""
    keeper = tensorbus.empty(1)
    gc.collect()
    before = use()["lent"]
    yield lambda size: size - 1 < (use()["lent"] - before) / MIB < size + 3
    del keeper


PAIRS = [
    (torch.float32, torch.bfloat16),
    (torch.float32, torch.float16),
    (torch.float32, torch.float8_e4m3fn),
    (torch.float64, torch.float32),
    (torch.float64, torch.bfloat16),
    (torch.bfloat16, torch.float8_e5m2),
]


@pytest.mark.proves("L1.9")
@pytest.mark.parametrize(("own", "wanted"), PAIRS, ids=lambda dtype: str(dtype)[6:])
def test_a_stage_has_the_type_that_the_readers_want(threads: Bus, staged, own, wanted):
    (trainer,), (engine,) = links(threads, "t", "e", [0]), links(threads, "e", "t", [1])
    count = 4 * MIB - 4096  # together they fit into a block of a round size
    sent = {"w": odd_numbers(count, own), "n": torch.arange(1000)}
    got = {"w": torch.zeros(count, dtype=wanted), "n": torch.zeros(1000, dtype=torch.int64)}
    for _ in range(3):
        sent["w"] = sent["w"].roll(1)
        exchange([trainer], [sent], [(engine, got)])
        assert staged(4 * wanted.itemsize)


@pytest.mark.proves("L1.9")
def test_a_reader_that_wants_the_wide_type_gets_it_whenever_it_joins(bus: Bus, staged):
    (trainer,), (engine,) = links(bus, "t", "e", [0]), links(bus, "e", "t", [1])
    (exact,) = links(bus, "late", "t", [2])
    sent = {"w": odd_numbers(4 * MIB)}
    narrow, wide = {"w": torch.zeros(4 * MIB).bfloat16()}, {"w": torch.zeros(4 * MIB)}
    exchange([trainer], [sent], [(engine, narrow)])
    assert staged(8)
    # While the narrow copy is there it cannot join; the very next version is for it, too.
    assert "not all senders have taken" in str(
        caught(lambda: exact.recv_state_dict("x", wide, timeout=1))
    )
    sent["w"] += 1
    together(
        lambda: trainer.send_state_dict("x", sent, min_readers=2),
        lambda: engine.recv_state_dict("x", narrow),
        lambda: exact.recv_state_dict("x", wide),
    )
    assert same_bits(wide["w"], sent["w"])
    assert same_bits(narrow["w"], sent["w"].bfloat16())
    for _ in range(2):
        sent["w"] += 1
        exchange([trainer], [sent], [(engine, narrow), (exact, wide)])
        assert staged(16)
    exact.close()
    eventually(lambda: not trainer.versions("x").get("late"), "the reader to leave")
    for _ in range(2):
        sent["w"] += 1
        exchange([trainer], [sent], [(engine, narrow)])
        assert staged(8)


def test_a_send_that_waits_for_readers_does_not_narrow_before_it_knows_them(bus: Bus):
    (trainer,), (engine,) = links(bus, "t", "e", [0]), links(bus, "e", "t", [1])
    (exact,) = links(bus, "late", "t", [2])
    sent = {"w": odd_numbers(1000)}
    narrow, wide = {"w": torch.zeros(1000).bfloat16()}, {"w": torch.zeros(1000)}
    exchange([trainer], [sent], [(engine, narrow)])
    handle = trainer.send_state_dict_async("x", sent, min_readers=2)
    handle.staged.wait(20)
    before = sent["w"].clone()
    sent["w"].fill_(-1)
    together(lambda: engine.recv_state_dict("x", narrow), lambda: exact.recv_state_dict("x", wide))
    assert handle.result(20) == 2
    assert same_bits(wide["w"], before)
    assert same_bits(narrow["w"], before.bfloat16())


def test_readers_that_do_not_agree_get_what_they_want_tensor_by_tensor(threads: Bus, staged):
    (trainer,) = links(threads, "t", "a", [0])
    (one,), (other,) = links(threads, "a", "t", [1]), links(threads, "b", "t", [2])
    names = ["both", "one", "neither", "not alike"]
    sent = {name: odd_numbers(4 * MIB) for name in names}
    half, brain, full = torch.float16, torch.bfloat16, torch.float32
    first = dict(zip(names, [brain, brain, full, half], strict=True))
    second = dict(zip(names, [brain, full, full, brain], strict=True))
    readers = [
        (link, {name: torch.zeros(4 * MIB, dtype=dtype) for name, dtype in types.items()})
        for link, types in ((one, first), (other, second))
    ]
    # The first send waits for the side that the link names, and would not for the other one.
    exchange([trainer], [sent], readers, min_readers=2)
    for _ in range(2):
        exchange([trainer], [sent], readers)
    assert staged(4 * (2 + 3 * 4))


def test_shards_are_staged_narrow_and_laid_out_anew(bus: Bus):
    trainers, engines = links(bus, "t", "e", [0, 1]), links(bus, "e", "t", [2, 3])
    whole = odd_numbers(35).reshape(5, 7)
    views = [torch.zeros_like(part).bfloat16() for part in whole.chunk(2, 1)]
    got = [
        {"w": dtensor(view, [5, 7], [0, 1], [("S", 1)], rank)} for rank, view in enumerate(views)
    ]
    for _ in range(3):
        whole += 1
        sent = [
            {"w": dtensor(part.clone(), [5, 7], [0, 1], [("S", 0)], rank)}
            for rank, part in enumerate(whole.chunk(2, 0))
        ]
        together(
            *(lambda link=link, state=state: link.send_state_dict("x", state)
              for link, state in zip(trainers, sent, strict=True)),
            *(lambda link=link, state=state: link.recv_state_dict("x", state)
              for link, state in zip(engines, got, strict=True)),
        )  # fmt: skip
        for view, part in zip(views, whole.chunk(2, 1), strict=True):
            assert same_bits(view, part.contiguous().bfloat16())


def test_what_is_to_be_reduced_keeps_its_type(threads: Bus, staged):
    """Narrowed before the sum it would be rounded twice."""
    trainers, (engine,) = links(threads, "t", "e", [0, 1]), links(threads, "e", "t", [2])
    parts = [odd_numbers(MIB), torch.randn(MIB)]
    got = torch.zeros(MIB).bfloat16()
    together(
        *(lambda rank=rank, link=link: link.send_state_dict(
            "x", {"w": dtensor(parts[rank], [MIB], [0, 1], [("P",)], rank)})
          for rank, link in enumerate(trainers)),
        lambda: engine.recv_state_dict("x", {"w": got}),
    )  # fmt: skip
    assert same_bits(got, (parts[0] + parts[1]).bfloat16())
    assert staged(8)


@pytest.mark.parametrize("verify", ["full", "sample"])
def test_what_is_staged_narrow_is_checked(threads: Bus, verify: str):
    (trainer,) = links(threads, "t", "e", [0], verify=verify)
    (engine,) = links(threads, "e", "t", [1])
    sent, got = {"w": odd_numbers(3 * MIB)}, {"w": torch.zeros(3 * MIB).bfloat16()}
    for _ in range(3):
        sent["w"] = sent["w"].roll(1)
        exchange([trainer], [sent], [(engine, got)])


def test_a_tensor_that_is_shared_later_is_read_where_it_is(bus: Bus, staged):
    (trainer,), (engine,) = links(bus, "t", "e", [0]), links(bus, "e", "t", [1])
    sent, got = {"w": odd_numbers(4 * MIB)}, {"w": torch.zeros(4 * MIB).bfloat16()}
    exchange([trainer], [sent], [(engine, got)])
    sent["w"] = tensorbus.share_(sent["w"])
    for _ in range(2):
        sent["w"] += 1
        exchange([trainer], [sent], [(engine, got)])
        assert staged(16), "the tensor, and no stage"


@pytest.mark.proves("L1.9")
def test_tensors_may_change_when_they_are_staged_narrow(bus: Bus):
    (trainer,), (engine,) = links(bus, "t", "e", [0]), links(bus, "e", "t", [1])
    sent, got = {"w": odd_numbers(1000)}, {"w": torch.zeros(1000).bfloat16()}
    exchange([trainer], [sent], [(engine, got)])
    before = sent["w"].clone()
    handle = trainer.send_state_dict_async("x", sent)
    handle.staged.wait(20)
    sent["w"].fill_(-1)
    assert engine.recv_state_dict("x", got) == handle.result(20) == 2
    assert same_bits(got["w"], before.bfloat16())


def test_an_engine_that_returns_finds_the_stage_as_it_was(threads: Bus, staged):
    (trainer,), (engine,) = links(threads, "t", "e", [0]), links(threads, "e", "t", [1])
    sent, got = {"w": odd_numbers(4 * MIB)}, {"w": torch.zeros(4 * MIB).bfloat16()}
    exchange([trainer], [sent], [(engine, got)])
    engine.close()
    eventually(lambda: not trainer.versions("x").get("e"), "the reader to leave")
    assert trainer.send_state_dict("x", sent) == 2
    assert staged(8), "nobody reads, and nobody wants it otherwise"
    sent["w"] += 1
    together(
        lambda: trainer.send_state_dict("x", sent, min_readers=1),
        lambda: engine.recv_state_dict("x", got),
    )
    assert same_bits(got["w"], sent["w"].bfloat16())
    sent["w"] += 1
    exchange([trainer], [sent], [(engine, got)])
    assert staged(8)


def test_a_send_that_fails_says_what_it_said_before(threads: Bus):
    (trainer,), (engine,) = links(threads, "t", "e", [0]), links(threads, "e", "t", [1])
    sent, got = {"w": odd_numbers(100)}, {"w": torch.zeros(100).bfloat16()}
    exchange([trainer], [sent], [(engine, got)])
    error = caught(lambda: trainer.send_state_dict("x", sent, timeout=0.3))
    assert isinstance(error, TimeoutError), error
    assert "reader rank 1" in str(error)
    sent["w"] += 1
    exchange([trainer], [sent], [(engine, got)])
