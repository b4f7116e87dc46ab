"""Write docs/gpu.md from the JSON that `make gpu` keeps.

python docs/gen/gpu.py   prints the page
"""

import json
import statistics
from collections import Counter
from pathlib import Path

DATA = Path(__file__).parent / "gpu.json"

HEAD = """# On a GPU

What was measured on a GPU, and what failed there. One command writes this page:

```sh
make gpu
```

It takes nine minutes. The machine needs a PyTorch with CUDA and no network: `make gpu-bundle`
(`PYTHON_VERSION=3.12`) makes a folder `.gpu/site` of 49 MiB elsewhere, which has everything else. Copy the checkout
with it, and run `PYTHONPATH=.gpu/site python3 -m tests.gpu`. `make gpu ACCELERATOR=cpu` tries the same steps with
small models on a CPU, and `make gpu ACCELERATOR=sim` on the [simulated device](guides/sim.md), which has streams,
events, pinned memory, a limit of memory and waits that are counted. Blocks are compiled by `aot_eager` there,
for Inductor doesn't know the device. Both were run whole on 2026-11-28. On the CPU nothing failed. On `sim` nothing
failed but what `tests/gpu/unfit.py` lists, with reasons: rows that fail in plain PyTorch on a device, too, random
numbers, and what `sim` lacks. The engines of DeepSpeed and FairScale refuse `sim`, and the kit of
`deepspeed_stage_2` isn't run there.
"""

NOTES = """## What failed

The first run on a GPU, on 2026-11-26 (an H200, torch 2.11), found errors that have been fixed since:

- **Sparse gradients** over NCCL ended in torch's error. They are refused before training now, with the backend that
  can: `gloo`. The kit passes for `ddp` and `ddp_sharded`.
- **fsdp and own loops that read parameters or gradients**: with torch before 2.13, ten such loops had other numbers
  without an error. Now they are equal or refused.
- **One process** was less strict than two: four loops under `ddp`, `ddp_sharded`, `fsdp` and `model_parallel` had
  other numbers or an error of torch on one device, also on a CPU. They are equal or refused now.

What remains of the run above:

- **deepspeed_stage_2 in 16-true**: DeepSpeed leaves out steps whose gradients overflow, and the kit expected none.
  The kit begins with a smaller scale of the loss now. It wasn't run on the GPU again.
- **Loops that create tensors on the CPU** and use them with a module on the GPU fail in plain PyTorch, too: the
  `raw` rows, and five of parity's kinds.
- **Random numbers** of a GPU are others than those of a CPU, with which the loops are compared: rows
  `gradient_noise` and `weights_reinitialized`, and parity's kind `lazy_uninitialized`. Muon's orthogonalization in
  bfloat16 and cuDNN's convolutions in TF32 round differently, too.
- **Losses with fewer activations** weren't compared: on a GPU even the plain loop has other losses the next time,
  and the first form of the measurement didn't say by how much.
- **Saves** weren't measured: both runs ended before the first result. The measurement keeps what it has found so
  far now.
- **float8** came into the measurements after that run, and wasn't tried on a GPU yet.
- Several GPUs haven't been tried.
"""


def page() -> str:
    """Return the page."""
    data = json.loads(DATA.read_text(encoding="utf-8"))
    machine, work = data["machine"], data["work"]
    found = {name: each["found"] for name, each in work.items() if each["found"] is not None}
    lines = [HEAD]
    if "device" in machine:
        lines.append(
            f"Run on {machine['date']} on {machine['devices']} {machine['device']} "
            f"({machine['memory_bytes'] / 2**30:.0f} GiB) with torch {machine['torch']}, NCCL {machine['nccl']} and "
            f"Python {machine['python']}.\n"
        )
    else:
        lines.append(f"Run on {machine['date']} on {machine['accelerator']}, with small models.\n")
    parts = {
        "speed": speed,
        "compiled": compiled,
        "float8": float8,
        "waits": waits,
        "saves": saves,
        "memory": memory,
        "activations": activations,
        "equal": equal,
    }
    for name, part in parts.items():
        if name in found:
            lines += part(found[name])
    if "engines" in found:
        lines += ["Under engines of other libraries:\n", *cells(found["engines"]["cells"])]
    lines += verdicts(found)
    return "\n".join([*lines, NOTES])


