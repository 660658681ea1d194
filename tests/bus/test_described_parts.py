"""Tensors that say themselves what they hold, as torch's checkpoints ask them."""

import threading

import pytest
import tensorbus
import torch
from tensorbus.parts import described_parts
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
from torch.distributed.checkpoint.metadata import TensorProperties as Properties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

SHAPE = torch.Size((6, 4))


class Checkpointable(torch.Tensor):
    """Rows 1 to 2 and 4 of a whole: ``torch.distributed._checkpointable``."""

    boxes = ((1, 2), (4, 1))

    def __create_write_items__(self, fqn, object):
        return [
            WriteItem(
                MetadataIndex(fqn, (start, 0), index),
                WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    ChunkStorageMetadata(torch.Size((start, 0)), torch.Size((rows, 4))),
                    Properties.create_from_tensor(torch.empty(0)),
                    SHAPE,
                ),
            )
            for index, (start, rows) in enumerate(self.boxes)
        ]

    def __get_tensor_shard__(self, index):
        begin = sum(rows for _, rows in self.boxes[: index.index])
        rows = self.boxes[index.index][1]
        return torch.Tensor.as_subclass(self, torch.Tensor)[begin : begin + rows]


class Geometry(torch.Tensor):
    """The same: ``torch_checkpointing.CheckpointableTensor``."""

    global_shape = (6, 4)
    global_offsets = ((1, 0), (4, 0))
    local_offsets = ((0, 0), (2, 0))
    local_sizes = ((2, 4), (1, 4))

    def __getitem__(self, item):
        return torch.Tensor.as_subclass(self, torch.Tensor)[item]


@pytest.mark.proves("G3.2")
@pytest.mark.parametrize("kind", [Checkpointable, Geometry])
def test_their_boxes_are_parts(kind):
    rows = torch.arange(12.0).reshape(3, 4)
    parts = described_parts(rows.as_subclass(kind))
    assert [(part.shape, part.start) for part in parts] == [((6, 4), (1, 0)), ((6, 4), (4, 0))]
    assert torch.equal(parts[0].tensor, rows[:2])
    assert torch.equal(parts[1].tensor, rows[2:])
    assert described_parts(rows) is None
    assert described_parts(3) is None


@pytest.mark.proves("G3.2")
@pytest.mark.parametrize("kind", [Checkpointable, Geometry])
def test_links_take_them_wherever_parts_are(kind, unique):
    with (
        tensorbus.TensorBusClient.embedded(f"memory://{unique}", 0) as client,
        tensorbus.TensorBusClient.embedded(f"memory://{unique}", 1) as other,
    ):
        trainer, engine = client.link("trainer", "engine"), other.link("engine", "trainer")
        whole = torch.arange(24.0).reshape(6, 4)
        held = torch.zeros(3, 4)
        sending = threading.Thread(
            target=trainer.send_state_dict, args=("policy", {"w": whole}), kwargs={"min_readers": 1}
        )
        sending.start()
        engine.recv_state_dict("policy", {"w": held.as_subclass(kind)})
        sending.join()
        assert torch.equal(held, whole[[1, 2, 4]])


def test_what_says_nonsense_of_itself_is_refused_by_name(unique):
    class Nonsense(Geometry):
        global_offsets = ((5, 0), (4, 0))

    with tensorbus.TensorBusClient.embedded(f"memory://{unique}", 0) as client:
        link = client.link("trainer", "engine")
        with pytest.raises(ValueError, match='"w": a part of shape'):
            link.send_state_dict("policy", {"w": torch.zeros(3, 4).as_subclass(Nonsense)})
