"""Whether a worker that was asked to stop ends because nodes come."""

import threading

from stratagem_launch.launch_dir import ROUND, LaunchDir
from stratagem_launch.rendezvous.joining import ends_for_nodes, note_nodes


def test_a_worker_is_notified_once_its_agent_has_noticed() -> None:
    launch_dir = LaunchDir.create()
    try:
        assert not ends_for_nodes(launch_dir, 0)  # a single node's: no other comes
        launch_dir.put(ROUND, b"3")
        note_nodes(launch_dir, 2)
        assert not ends_for_nodes(launch_dir, 3)
        later = threading.Timer(0.2, note_nodes, (launch_dir, 3))
        later.start()
        assert ends_for_nodes(launch_dir, 3)
        later.join()
    finally:
        launch_dir.remove()
