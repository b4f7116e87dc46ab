"""`python -m stratagem_ray.attached PID ARGUMENTS…`: `python ARGUMENTS…` that ends when process PID is gone."""

from __future__ import annotations

import runpy
import sys

from stratagem_launch import die_with

if __name__ == "__main__":
    die_with(int(sys.argv[1]))
    # As `-m MODULE …`, which is what a place gives a node.
    module, sys.argv = sys.argv[3], [sys.argv[3], *sys.argv[4:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
