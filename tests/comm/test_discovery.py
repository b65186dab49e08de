"""`discover` returns the variables of a torch launcher from those of MPI, Azure ML and SageMaker."""

from __future__ import annotations

import importlib.util

import pytest

from dsexplore._internal.comm import discovery
from dsexplore._internal.comm.discovery import discover
from dsexplore._internal.errors import UsageError

MPI_RANK = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "1"}


@pytest.fixture(autouse=True)
def no_mpi4py(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behave as on a machine without mpi4py."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "mpi4py" else find(name, *a))


def test_a_torch_launcher_leaves_nothing_to_find() -> None:
    assert discover({**TORCHRUN, **MPI_RANK}) == {}


def test_mpirun_on_one_node() -> None:
    assert discover({**MPI_RANK, "OMPI_COMM_WORLD_LOCAL_SIZE": "8"}, 1234) == {
        "RANK": "3",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1234",
    }


def test_mpirun_on_several_nodes_needs_an_address() -> None:
    several = {**MPI_RANK, "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
    with pytest.raises(UsageError, match="several nodes and MASTER_ADDR is not set"):
        discover(several)
    found = discover({**several, "MASTER_ADDR": "node0", "MASTER_PORT": "77"})
    assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == ("node0", "77")


def test_without_its_sizes_mpirun_is_not_taken_for_one_node() -> None:
    with pytest.raises(UsageError, match="several nodes and MASTER_ADDR is not set"):
        discover({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0"})


@pytest.mark.parametrize(
    ("local_size", "more", "address", "port"),
    [
        ("8", {"AZ_BATCHAI_MPI_MASTER_NODE": "one"}, "one", "54965"),
        ("4", {"AZ_BATCH_MASTER_NODE": "many:6000"}, "many", "6105"),
        ("4", {"AZ_BATCH_MASTER_NODE": "many:6000", "MASTER_PORT": "9"}, "many", "9"),
    ],
)
def test_azure(local_size: str, more: dict[str, str], address: str, port: str) -> None:
    azure = {"AZUREML_EXPERIMENT_ID": "x", **MPI_RANK, "OMPI_COMM_WORLD_LOCAL_SIZE": local_size}
    found = discover({**azure, **more})
    assert (found["RANK"], found["MASTER_ADDR"], found["MASTER_PORT"]) == ("3", address, port)
    assert found["NCCL_SOCKET_IFNAME"] == "^docker0,lo"


def test_azures_variables_do_not_count_on_dlts() -> None:
    dlts = {"AZUREML_EXPERIMENT_ID": "x", "DLTS_JOB_ID": "y", **MPI_RANK, "OMPI_COMM_WORLD_LOCAL_SIZE": "8"}
    assert "NCCL_SOCKET_IFNAME" not in discover(dlts)


def test_sagemaker_keeps_its_own_address() -> None:
    found = discover({"SM_TRAINING_ENV": "{}", "MASTER_ADDR": "algo-1", **MPI_RANK})
    assert found == {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}


def test_an_incomplete_place_names_what_is_missing() -> None:
    with pytest.raises(UsageError, match="SageMaker was found, but OMPI_COMM_WORLD_RANK is not set"):
        discover({"SM_TRAINING_ENV": "{}"})


def test_no_launcher_at_all_is_told_with_what_to_do() -> None:
    with pytest.raises(UsageError, match=r"RANK, MASTER_ADDR not set.*torchrun or mpirun"):
        discover({"WORLD_SIZE": "2", "MASTER_PORT": "1"})


def test_what_is_found_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*TORCHRUN, "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**MPI_RANK, "OMPI_COMM_WORLD_LOCAL_SIZE": "8"}.items():
        monkeypatch.setenv(name, value)
    environment = dict(discovery.os.environ)
    monkeypatch.setattr(discovery.os, "environ", environment)
    discovery.apply(4321, verbose=False)
    found = {name: environment[name] for name in (*TORCHRUN, "LOCAL_RANK")}
    told = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
    assert found == {**told, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "4321"}


def test_a_rank_that_mpi_replaces_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "h", "MASTER_PORT": "1"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: object())
    monkeypatch.setattr(discovery, "from_mpi4py", lambda port: found)
    with pytest.warns(RuntimeWarning, match="RANK=3 is replaced by MPI's 0, as MASTER_ADDR, MASTER_PORT is not set"):
        assert discover({"RANK": "3", "WORLD_SIZE": "1"}) == found
