"""What each environment reads from its launcher's variables."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from stratagem_clusters import LSF, MPI, Kubeflow, Slurm
from stratagem_clusters.slurm import expand_counts, first_node

from stratagem import Environment
from stratagem.errors import UsageError
from stratagem.sdk.environments import DERIVED_PORTS, derived_port

SLURM = {
    "SLURM_JOB_ID": "1234",
    "SLURM_STEP_ID": "3",
    "SLURM_PROCID": "4",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "2",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_STEP_NODELIST": "gpu[03-05]",
    "SLURM_NTASKS": "64",
}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "2131951617",
}
JSRUN = {
    "LSB_JOBID": "77",
    "LSB_MCPU_HOSTS": "batch5 1 h36n16 42 h36n17 42",
    "JSM_NAMESPACE_RANK": "9",
    "JSM_NAMESPACE_SIZE": "12",
    "JSM_NAMESPACE_LOCAL_RANK": "3",
    "JSM_NAMESPACE_LOCAL_SIZE": "6",
}
POD = {
    "KUBERNETES_PORT": "tcp://10.96.0.1:443",
    "MASTER_ADDR": "job-master-0",
    "MASTER_PORT": "23456",
    "WORLD_SIZE": "3",
    "RANK": "2",
}


def place(environment: Environment) -> tuple[int, int, int, int, int, str, int]:
    return (
        environment.global_rank,
        environment.local_rank,
        environment.node_rank,
        environment.world_size,
        environment.local_world_size,
        environment.main_address,
        environment.main_port,
    )


def test_slurm() -> None:
    assert place(Slurm(SLURM)) == (4, 0, 2, 5, 1, "gpu03", derived_port(1234, 3))


def test_slurm_on_one_node_needs_no_name_service() -> None:
    one = SLURM | {"SLURM_STEP_TASKS_PER_NODE": "5", "SLURM_NODEID": "0", "SLURM_LOCALID": "4"}
    assert Slurm(one).main_address == "127.0.0.1"


def test_slurm_takes_an_exported_address() -> None:
    environment = Slurm(SLURM | {"MASTER_ADDR": "gpu03-ib0", "MASTER_PORT": "6000"})
    assert (environment.main_address, environment.main_port) == ("gpu03-ib0", 6000)


def test_slurm_in_a_batch_script_names_what_only_srun_sets() -> None:
    batch = {k: v for k, v in SLURM.items() if not k.startswith("SLURM_STEP")}
    with pytest.raises(UsageError, match="SLURM_STEP_TASKS_PER_NODE isn't set, which srun sets"):
        Slurm(batch)


def test_slurm_refuses_variables_of_two_steps() -> None:
    with pytest.raises(UsageError, match="SLURM_NODEID is 2, but SLURM_STEP_TASKS_PER_NODE has 1 nodes"):
        Slurm(SLURM | {"SLURM_STEP_TASKS_PER_NODE": "5"})


@pytest.mark.parametrize(
    ("nodelist", "first"),
    [
        ("n1", "n1"),
        ("n1,n2", "n1"),
        ("n[1-3,7]", "n1"),
        ("n[7,1-3]", "n7"),
        ("gpu[09-12],cpu[1-2]", "gpu09"),
        ("rack[1-2]-n[01-16]", "rack1-n01"),
        ("rack2-a,rack[3-4]", "rack2-a"),
        ("n[10-12].site.org", "n10.site.org"),
        ("login-1", "login-1"),
    ],
)
def test_first_of_a_nodelist(nodelist: str, first: str) -> None:
    assert first_node(nodelist) == first


@pytest.mark.parametrize("nodelist", ["", "n[1-3", "[", ","])
def test_an_unreadable_nodelist_is_refused(nodelist: str) -> None:
    with pytest.raises(UsageError, match="MASTER_ADDR"):
        first_node(nodelist)


def test_tasks_per_node() -> None:
    assert expand_counts("2(x3),1") == [2, 2, 2, 1]
    assert expand_counts("4") == [4]
    with pytest.raises(UsageError, match="SLURM_STEP_TASKS_PER_NODE is 'two'"):
        expand_counts("two")


@pytest.mark.parametrize(
    ("names", "launcher"),
    [
        (tuple(name.replace("OMPI", "MV2") for name in OPENMPI if "WORLD" in name), "MVAPICH"),
        (("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"), "MPICH or Intel"),
        (("PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"), "PALS"),
        (tuple(OPENMPI)[:4], "Open MPI"),
    ],
)
def test_mpi_families(names: tuple[str, ...], launcher: str) -> None:
    environ = dict(zip(names, ("3", "4", "1", "2"), strict=True)) | {"MASTER_ADDR": "a", "MASTER_PORT": "99"}
    assert place(MPI(environ)) == (3, 1, 1, 4, 2, "a", 99)
    assert launcher in (MPI.detect(environ) or "")
    with pytest.raises(UsageError, match="MASTER_ADDR isn't set; set it to the host of rank 0, as in"):
        MPI({k: v for k, v in environ.items() if k != "MASTER_ADDR"})


def test_mpi_on_one_node_derives_a_port_from_the_job() -> None:
    environment = MPI(OPENMPI)
    assert environment.main_address == "127.0.0.1"
    assert environment.main_port in DERIVED_PORTS
    assert environment.main_port != MPI(OPENMPI | {"PMIX_NAMESPACE": "2131951618"}).main_port
    assert MPI(OPENMPI | {"SLURM_JOB_ID": "12"}).main_port == derived_port(12)
    assert MPI({k: v for k, v in OPENMPI.items() if k != "PMIX_NAMESPACE"}).main_port == 29500


def test_lsf_leaves_out_the_launch_node() -> None:
    assert place(LSF(JSRUN)) == (9, 3, 1, 12, 6, "h36n16", derived_port(77))


def test_lsf_knows_its_own_host_where_ranks_are_not_packed() -> None:
    here = socket.gethostname()
    hosts = f"batch5 1 {here} 42 h36n17 42"
    assert LSF(JSRUN | {"LSB_MCPU_HOSTS": hosts}).node_rank == 0


def test_lsf_without_a_launch_node() -> None:
    assert LSF(JSRUN | {"LSB_MCPU_HOSTS": "h1 6 h2 6"}).main_address == "h1"
    assert LSF(JSRUN | {"LSB_MCPU_HOSTS": "h1 1 h2 1"}).main_address == "h1"


def test_lsf_reads_the_rankfile_where_there_is_no_list(tmp_path: Path) -> None:
    rankfile = tmp_path / "rankfile"
    rankfile.write_text("batch5\n" + "h1\n" * 42 + "h2\n" * 42)
    environ = {k: v for k, v in JSRUN.items() if k != "LSB_MCPU_HOSTS"}
    assert LSF(environ | {"LSB_DJOB_RANKFILE": str(rankfile)}).main_address == "h1"
    with pytest.raises(UsageError, match="LSB_DJOB_RANKFILE names"):
        LSF(environ | {"LSB_DJOB_RANKFILE": str(tmp_path / "none")})
    with pytest.raises(UsageError, match="neither LSB_MCPU_HOSTS nor LSB_DJOB_RANKFILE"):
        LSF(environ)
    with pytest.raises(UsageError, match="LSB_MCPU_HOSTS is 'h1 x'"):
        LSF(environ | {"LSB_MCPU_HOSTS": "h1 x"})


def test_lsf_on_one_node() -> None:
    one = JSRUN | {"JSM_NAMESPACE_LOCAL_SIZE": "12", "LSB_MCPU_HOSTS": "", "JSM_NAMESPACE_LOCAL_RANK": "9"}
    assert (LSF(one).main_address, LSF(one).node_rank) == ("127.0.0.1", 0)


def test_kubeflow_has_one_process_per_pod() -> None:
    assert place(Kubeflow(POD)) == (2, 0, 2, 3, 1, "job-master-0", 23456)
    assert Kubeflow(POD | {"PET_NPROC_PER_NODE": "auto"}).world_size == 3


def test_kubeflow_with_several_processes_per_pod_wants_torchrun() -> None:
    with pytest.raises(UsageError, match=r"4 processes per pod .* make torchrun the pod's command"):
        Kubeflow(POD | {"PET_NPROC_PER_NODE": "4"})


@pytest.mark.parametrize(
    ("cls", "environ", "optional"),
    [
        (Slurm, SLURM, {"SLURM_NTASKS"}),
        (MPI, OPENMPI, {"PMIX_NAMESPACE"}),
        (LSF, JSRUN, {"LSB_MCPU_HOSTS"}),
        (Kubeflow, POD, {"KUBERNETES_PORT"}),
    ],
)
def test_a_missing_or_wrong_variable_is_named(
    cls: type[Environment], environ: dict[str, str], optional: set[str]
) -> None:
    for name in set(environ) - optional:
        # Open MPI's rank and local rank are its mark; without them the first family is assumed.
        with pytest.raises(UsageError, match=f"^{name} isn't set, which .* sets"):
            cls({k: v for k, v in environ.items() if k != name})
        if name in ("MASTER_ADDR", "SLURM_STEP_NODELIST"):
            continue
        with pytest.raises(UsageError, match=f"^{name} is 'x7'"):
            cls(environ | {name: "x7"})
        if "RANK" in name and name != "GROUP_RANK":
            with pytest.raises(UsageError, match=f"^{name} is '-1'"):
                cls(environ | {name: "-1"})
            with pytest.raises(UsageError, match=r"gave this process .*rank 99 among"):
                cls(environ | {name: "99"})
