"""Attention on the workers, the feed-forward network on the servers.

Each worker runs the attention of its own tokens and pushes the result to every server. Each server
has a part of the hidden units of one feed-forward layer, multiplies the tokens of all workers in
one go, and answers each worker with its rows. The sum of the servers' answers is the layer's
output; the worker computes the same by itself and compares.

    tensorbus launch --workers 2 --servers 2 examples/push_pull/attention_ffn.py [--steps 20]
"""

import argparse
import os

import torch
from tensorbus import fserver

TOKENS, WIDTH, HIDDEN = 8, 64, 256
STATES, ANSWER = 0, 1  # keys


def weights(part: int, parts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The hidden units of one server, the same wherever they are made."""
    generator = torch.Generator().manual_seed(1)
    up = torch.randn(WIDTH, HIDDEN, generator=generator) / WIDTH**0.5
    down = torch.randn(HIDDEN, WIDTH, generator=generator) / HIDDEN**0.5
    return up.chunk(parts, dim=1)[part], down.chunk(parts, dim=0)[part]


def feed_forward(states: torch.Tensor, part: int, parts: int) -> torch.Tensor:
    up, down = weights(part, parts)
    return torch.relu(states @ up) @ down


def attention(tokens: torch.Tensor) -> torch.Tensor:
    return torch.softmax(tokens @ tokens.T / WIDTH**0.5, dim=-1) @ tokens


def work(rank: int, servers: int, steps: int) -> None:
    torch.manual_seed(100 + rank)
    tokens = torch.randn(TOKENS, WIDTH)
    # One answer of every server, by position.
    answers = [torch.empty(TOKENS, WIDTH) for _ in range(servers)]
    worst = 0.0
    for _ in range(steps):
        states = attention(tokens)
        handler = fserver.push_pull([states], [STATES], answers, [ANSWER] * servers)
        alone = sum(feed_forward(states, part, servers) for part in range(servers))
        fserver.wait(handler)
        together = torch.stack(answers).sum(dim=0)
        torch.testing.assert_close(together, alone)
        worst = max(worst, float((together - alone).abs().max()))
        tokens = torch.nn.functional.layer_norm(tokens + together, [WIDTH])
    times = fserver.fetch_trace(handler)
    print(
        f"{steps} steps are right (largest difference {worst:.1e}); "
        f"the last took {(times[7] - times[0]) / 1000:.0f} us"
    )


def serve(part: int, parts: int, steps: int) -> None:
    for _ in range(steps):
        batches = fserver.get_batch()
        states = torch.cat([batch.tensors[0] for batch in batches])
        rows = feed_forward(states, part, parts)
        fserver.respond_vec(
            rows, [batch.tensors[0] for batch in batches], [batch.handler for batch in batches]
        )
    print(f"answered {steps} batches of {len(batches)} workers")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    rank, servers = int(os.environ["DMLC_NODE_RANK"]), int(os.environ["DMLC_NUM_SERVER"])
    fserver.init()
    if os.environ["DMLC_ROLE"] == "worker":
        work(rank, servers, steps)
    else:
        serve(rank, servers, steps)
    fserver.stop()


if __name__ == "__main__":
    main()
