"""A loop of one's own on Fabric: two modules, accumulation, clipping, a checkpoint with numbers."""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    fabric = L.Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    fabric.seed_everything(16)
    with fabric.init_module():
        net = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    net, optimizer = fabric.setup(net, optimizer)
    x = torch.randn(64, 5, generator=torch.Generator().manual_seed(2))
    train = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)
    val = DataLoader(TensorDataset(x[:16], x[:16].sum(1, keepdim=True)), batch_size=8)
    train, val = fabric.setup_dataloaders(train, val)
    assert len(train.dataset) == 64

    state = {"net": net, "optimizer": optimizer, "step": 0}
    for _epoch in range(2):
        net.train()
        for index, (a, b) in enumerate(train):
            is_last = index % 2 == 1
            with fabric.no_backward_sync(net, enabled=not is_last):
                loss = nn.functional.mse_loss(net(a), b) / 2
                fabric.backward(loss)
            if is_last:
                fabric.clip_gradients(net, optimizer, max_norm=1.0)
                optimizer.step()
                optimizer.zero_grad()
                state["step"] += 1
            print("RESULT", float(fabric.all_reduce(loss.detach())))
    net.eval()
    with torch.no_grad():
        losses = torch.stack([nn.functional.mse_loss(net(a), b) for a, b in val])
    gathered = fabric.all_gather(losses)
    print("RESULT", float(gathered.mean()))
    fabric.save("state.ckpt", state)
    fabric.barrier()
    before = state["step"]
    state["step"] = -1
    fabric.load("state.ckpt", state)
    assert state["step"] == before
    fabric.print("finished on rank", fabric.global_rank)


if __name__ == "__main__":
    main()