def speed(sizes: dict) -> list[str]:
    """Time per step and memory of each trainer."""
    lines = ["## Per step\n", "`python -m tests.gpu.speed`: bf16-mixed, AdamW, trainers in turns.\n"]
    for name, size in sizes.items():
        batch, length = size["batch"]
        lines += [
            f"**{name}**: {size['parameters'] / 1e6:,.0f} million parameters, {batch} × {length} tokens per step. "
            f"A step of the plain loop takes {size['plain_ms']:.1f} ms ({size['tokens_per_s']:,.0f} tokens/s).\n",
            "| | time over the plain loop's | lowest to highest | allocated at most | reserved |",
            "| --- | --- | --- | --- | --- |",
        ]
        for loop, each in size["loops"].items():
            ratio = each["ratio"]
            lines.append(
                f"| {loop} | {statistics.median(ratio):.3f} | {min(ratio):.3f} to {max(ratio):.3f} | "
                f"{each['allocated_bytes'] / 2**30:.2f} GiB | {each['reserved_bytes'] / 2**30:.2f} GiB |"
            )
        lines.append("")
    return lines


def compiled(found: dict) -> list[str]:
    """Time per step of compiled blocks."""
    seconds = found["step_s"]
    return [
        "## Compiled blocks\n",
        f"`python -m tests.gpu.compiled`: {found['model']}, each block by `block.compile()`. The first step takes "
        f"{found['compile_s']:.0f} s.\n",
        "| | eager | compiled | eager over compiled |",
        "| --- | --- | --- | --- |",
        *(
            f"| {name} | {1e3 * seconds[f'{way}, eager']:.1f} ms | {1e3 * seconds[f'{way}, compiled']:.1f} ms | "
            f"{seconds[f'{way}, eager'] / seconds[f'{way}, compiled']:.2f} |"
            for way, name in (("plain", "plain loop"), ("trainer", "`Trainer`"))
        ),
        "",
    ]


def float8(found: dict) -> list[str]:
    """Time per step with linear layers in float8."""
    ways = found["ways"]
    base = ways["bf16-mixed"]["step_s"]
    return [
        "## float8\n",
        f"`python -m tests.gpu.float8`: {found['model']} with compiled blocks: "
        "[`float8`](guides/precision.md#float8) under the Trainer, and torchao's own conversion in the plain loop.\n",
        "| | step | bf16-mixed over it | losses from bf16-mixed's, at most |",
        "| --- | --- | --- | --- |",
        *(
            f"| {name} | {1e3 * way['step_s']:.1f} ms | {base / way['step_s']:.2f} | {way['difference']:.0e} |"
            for name, way in ways.items()
        ),
        *(f"| {name} | refused: {why} | | |" for name, why in found["failed"].items()),
        "",
    ]


def waits(found: dict) -> list[str]:
    """Where the host waits for the device."""
    lines = [
        "## Waits for the device\n",
        f"`python -m tests.gpu.waits`: how often CUDA's debug mode notes a wait in {found['steps']} steps.\n",
        "| | waits |",
        "| --- | --- |",
    ]
    for name, lines_of_code in found["waits"].items():
        where = ", ".join(f"{count} in `{line}`" for line, count in lines_of_code.items())
        lines.append(f"| {name} | {where or 'none'} |")
    return [*lines, ""]


