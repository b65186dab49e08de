"""Cluster files: every number has a source, and a wrong file is refused with the key's name."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsexplore import UsageError
from dsexplore._internal.cost.cluster_file import BANDWIDTH, SECTIONS, SIZE, TIME, parse_quantity
from dsexplore._internal.hardware import CLUSTERS, gpu_of_file
from dsexplore.cost import Cluster, known_clusters
from tests.damaged import damaged, toml

REQUIRED = (
    "8xl40s",
    "b200",
    "dgx-a100",
    "dgx-h100",
    "gb200-nvl72",
    "gloo-local",
    "h100-pcie",
    "hgx-h200",
    "mi300x",
)
OWN = """
title = "my lab"
library = "nccl"
generation = "ada"
topology = "pcie"
ranks_per_node = 2
[node]
bandwidth = "32 GB/s"
achievable = 0.5
latency = "1.3 us"
short_bandwidth = "11 GB/s"
ramp = "100 us"
[compute]
bf16 = "165 TFLOP/s"
fp32 = "82 TFLOP/s"
achievable = 0.8
[memory]
size = "24 GiB"
bandwidth = "1008 GB/s"
achievable = 0.9
[launch]
overhead = "5 us"
collective = "6.6 us"
"""


def own(folder: Path, old: str = "", new: str = "") -> Path:
    """Return a user's file with one part replaced."""
    assert old in OWN
    path = folder / "lab.toml"
    path.write_text(OWN.replace(old, new, 1) if old else OWN + new)
    return path


@pytest.mark.parametrize(
    ("name", "world_size", "ranks_per_node", "domain"),
    [
        ("dgx-h100", 64, None, 8),
        ("dgx-h100", 64, 4, 4),
        ("gb200-nvl72", 64, None, 72),
        ("gb200-nvl72", 64, 4, 72),  # as a launcher starts it
        ("gb200-nvl72", 64, 2, 32),  # half of each tray: two racks of 36
        ("gb200-nvl72", 64, 72, 72),  # the rack given as a node
        *(("gb200-nvl72", size, 4, 64) for size in (128, 256, 512, 1024)),  # whole powers of two, not cut at 72
        *(("gb200-nvl72", size, None, 72) for size in (144, 576)),
        ("gb200-nvl72", 148, None, 72),  # even domains would hold four
    ],
)
def test_ranks_that_share_the_fast_links(name: str, world_size: int, ranks_per_node: int | None, domain: int) -> None:
    assert Cluster.load(name).domain_of_job(world_size, ranks_per_node) == domain


@given(st.integers(1, 4096), st.sampled_from(known_clusters()))
def test_domains_of_a_job_hold_whole_nodes_and_at_most_what_the_cluster_has(world_size: int, name: str) -> None:
    cluster = Cluster.load(name)
    domain = cluster.domain_of_job(world_size)
    assert domain % cluster.ranks_per_node == 0
    assert cluster.ranks_per_domain / 2 < domain <= cluster.ranks_per_domain


def test_a_domain_is_whole_nodes(tmp_path: Path) -> None:
    two = own(tmp_path, "ranks_per_node = 2", "ranks_per_node = 2\nranks_per_domain = 6")
    assert (Cluster.load(two).ranks_per_node, Cluster.load(two).ranks_per_domain) == (2, 6)
    with pytest.raises(UsageError, match="ranks_per_domain = 7: write a multiple of ranks_per_node, 2"):
        Cluster.load(own(tmp_path, "ranks_per_node = 2", "ranks_per_node = 2\nranks_per_domain = 7"))


def test_the_clusters_that_ship() -> None:
    assert set(REQUIRED) <= set(known_clusters())


@pytest.mark.parametrize("name", known_clusters())
def test_every_number_has_a_source_and_a_date(name: str) -> None:
    cluster = Cluster.load(name.upper())
    keys = {"ranks_per_node"} | ({"ranks_per_domain"} if cluster.domain_kind != "node" else set())
    keys |= {"power"} if cluster.power is not None else set()
    assert cluster.price is None  # prices are the user's
    text = CLUSTERS.path(name).read_text(encoding="utf-8")
    if cluster.base:
        assert set(tomllib.loads(text)) <= {"title", "base", "network", "measured"}
        text = CLUSTERS.path(cluster.base).read_text(encoding="utf-8")
    for section, kinds in SECTIONS.items():
        if f"[{section}]" in text:
            part = text.split(f"[{section}]")[1].split("\n[")[0]
            keys |= {f"{section}.{key}" for key in kinds if f"\n{key} =" in part}
    assert cluster.sources.keys() == keys
    for key, source in cluster.sources.items():
        assert len(source) > 15, key
        assert "no date" not in source, key
    for table in cluster.measured:
        assert table.source
        assert table.date >= "2026"


@pytest.mark.parametrize("name", known_clusters())
def test_the_numbers_of_a_cluster_fit_together(name: str) -> None:
    cluster = Cluster.load(name)
    assert cluster.like == "" or cluster.like in known_clusters()
    assert cluster.node.short_bandwidth <= cluster.node.bandwidth
    if cluster.network is not None:
        assert cluster.network.latency > cluster.node.latency
    assert cluster.compute.flops("bf16") < cluster.compute.dense["bf16"]


