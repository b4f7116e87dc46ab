"""`python -m stratagem_ray.driver FOLDER`: brings up a run's nodes as actors, and stays until they have ended."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from stratagem_ray.place import EXIT_CODE, RUNNING
from stratagem_ray.slots import Slots
from stratagem_ray.spec import RaySpec

REFUSED = 2
_SECRET = "STRATAGEM_RUN_SECRET"


def drive(spec: RaySpec) -> int:
    """Run what the specification says, and return the run's exit code: the first launcher's that failed, or 0."""
    import ray

    # Submitted by `ray job submit --working-dir`, it would be two working_dir otherwise.
    os.environ["RAY_OVERRIDE_JOB_RUNTIME_ENV"] = "1"
    try:
        ray.init(
            address=spec.address,
            runtime_env={"working_dir": spec.code_dir, "excludes": _links(spec.code_dir)},
            log_to_driver=False,
            logging_level="warning",
            include_dashboard=False if spec.address == "local" else None,
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        print(f"Error: no Ray cluster at {spec.address!r}: {error}", flush=True)
        return REFUSED
    try:
        with _rendezvous(spec) as variables:
            signals: list[int] = []
            signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
            return Slots(spec, variables).run(lambda said: _write(spec, RUNNING, said), lambda: bool(signals))
    finally:
        ray.shutdown()


def _links(folder: str) -> list[str]:
    """Return what is only linked, as data: Ray would bring all that is there."""
    found = (os.path.join(where, name) for where, dirs, files in os.walk(folder) for name in (*dirs, *files))
    return [f"/{os.path.relpath(path, folder)}" for path in found if os.path.islink(path)]


@contextmanager
def _rendezvous(spec: RaySpec) -> Iterator[dict[str, str]]:
    """Hold the store at which nodes meet; yields the variables that say where."""
    if spec.max_nodes == 1:
        yield {}
        return
    import ray
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # exported, but not in __all__

    address = ray.util.get_node_ip_address()
    store = TCPStore(address, 0, is_master=True, wait_for_workers=False)
    # Handed on here, so that it is in no file.
    secret = {name: os.environ[name] for name in (_SECRET,) if os.environ.get(name)}
    yield {"MASTER_ADDR": address, "MASTER_PORT": str(store.port), **secret}


def _write(spec: RaySpec, name: str, text: str) -> None:
    path = os.path.join(spec.place_dir, name)
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(f"{path}.new", path)


def main() -> None:
    """Drive the run whose folder is the argument."""
    spec, code = RaySpec.read(sys.argv[1]), 1
    try:
        code = drive(spec)
    finally:
        _write(spec, EXIT_CODE, str(code))
    sys.exit(code)


if __name__ == "__main__":
    main()
