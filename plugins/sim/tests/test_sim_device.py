"""The device itself: late copies, reused blocks, generators, limits, and the count of what waits for it."""

from __future__ import annotations

import pytest
from sim_processes import run
from stratagem_sim import SimAccelerator
from stratagem_sim.build import is_built

from stratagem.errors import ConfigError
from stratagem.sdk.catalogue import load_catalogue

pytestmark = [
    pytest.mark.sim,
    pytest.mark.skipif(not is_built(), reason="needs the device, which make test-sim builds"),
]


def test_auto_never_takes_it() -> None:
    assert not load_catalogue().find("accelerator", "sim").automatic


def test_wrong_settings_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATAGEM_SIM_DEVICES", "17")
    with pytest.raises(ConfigError, match="STRATAGEM_SIM_DEVICES='17' must be a whole number from 1 to 16"):
        SimAccelerator().device_count()


def test_it_has_events_and_the_cpu_beside_it_has_none() -> None:
    code = """
    from stratagem.sdk.tensors import has_events
    print([has_events(torch.device(name)) for name in ("sim", "sim:1", "cpu", "mps")])
    """
    assert run(code) == "[True, True, False, False]"


def test_a_pinned_copy_reads_memory_late() -> None:
    code = """
    source = torch.ones(4).pin_memory()
    target = source.to("sim", non_blocking=True)
    source.zero_()
    print(target.tolist())
    """
    assert run(code) == "[0.0, 0.0, 0.0, 0.0]"
    # Pageable memory is staged.
    assert run(code.replace(".pin_memory()", "")) == "[1.0, 1.0, 1.0, 1.0]"


@pytest.mark.parametrize("is_waited_for", [True, False])
def test_a_missing_wait_shows(is_waited_for: bool) -> None:
    out = run(f"""
    value = torch.ones(4, device="sim") * 2
    side = torch.Stream(device="sim")
    if {is_waited_for}:
        side.wait_stream(torch.accelerator.current_stream())
    with side:
        double = value * 2
    side.synchronize()
    print(double.tolist() == [4.0] * 4)
    """)
    assert out == str(is_waited_for)


@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_missing_record_stream_shows(is_recorded: bool) -> None:
    out = run(f"""
    value = torch.ones(4, device="sim")
    main, side = torch.accelerator.current_stream(), torch.Stream(device="sim")
    side.wait_stream(main)
    with side:
        double = value * 2
    if {is_recorded}:
        value.record_stream(side)
    del value
    torch.full((4,), 7.0, device="sim").sum().item()
    main.wait_stream(side)
    print(double.tolist() == [2.0] * 4)
    """)
    assert out == str(is_recorded)


@pytest.mark.parametrize("waits", [True, False])
def test_a_freed_block_is_left_as_it_is_until_its_stream_takes_it_again(waits: bool) -> None:
    # As FSDP does it with gradients: freed while another stream reads, and taken again after a wait for that one.
    out = run(f"""
    main, side = torch.accelerator.current_stream(), torch.Stream(device="sim")
    with side:
        value = torch.ones(4, device="sim")
    main.wait_stream(side)
    double = value * 2
    del value
    if {waits}:
        side.wait_stream(main)
    with side:
        other = torch.full((4,), 7.0, device="sim")
    side.synchronize()
    print(double.tolist() == [2.0] * 4)
    """)
    assert out == str(waits)


def test_a_generator_has_a_state_that_comes_back() -> None:
    out = run("""
    torch.manual_seed(3)
    state = torch.sim.get_rng_state()
    first = torch.randn(8, device="sim")
    second = torch.randn(8, device="sim")
    torch.sim.set_rng_state(state)
    again = torch.randn(8, device="sim")
    print(bool((first == again).all()), bool((first == second).any()))
    """)
    assert out == "True False"


def test_memory_has_a_limit() -> None:
    out = run(
        """
        kept = torch.empty(200, 1024, device="sim")
        try:
            torch.empty(200, 1024, device="sim")
        except torch.OutOfMemoryError as error:
            print(error)
        del kept
        torch.empty(201, 1024, device="sim")
        """,
        STRATAGEM_SIM_MEMORY_BYTES="1000000",
    )
    assert "sim:0 out of memory: tried to allocate 819200 bytes" in out


def test_a_step_waits_for_nothing_and_a_wait_has_its_line() -> None:
    out = run("""
    model = torch.nn.Linear(4, 4).to("sim")
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.ones(2, 4, device="sim")
    with count_synchronizations() as seen:
        for _ in range(2):
            loss = model(batch).sum()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        steps = seen.count
        loss.item()
    print(steps, seen.count, seen.places)
    """)
    assert out.startswith("0 1 ['aten::_local_scalar_dense: <string>:")


def test_training_equals_the_cpu() -> None:
    out = run("""
    import copy
    torch.manual_seed(0)
    convolution, norm = torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4)
    plain = torch.nn.Sequential(convolution, norm, torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 3))
    moved = copy.deepcopy(plain).to("sim")
    x, y = torch.randn(8, 1, 8, 8), torch.randint(0, 3, (8,))
    for model in (plain, moved):
        device = next(model.parameters()).device
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for _ in range(4):
            torch.nn.functional.cross_entropy(model(x.to(device)), y.to(device)).backward()
            optimizer.step()
            optimizer.zero_grad()
    print(all(torch.equal(a, b.cpu()) for a, b in zip(plain.parameters(), moved.parameters())))
    """)
    assert out == "True"
