"""Strategies on slow links: python tests/benchmarks/slow_links.py [--links 10:50 100:10] [--only diloco ...]

A network of 85,000 parameters learns scikit-learn's digits in two processes, each in a network namespace of its own.
What joins these is slow: Mbit/s and milliseconds one way. Bytes are those that the interface of rank 0 has sent,
headers and all. Needs root, and the commands ip and tc; without netem in the kernel a process forwards packets late.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

import stratagem

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "support")]

LINKS = ("10:50", "10:10", "100:10")
STEPS = int(os.environ.get("BENCH_STEPS", "200"))
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "ddp": ("ddp", {}),
    "ddp_fp16": ("ddp_fp16", {}),
    "ddp_powersgd, rank 1": ("ddp_powersgd", {"ddp_comm_state": {"start_powerSGD_iter": 10}}),
    "ddp_post_local_sgd, every 8": (
        "ddp_post_local_sgd",
        {"ddp_comm_state": {"start_localSGD_iter": 10}, "model_averaging_period": 8},
    ),
    "bagua_bytegrad": ("bagua_bytegrad", {}),
    "bagua_low_precision_decentralized": ("bagua_low_precision_decentralized", {}),
    "bagua_qadam": ("bagua_qadam", {}),
    "bagua_async": ("bagua_async", {"warmup_steps": 10}),
    "diloco": ("diloco", {}),
    "diloco, int8": ("diloco", {"outer_grad_dtype": "int8"}),
    "streaming_diloco": ("streaming_diloco", {}),
}


def train(runtime: Any, steps: int, name: str) -> dict[str, float]:
    """Run by every rank."""
    from slow_network import sent_bytes
    from stratagem_bagua import QAdamOptimizer

    torch.set_num_threads(1)
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    known, unknown = order[:1500], order[1500:]
    own = known[runtime.rank :: runtime.world_size]
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    if name == "bagua_qadam":
        made: Any = QAdamOptimizer(net.parameters(), lr=3e-4, warmup_steps=steps // 5)
    else:
        made = torch.optim.AdamW(net.parameters(), lr=3e-4)
    model, optimizer = runtime.setup(net, made)
    generator = torch.Generator().manual_seed(runtime.rank)
    runtime.barrier()
    before, began = sent_bytes(), time.perf_counter()
    for _ in range(steps):
        chosen = own[torch.randint(len(own), (32,), generator=generator)]
        runtime.backward(F.cross_entropy(model(x[chosen]), y[chosen]), model)
        optimizer.step()
        optimizer.zero_grad()
    runtime.barrier()
    ended, after = time.perf_counter(), sent_bytes()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(runtime.all_reduce(parameter.detach(), "mean"))
        losses = [float(F.cross_entropy(net(x[part]), y[part])) for part in (known, unknown)]
        accuracy = float((net(x[unknown]).argmax(1) == y[unknown]).float().mean())
    return {
        "ms": 1000 * (ended - began) / steps,
        "bytes": (after - before) / steps,
        "training loss": losses[0],
        "held-out loss": losses[1],
        "accuracy": accuracy,
    }


def work(name: str, steps: int) -> None:
    strategy, options = CASES[name]
    runtime = stratagem.Runtime(
        strategy, accelerator="cpu", devices=1, num_nodes=2, strategy_options=dict(options)
    )
    found = runtime.launch(train, steps, name, quiet=True)
    if os.environ["NODE_RANK"] == "0":
        print(json.dumps(found), flush=True)


def measured(nodes: Any, name: str) -> dict[str, float]:
    from namespaces import INTERFACE
    from two_nodes import ADDRESSES

    common = {
        "MASTER_ADDR": ADDRESSES[0],
        "MASTER_PORT": "29512",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "GLOO_SOCKET_IFNAME": INTERFACE,
    }
    workers = [
        subprocess.Popen(
            ["ip", "netns", "exec", node.namespace, sys.executable, __file__, "--work", name],
            env={**os.environ, **common, "NODE_RANK": str(node.rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for node in nodes
    ]
    outputs = [worker.communicate(timeout=900)[0] for worker in workers]
    if any(worker.returncode for worker in workers):
        sys.exit(f"{name} ended with {[worker.returncode for worker in workers]}")
    found: dict[str, float] = json.loads(outputs[0].splitlines()[-1])
    return found


def main() -> None:
    from namespaces import why_not
    from slow_network import slow_network

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--links", nargs="*", default=LINKS, help="Mbit/s and milliseconds one way, as 10:50")
    parser.add_argument("--only", nargs="*", default=CASES, choices=CASES)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.work:
        work(asked.work, STEPS)
        return
    if reason := why_not():
        print(f"slow links: skipped: {reason}")
        return
    for link in asked.links:
        rate_mbit, delay_ms = map(float, link.split(":"))
        with slow_network(rate_mbit, delay_ms) as (nodes, how):
            print(f"\n{rate_mbit:g} Mbit/s, {delay_ms:g} ms one way, by {how}; {STEPS} steps\n")
            print(
                "| 2 nodes | a step | over ddp | bytes sent per step | over ddp | training loss | held-out |"
            )
            print("| --- | --- | --- | --- | --- | --- | --- |")
            first: dict[str, float] = {}
            for name in asked.only:
                found = measured(nodes, name)
                first = first or found
                ratios = [first[key] / max(found[key], 1e-9) for key in ("ms", "bytes")]
                print(
                    f"| {name} | {found['ms']:.1f} ms | {ratios[0]:.1f} × faster | {found['bytes']:,.0f} "
                    f"| {ratios[1]:.1f} × fewer | {found['training loss']:.3f} "
                    f"| {found['held-out loss']:.3f}, {found['accuracy']:.1%} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
