"""What the plugin takes from torch's private names still is what it takes it for."""

import torch
from stratagem_report.torch_private import at_backward_end


def test_a_callback_comes_after_all_gradients_and_in_the_order_of_queueing() -> None:
    weight = torch.ones(3, requires_grad=True)
    seen = []

    def queue_later(tensor: torch.Tensor) -> None:
        seen.append("gradient")
        torch.autograd.Variable._execution_engine.queue_callback(lambda: seen.append("queued later"))

    weight.register_post_accumulate_grad_hook(queue_later)
    loss = (weight * 2).sum()
    loss.register_hook(at_backward_end(lambda: seen.append("at the end")))
    (loss / 2).backward()
    assert seen == ["gradient", "at the end", "queued later"]