def test_a_users_own_file(tmp_path: Path) -> None:
    cluster = Cluster.load(own(tmp_path))
    assert (cluster.name, cluster.node.bandwidth, cluster.node.latency) == ("lab", 32e9, 1.3e-6)
    assert cluster.network is None
    assert cluster.sources == {}
    path = own(tmp_path, "32 GB/s", "31.5 GB/s")
    assert Cluster.load(str(path)).node.bandwidth == 31.5e9  # read again, not kept


def test_a_source_may_stand_beside_a_number(tmp_path: Path) -> None:
    path = own(tmp_path, '"1.3 us"', '{ value = "1.3 us", source = "measured by me", date = "2026-11-01" }')
    assert Cluster.load(path).sources == {"node.latency": "measured by me (2026-11-01)"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('bandwidth = "32 GB/s"', "bandwidth = 32", r"node\.bandwidth = 32 has no unit: write a bandwidth like"),
        ('"32 GB/s"', '"32"', r"node\.bandwidth = '32' has no unit"),
        ('"32 GB/s"', '"32 GB"', r"node\.bandwidth = '32 GB' has the unit 'GB', which is no bandwidth"),
        ('"32 GB/s"', '"-32 GB/s"', r"node\.bandwidth = '-32 GB/s' is not a bandwidth that can be meant"),
        ('"32 GB/s"', '"nan GB/s"', r"node\.bandwidth = 'nan GB/s' is not a number with a unit"),
        ('"1.3 us"', '"90 s"', r"node\.latency = '90 s' is not a time that can be meant"),
        ("achievable = 0.5", "achievable = 50", r"node\.achievable = 50 is not a fraction"),
        ("achievable = 0.8", "achieved = 0.8", r"lacks compute\.achievable"),
        ("ramp =", "rampe =", r"lacks node\.ramp"),
        ('fp32 = "82 TFLOP/s"', 'fp32 = "82 TFLOP/s"\nfp2 = "1 TFLOP/s"', r"unknown compute\.fp2: known are"),
        ("ranks_per_node = 2", "ranks_per_node = 0", r"ranks_per_node = 0 is not a number of ranks"),
        (
            "ranks_per_node = 2",
            "ranks_per_node = 2\nprocessors = 4",
            r"processors = 4, which only ranks of the topology",
        ),
        ('"pcie"\n', '"host"\nprocessors = 0\n', r"processors = 0 is not a number of processors"),
        ('"pcie"', '"star"', r"topology = 'star': write one of switch, mesh, cube, pcie, host"),
        (
            "ranks_per_node = 2",
            'ranks_per_node = 2\npower = "700"',
            r"power = '700' has no unit: write it like '700 W'",
        ),
        (
            "ranks_per_node = 2",
            'ranks_per_node = 2\nprice = "2 $/h"',
            r"price = '2 \$/h' is not a price: write what one",
        ),
        ("[memory]", "[memoir]", r"lacks memory"),
        ("[node]", "[node", r"cannot be read"),
    ],
)
def test_a_wrong_file_is_refused_by_the_name_of_its_key(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Cluster.load(own(tmp_path, old, new))


@pytest.mark.parametrize(
    ("op", "sizes", "times", "message"),
    [
        ("all_sum", "[8]", "[1.0]", r"measured\[0\]\.op = 'all_sum': write one of all_reduce"),
        ("all_reduce", "[8, 16]", "[1.0]", r"2 sizes for 1 times"),
        ("all_reduce", "[16, 8]", "[1.0, 2.0]", r"do not ascend"),
        ("all_reduce", "[8]", "[0.0]", r"microseconds = \[… 0\.0 …\]: write numbers above 0"),
        ("all_reduce", "[8]", "[nan]", r"nan …\]: write numbers above 0"),
        ("all_reduce", "[8]", "[inf]", r"inf …\]: write numbers above 0"),
        ("all_reduce", "[0]", "[1.0]", r"bytes = \[… 0 …\]: write numbers above 0"),
        ("all_reduce", '["1 KiB"]', "[1.0]", r"'1 KiB' …\]: write numbers above 0"),
        ("all_reduce", "[true]", "[1.0]", r"True …\]: write numbers above 0"),
        ("all_reduce", "8", "[1.0]", r"bytes = 8: write a list of numbers"),
        ("all_reduce", "[]", "[]", r"bytes = \[\]: write a list of numbers"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path: Path, op: str, sizes: str, times: str, message: str) -> None:
    table = f'[[measured]]\nop = "{op}"\nnodes = 1\nranks_per_node = 2\nbytes = {sizes}\nmicroseconds = {times}\n'
    with pytest.raises(UsageError, match=message):
        Cluster.load(own(tmp_path, new=table + 'source = "me"\ndate = "2026-11-01"\n'))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("[measured]\n", r"lacks measured\[0\]\.bytes"),
        ('[[measured]]\nop = "send"\n', r"lacks measured\[0\]\.bytes"),
        (
            '[[measured]]\nop = "send"\nnodes = "two"\nranks_per_node = 2\nbytes = [8]\nmicroseconds = [1]\n'
            'source = ""\ndate = ""\n',
            r"measured\[0\]\.nodes = 'two' is not a number of ranks",
        ),
    ],
)
def test_a_table_without_its_keys_is_refused(tmp_path: Path, table: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Cluster.load(own(tmp_path, new=table))


def test_an_unknown_cluster_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(
        UsageError, match=r"no hardware named 'dgx-h1000' is known \(did you mean 'dgx-h100'\?\): name one of 8xl40s"
    ):
        Cluster.load("dgx-h1000")
    with pytest.raises(UsageError, match=r"nowhere\.toml cannot be read"):
        Cluster.load("nowhere.toml")


def test_a_dtype_without_a_rate_is_refused() -> None:
    with pytest.raises(UsageError, match="no compute rate for dtype 'fp8': it has bf16"):
        Cluster.load("dgx-a100").compute.flops("fp8")


def test_quantities() -> None:
    assert parse_quantity("400 Gbit/s", BANDWIDTH) == 50e9
    for power, prefix in enumerate(("K", "M", "G", "T"), start=1):
        assert parse_quantity(f"1 {prefix}iB", SIZE) == 2.0 ** (10 * power)
    for power, prefix in enumerate(("k", "M", "G", "T"), start=1):
        assert parse_quantity(f"1 {prefix}B/s", BANDWIDTH) == 10.0 ** (3 * power)
    assert parse_quantity("1 GiB/s", BANDWIDTH) == 2**30
    assert parse_quantity("0.6us", TIME) == pytest.approx(6e-7)
    assert parse_quantity("1 B", SIZE) == 1.0
    with pytest.raises(ValueError, match="is not a size that can be meant"):
        parse_quantity("0.9 B", SIZE)


def test_a_file_takes_from_its_base_what_it_does_not_say(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('title = "mine"\nbase = "dgx-h100"\n[network]\nbandwidth = "25 GB/s"\n', encoding="utf-8")
    mine, base = Cluster.load(path), Cluster.load("dgx-h100")
    assert mine.network is not None
    assert base.network is not None
    assert (mine.network.bandwidth, mine.network.latency) == (25e9, base.network.latency)
    assert (mine.node, mine.compute, mine.ranks_per_node) == (base.node, base.compute, base.ranks_per_node)
    assert (mine.like, mine.measured, mine.title) == ("dgx-h100", (), "mine")
    path.write_text('title = "mine"\nbase = "no such"\n', encoding="utf-8")
    with pytest.raises(UsageError, match="no such"):
        Cluster.load(path)


def test_clouds_have_files() -> None:
    for cloud in ("aws-p5", "aws-p5en", "aws-p6-b200", "gcp-a3-high", "gcp-a3-mega", "azure-nd-h100-v5", "oci-h100"):
        network = Cluster.load(cloud).network
        assert network is not None
        assert network.bandwidth <= 50e9


@pytest.mark.parametrize(("pod", "message"), [("0", "number of ranks"), ('"all"', "number of ranks")])
def test_a_pod_is_a_number_of_ranks(tmp_path: Path, pod: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f'title = "mine"\nbase = "dgx-h100"\n[network]\npod = {pod}\n', encoding="utf-8")
    with pytest.raises(UsageError, match=message):
        Cluster.load(path)


@pytest.mark.parametrize("base", ["mine.toml", "other.toml"])
def test_a_file_that_is_the_base_of_itself_is_refused(
    tmp_path: Path, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(f'title = "mine"\nbase = "{base}"\n', encoding="utf-8")
    Path("other.toml").write_text('title = "other"\nbase = "mine.toml"\n', encoding="utf-8")
    for read in (lambda: Cluster.load("mine.toml"), lambda: gpu_of_file("mine.toml")):
        with pytest.raises(UsageError, match=r"toml has base = '\w+.toml': it is the base of itself"):
            read()


@pytest.mark.parametrize(("name", "least"), [("dgx-h100", 100), ("aws-p5", 5)])
def test_one_wrong_value_is_read_or_refused_by_the_name_of_file_and_key(tmp_path: Path, name: str, least: int) -> None:
    content = tomllib.loads(CLUSTERS.path(name).read_text(encoding="utf-8"))
    content["measured"] = content["measured"][:1]
    if "base" in content:  # the other keys are those of dgx-h100
        content = {key: content[key] for key in ("title", "base")}
    file = tmp_path / "mine.toml"
    refused: list[tuple[str, str]] = []
    for where, wrong in damaged(content):
        file.write_text(toml(wrong), encoding="utf-8")
        try:
            str(Cluster.load(str(file)))
            gpu_of_file(str(file))
        except UsageError as error:
            refused.append((where, str(error)))
    of_two = ("value", "base", "bytes", "microseconds")  # said by the key above, or by the other one
    assert [pair for pair in refused if "mine.toml" not in pair[1]] == []
    assert [(key, said) for key, said in refused if key not in said and key not in of_two] == []
    assert len(refused) > least