def saves(found: dict) -> list[str]:
    """How long a save keeps training waiting."""
    lines = [
        "## Saves\n",
        "`python -m tests.gpu.saves`: how long training waits for the second save.\n",
        "| | bytes | into | in the background | waiting | `torch.save` |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, each in found.items():
        ways = ("background", "waiting", "torch.save")
        seconds = [f"{each[way]['blocked_s'][-1]:.2f} s" if way in each else "" for way in ways]
        size = f"{each['bytes'] / 2**30:.1f} GiB"
        lines.append(f"| {name} | {size} | {each['folder']} | {' | '.join(seconds)} |")
    return [*lines, ""]


def memory(found: dict) -> list[str]:
    """The messages where memory runs out."""
    if not found["messages"]:
        return []
    return [
        "## Memory that runs out\n",
        f"`python -m tests.gpu.memory`: the sentence that ends the training of {found['model']} where so much may be "
        "allocated.\n",
        "| allowed | message |",
        "| --- | --- |",
        *(f"| {limit} | {message} |" for limit, message in found["messages"].items()),
        "",
    ]


def activations(sizes: dict) -> list[str]:
    """Peak memory and time of each way to keep fewer activations."""
    lines = [
        "## Fewer activations\n",
        "`python -m tests.gpu.activations`: [the extension](guides/activations.md) with the Trainer under `single`, "
        "bf16-mixed, and torch's checkpointing of each block in the plain loop.\n",
        "| | | allocated at most | over the plain loop's | time over the plain loop's | losses apart by |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, ways in sizes.items():
        base = ways["plain loop"]
        for way, each in ways.items():
            apart = f"{each['difference']:.0e}" if "difference" in each else "not measured"
            lines.append(
                f"| {name} | {way} | {each['peak_bytes'] / 2**30:.2f} GiB | "
                f"{each['peak_bytes'] / base['peak_bytes']:.2f} | {each['step_s'] / base['step_s']:.2f} | "
                f"{apart} |"
            )
    return [*lines, ""]


def equal(found: dict) -> list[str]:
    """Whether losses are the plain loop's."""
    return [
        "## Numbers\n",
        f"`python -m tests.gpu.equal`: losses of {found['steps']} clipped steps, and those of the plain loop on the "
        "same device.\n",
        *cells(found["cells"]),
    ]


def cells(found: dict) -> list[str]:
    """A table of strategies by precisions."""
    results = {tuple(name.split(", ", 1)): result for name, result in found.items()}
    precisions = list(dict.fromkeys(precision for _, precision in results))
    lines = ["| | " + " | ".join(precisions) + " |", "| --- |" + " --- |" * len(precisions)]
    for strategy in dict.fromkeys(strategy for strategy, _ in results):
        row = [results.get((strategy, precision), "") for precision in precisions]
        lines.append(f"| {strategy} | " + " | ".join(map(_short, row)) + " |")
    return [*lines, ""]


def _short(result: str) -> str:
    return {"equal to the bit": "equal"}.get(result, result.partition(":")[0].replace("differs by ", ""))


def verdicts(found: dict) -> list[str]:
    """What the kit, own loops and parity came to."""
    lines = [
        "A number is the largest relative difference of a loss. A refused precision isn't among the strategy's.\n",
        "## Kit, own loops and parity\n",
        "`stratagem conformance NAME --accelerator cuda`, on one device:\n",
        "| | passed | failed | skipped |",
        "| --- | --- | --- | --- |",
    ]
    kits = {name.partition(" ")[2]: each for name, each in found.items() if name.startswith("kit ")}
    for name, kit in sorted(kits.items()):
        failed = "; ".join(f"`{each['check']}`" for each in kit["failures"])
        lines.append(
            f"| {name} | {kit['passed']} | {kit['failed']}{f': {failed}' if failed else ''} | {kit['skipped']} |"
        )
    lines += [
        "",
        "[Own loops](parity.md) in float64 (`python -m tests.support.hands_on`), held against one process on the "
        "CPU:\n",
        "| | equal | refused | raw errors | wrong |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, rows in sorted(found.items()):
        if name.startswith("own loops "):
            count = Counter(row["verdict"] for row in rows)
            numbers = " | ".join(str(count[each]) for each in ("equal", "refused", "raw", "wrong"))
            lines.append(f"| {name.removeprefix('own loops ')} | {numbers} |")
    if "parity" in found:
        count = Counter(cell["verdict"] for cell in found["parity"])
        counts = ", ".join(f"{number} {verdict}" for verdict, number in count.items())
        kinds = len(found["parity"])
        lines += [
            "",
            f"Parity's {kinds} kinds under `single`, held against a plain loop on the CPU: {counts}.",
        ]
    return [*lines, ""]


if __name__ == "__main__":
    print(page())
