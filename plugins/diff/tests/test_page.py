"""The HTML page of a comparison."""

from __future__ import annotations

from pathlib import Path

import torch
from stratagem_diff import compare, record
from stratagem_diff.page.document import document
from stratagem_diff.sentences import said
from torch import nn


def test_texts_are_escaped(tmp_path: Path) -> None:
    for name in ("a", "b"):
        net = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with record(net, optimizer, tmp_path / name):
            net(torch.ones(4, 3)).sum().backward()
            optimizer.step()
    found = compare(tmp_path / "a", tmp_path / "b")
    page = document(found, ("<script>alert(1)</script>", "b"), said(found))
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "← first difference" in page  # they begin with other weights
