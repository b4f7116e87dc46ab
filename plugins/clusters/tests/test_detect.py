"""Which environment is detected: variables as they were recorded under the real launchers."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from stratagem_clusters import plugin

from stratagem.environments import Environment, detect_environment
from stratagem.errors import UsageError
from stratagem.installed.catalogue import load_catalogue
from stratagem.plugin import own
from stratagem.resolve.environment import choose_environment

COMPONENTS = [
    component
    for component in [*own.stratagem_components(), *plugin.stratagem_components()]
    if component.kind == "environment"
]
CLASSES: list[type[Environment]] = [
    component.load() for component in sorted(COMPONENTS, key=lambda component: -component.priority)
]

JOB = {
    "SLURM_JOB_ID": "3",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_NNODES": "2",
    "SLURM_NODELIST": "n[1-2]",
    "SLURM_TASKS_PER_NODE": "1(x2)",
}
BATCH = JOB | {
    "ENVIRONMENT": "BATCH",
    "SLURM_GTIDS": "0",
    "SLURM_JOB_NAME": "job.sh",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_NPROCS": "2",
    "SLURM_NTASKS": "2",
    "SLURM_NTASKS_PER_NODE": "1",
    "SLURM_PROCID": "0",
}
STEP = BATCH | {
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_LAUNCHER_PORT": "33711",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}
PTY_SHELL = STEP | {
    "SLURM_JOB_NAME": "bash",
    "SLURM_PTY_PORT": "44529",
    "SLURM_STEP_NODELIST": "n1",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1",
}
OPENMPI = {
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_COMM_WORLD_SIZE": "2",
    "PMIX_NAMESPACE": "2131951617",
    "PMIX_RANK": "0",
}
MPICH = {"MPI_LOCALNRANKS": "2", "MPI_LOCALRANKID": "0", "PMI_FD": "6", "PMI_RANK": "0", "PMI_SIZE": "2"}
ENV = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
TORCHRUN = ENV | {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "r"}
POD = ENV | {"KUBERNETES_PORT": "tcp://10.96.0.1:443", "KUBERNETES_SERVICE_HOST": "10.96.0.1"}
JSRUN = {"LSB_JOBID": "7", "JSM_NAMESPACE_RANK": "0", "JSM_NAMESPACE_SIZE": "2"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param({}, "single", id="nothing"),
        pytest.param(JOB, "single", id="salloc without srun"),
        pytest.param(BATCH, "single", id="sbatch without srun"),
        pytest.param(STEP, "slurm", id="srun in sbatch"),
        pytest.param(STEP | {"SLURM_JOB_NAME": "interactive"}, "slurm", id="srun in salloc"),
        pytest.param(STEP | {"SLURM_PTY_PORT": "44529"}, "slurm", id="srun --pty of several tasks"),
        pytest.param(PTY_SHELL, "single", id="srun --pty bash"),
        pytest.param(PTY_SHELL | {"SLURM_JOB_NAME": "wrap"}, "single", id="sbatch from srun --pty bash"),
        pytest.param(STEP | {"SLURM_STEP_ID": "4294967290"}, "single", id="interactive step of salloc"),
        pytest.param(STEP | {"SLURM_STEP_ID": "4294967291"}, "single", id="batch step"),
        pytest.param(STEP | {"PMI_RANK": "0", "PMI_SIZE": "2"}, "slurm", id="srun --mpi=pmi2"),
        pytest.param(STEP | MPICH, "mpi", id="mpiexec in a Slurm job"),
        pytest.param(STEP | OPENMPI, "mpi", id="mpirun in a Slurm job"),
        pytest.param(OPENMPI, "mpi", id="Open MPI"),
        pytest.param(MPICH, "mpi", id="MPICH"),
        pytest.param({"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "a 1"}, "single", id="bsub without jsrun"),
        pytest.param(JSRUN | OPENMPI, "lsf", id="jsrun, which sets Open MPI's variables too"),
        pytest.param({"LSB_JOBID": "7"} | OPENMPI, "mpi", id="mpirun in an LSF job"),
        pytest.param(ENV, "env", id="env://"),
        pytest.param(STEP | ENV, "slurm", id="srun with exported env://"),
        pytest.param(POD, "kubeflow", id="PyTorchJob"),
        pytest.param(POD | TORCHRUN, "torchelastic", id="torchrun in a pod"),
        pytest.param(POD | {"LOCAL_RANK": "0"}, "env", id="another launcher in a pod"),
        pytest.param(STEP | TORCHRUN, "torchelastic", id="torchrun in srun"),
        pytest.param({"TORCHELASTIC_RUN_ID": "r"}, "single", id="left over from torchrun"),
        pytest.param({"NODE_RANK": "1", "MASTER_ADDR": "a"}, "node", id="one command per node"),
        pytest.param(STEP | {"NODE_RANK": "1"}, "slurm", id="srun beside a node's rank"),
    ],
)
def test_the_nearest_launcher_is_detected(environ: Mapping[str, str], expected: str) -> None:
    cls, why = detect_environment(CLASSES, environ)
    assert (cls.name, bool(why)) == (expected, True)
    if expected == "single":
        assert choose_environment(load_catalogue(), "auto", environ).name == "single"


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        (
            {"OMPI_COMM_WORLD_SIZE": "2"},
            "OMPI_COMM_WORLD_SIZE=2 says that Open MPI's mpirun has started several",
        ),
        (
            {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"},
            "but OMPI_COMM_WORLD_LOCAL_RANK aren't set: start the processes with the launcher",
        ),
        ({"MV2_COMM_WORLD_SIZE": "2"}, "MV2_COMM_WORLD_RANK, MV2_COMM_WORLD_LOCAL_RANK aren't set"),
        ({"PMI_SIZE": "2"}, "PMI_RANK, MPI_LOCALRANKID aren't set"),
        ({"HOROVOD_SIZE": "2", "HOROVOD_RANK": "0"}, "HOROVOD_GLOO_RENDEZVOUS_PORT aren't set"),
        ({"SLURM_NTASKS": "2"}, "SLURM_NTASKS=2 says that srun has started several processes"),
        ({"SLURM_NTASKS": "2", "SLURM_PROCID": "0"}, "SLURM_STEP_ID, SLURM_STEP_NUM_TASKS aren't set"),
        (BATCH | {"SLURM_STEP_NUM_TASKS": "2"}, "but SLURM_STEP_ID aren't set"),
        ({"JSM_NAMESPACE_SIZE": "2"}, "JSM_NAMESPACE_RANK, LSB_JOBID aren't set"),
    ],
)
def test_half_of_a_launchers_variables_are_refused(environ: Mapping[str, str], said: str) -> None:
    # Each of several processes would take itself for the only one.
    with pytest.raises(UsageError, match="--environment single") as refused:
        choose_environment(load_catalogue(), "auto", environ)
    assert said in str(refused.value)
    assert choose_environment(load_catalogue(), "single", environ).name == "single"
    sizes = ("SIZE", "NTASKS", "NUM_TASKS")
    alone = {name: "1" if name.endswith(sizes) else value for name, value in environ.items()}
    assert choose_environment(load_catalogue(), "auto", alone).name == "single"


def test_components_are_what_they_say() -> None:
    assert sorted(cls.name for cls in CLASSES) == sorted(component.name for component in COMPONENTS)
    assert [cls.name for cls in CLASSES if not cls.creates_processes] == ["node", "single"]


def test_no_two_have_one_priority() -> None:
    assert len({component.priority for component in COMPONENTS}) == len(COMPONENTS)


def test_the_reason_names_the_variables() -> None:
    assert detect_environment(CLASSES, STEP)[1] == "srun has set SLURM_STEP_ID=0 and SLURM_PROCID=0"
    assert detect_environment(CLASSES, OPENMPI)[1] == "Open MPI's mpirun has set OMPI_COMM_WORLD_RANK=0"


def test_importing_the_environments_imports_no_torch() -> None:
    import subprocess
    import sys

    program = (
        "import sys, stratagem_clusters; "
        "[getattr(stratagem_clusters, name) for name in stratagem_clusters.__all__]; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
