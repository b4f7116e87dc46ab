"""Reinforcement learning on `Runtime`: an actor and a critic learn to balance a pole on a cart.

stratagem run examples/reinforcement.py
stratagem run --strategy ddp --accelerator cpu --devices 2 examples/reinforcement.py --updates 150

Each process plays its own games; their gradients are averaged. The cart is simulated here, after Barto, Sutton
and Anderson, "Neuronlike adaptive elements that can solve difficult learning control problems" (1983).
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stratagem import Runtime

GRAVITY, CART_KG, POLE_KG, HALF_POLE_M, FORCE_N, TICK_S = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
LONGEST = 200


class Carts:
    """Many carts at once: state of (games, 4) with place, speed, angle and angular speed."""

    def __init__(self, games: int, device: torch.device) -> None:
        self.state = self.new(games, device)
        self.ticks = torch.zeros(games, device=device)

    def new(self, games: int, device: torch.device) -> Tensor:
        return torch.rand(games, 4, device=device) * 0.1 - 0.05

    def push(self, to_the_right: Tensor) -> tuple[Tensor, Tensor]:
        """Push each cart; return which games ended, and after how many ticks. Those begin again."""
        _, speed, angle, turning = self.state.unbind(1)
        force = torch.where(to_the_right.bool(), FORCE_N, -FORCE_N)
        mass, sin, cos = CART_KG + POLE_KG, angle.sin(), angle.cos()
        pushed = (force + POLE_KG * HALF_POLE_M * turning**2 * sin) / mass
        turned = (GRAVITY * sin - cos * pushed) / (HALF_POLE_M * (4 / 3 - POLE_KG * cos**2 / mass))
        moved = pushed - POLE_KG * HALF_POLE_M * turned * cos / mass
        change = torch.stack([speed, moved, turning, turned], dim=1)
        self.state, self.ticks = self.state + TICK_S * change, self.ticks + 1
        over = (self.state[:, 0].abs() > 2.4) | (self.state[:, 2].abs() > 0.21) | (self.ticks >= LONGEST)
        lengths = self.ticks[over]
        self.state[over] = self.new(int(over.sum()), over.device)
        self.ticks[over] = 0
        return over, lengths


def main(runtime: Runtime, updates: int, games: int, horizon: int) -> float:
    """What every process does; returns how long the last games were, on average over all processes."""
    torch.manual_seed(runtime.rank)  # other games on each rank; `setup` makes the weights rank 0's
    net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))
    net, optimizer = runtime.setup(net, torch.optim.Adam(net.parameters(), lr=3e-3))
    carts, mean_length = Carts(games, runtime.device), 0.0
    for update in range(updates):
        states, actions, overs, lengths = [], [], [], []
        with torch.no_grad():
            for _ in range(horizon):
                states.append(carts.state.clone())
                logits = net(carts.state)[:, :2]
                actions.append(torch.distributions.Categorical(logits=logits).sample())
                over, ended = carts.push(actions[-1])
                overs.append(over)
                lengths.append(ended)
            value = net(carts.state)[:, 2]

        # Returns, backwards in time: a tick is worth 0.02, what comes after it counts by 0.98 per tick.
        returns = []
        for over in reversed(overs):
            value = 0.02 + 0.98 * value * ~over
            returns.insert(0, value)
        wanted = torch.stack(returns).flatten()
        out = net(torch.stack(states).flatten(0, 1))  # one forward and one backward per update, as ddp wants
        policy = torch.distributions.Categorical(logits=out[:, :2])
        advantage = wanted - out[:, 2].detach()
        advantage = advantage / (advantage.std() + 1e-6)
        actor = -(advantage * policy.log_prob(torch.stack(actions).flatten())).mean()
        loss = actor + F.mse_loss(out[:, 2], wanted) - 0.01 * policy.entropy().mean()
        runtime.backward(loss)
        runtime.clip(optimizer, max_norm=0.5)
        optimizer.step()
        optimizer.zero_grad()

        finished = torch.cat(lengths)
        if update % 10 == 9 or update == updates - 1:
            sums = torch.stack([finished.sum(), torch.tensor(float(len(finished)), device=runtime.device)])
            total, number = runtime.all_reduce(sums, "sum").tolist()
            mean_length = total / max(number, 1.0)
            runtime.print(f"update {update + 1}: {mean_length:.0f} ticks of {LONGEST}")
    return mean_length


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=150)
    parser.add_argument("--games", type=int, default=32, help="per process, at once")
    parser.add_argument("--horizon", type=int, default=32, help="ticks per game and update")
    arguments = parser.parse_args()
    Runtime(seed=1).launch(main, arguments.updates, arguments.games, arguments.horizon)
