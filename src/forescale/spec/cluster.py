"""What it runs on: a device and the ordered network tiers that join many of them. SI units throughout."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal, TypeAlias

from msgspec.structs import force_setattr, replace

from forescale import wording
from forescale.errors import SpecError
from forescale.limits import (
    MEMORY,
    Delay,
    Devices,
    Extent,
    Factor,
    Interval,
    Measure,
    Rate,
    Seconds,
    Share,
    within,
)
from forescale.numeric import divisors
from forescale.struct import SpecStruct
from forescale.units import counted, format_bytes, parse

Topology: TypeAlias = Literal["switch", "mesh", "torus"]
NEEDS_TRANSPOSES = frozenset({"ada", "blackwell-gb20x", "hopper"})
"""Architectures whose 8-bit products read operands along rows only."""
WAN = "wan"
"""Name of the tier between sites."""
VECTOR_SHARE = 1 / 16
"""Vector rate of a device that states none, over its 16-bit matrix rate: about that of A100 and H100."""
HOST_BANDWIDTH = 32e9
"""byte/s of a device that does not say: PCIe 4 x16."""
INSIDE_NODES = ("pcie", "infinity-fabric", "xgmi")
"""Words in the names of links that join devices inside a node only."""
NAMED = 8
"""Numbers of devices that an error names."""


class MatrixRates(SpecStruct, frozen=True, kw_only=True):
    """Dense peak rates of the matrix units in FLOP/s by data type; None where the device has none."""

    fp32: Rate | None = None
    tf32: Rate | None = None
    fp16: Rate | None = None
    bf16: Rate | None = None
    fp8: Rate | None = None
    fp4: Rate | None = None
    int8: Rate | None = None


class Device(SpecStruct, frozen=True, kw_only=True):
    """One accelerator as software sees it (an MI250X is two)."""

    name: str
    vendor: str = "unnamed"
    architecture: str = "unknown"
    """Generation, such as "hopper"; calibrations are looked up by device name, then by this."""
    matrix_flops: MatrixRates
    """Of products that accumulate in fp32, as training's do."""
    reduced_accumulation_flops: MatrixRates | None = None
    """Dense rates of products that accumulate in 16 bits, where these are faster; training uses none of them."""
    vector_flops: Rate = 0.0
    """Peak fp32 rate of the vector units, FLOP/s; by default the fp32 matrix rate, else 1/16 of the 16-bit one."""
    hbm_bytes: Rate
    hbm_bandwidth: Rate
    """byte/s"""
    num_cores: Extent = 128
    """SMs, CUs or matrix units: what a kernel's tiles are spread over."""
    clock_hz: Rate = 1.5e9
    rated_clock_hz: Measure = 0.0
    """Clock at which `matrix_flops` are quoted, where cores run at another (`clock_hz`); 0 is none."""
    l2_bytes: Measure = 0.0
    host_bandwidth: Rate = HOST_BANDWIDTH
    """byte/s per direction between device and host memory."""
    host_pace: Annotated[float, Interval(ge=1.0, le=1e24)] = 1.0
    """Time that the host of its usual node takes for a launch, over that of a DGX H100's."""
    power_w: Measure = 0.0
    node_power_w: Measure = 0.0
    """Most power of its usual node, with host, fans and network cards, per device [W]; 0 is unknown."""
    price_per_hour: Measure = 0.0
    source: str = ""

    def __post_init__(self) -> None:
        """Refuse a device that multiplies nothing; derive a vector rate that is not given."""
        rates = self.matrix_flops
        known = [item for item in (rates.bf16, rates.fp16, rates.tf32, rates.fp8, rates.fp4) if item]
        if not (known or rates.fp32):
            names = ", ".join(rates.__struct_fields__)
            fix = f"give at least one of {names}"
            raise wording.missing("a rate in matrix_flops", fix).at(f"device {self.name}")
        if not self.vector_flops:
            force_setattr(self, "vector_flops", rates.fp32 or known[0] * VECTOR_SHARE)

    @property
    def peak_clock_hz(self) -> float:
        """Clock at which `matrix_flops` are reached."""
        return self.rated_clock_hz or self.clock_hz

    @property
    def needs_transposes(self) -> bool:
        """Whether 8-bit products contract along rows of both operands only, so that backward needs transposed copies.

        Others read one copy either way (Transformer Engine, nvte_is_non_tn_fp8_gemm_supported).
        """
        return self.architecture in NEEDS_TRANSPOSES

    def limit_of(self, value: object, what: str) -> float:
        """Return the bytes that layouts may fill as `what` gives them: a number, or text with a unit."""
        try:
            limit: float = within(parse(value, "byte") if isinstance(value, str) else value, MEMORY, what)
        except SpecError as error:
            raise (error if str(error).startswith(what) else error.worded(f"{what} = {error}")) from None
        self.check_limit(limit, what, value)
        return limit

    def check_limit(self, limit: float, what: str, value: object) -> None:
        """Refuse to let layouts fill more than the device has; `value` is how `what` says it."""
        if limit > self.hbm_bytes:
            where, _, key = what.rpartition(": ")
            allowed = f"at most the {format_bytes(self.hbm_bytes)} of {self.name}"
            raise wording.out_of_range(key, value, allowed).at(where)


class LinkParameters(SpecStruct, frozen=True, kw_only=True):
    """What somebody measured of the collectives on a tier; None leaves the catalogue's calibration."""

    efficiency: Share | None = None
    """Share of the bandwidth that long messages reach."""
    exchange_efficiency: Share | None = None
    """The same of all-to-all and point-to-point traffic."""
    reduction_efficiency: Share | None = None
    """The same of reduction in the network."""
    launch: Seconds | None = None
    """Seconds before the first byte of a collective moves."""
    exchange_launch: Seconds | None = None
    """The same of all-to-all and point-to-point traffic."""
    peer_latency: Seconds | None = None
    """Seconds per peer of an all-to-all."""
    algorithms: tuple[str, ...] | None = None
    """What the library can do here, such as ring, tree and direct_exchange."""
    group_links: Factor | None = None
    """Links of a node that the library's rings of one group go over; None is all of them."""


class Tier(SpecStruct, frozen=True, kw_only=True):
    """One level of the network, innermost first."""

    name: str
    size: Annotated[int, Interval(ge=0, le=2**24)] = 0
    """Devices that reach each other within this tier, inner tiers included; 0 is without limit, of the outermost."""
    bandwidth: Rate
    """byte/s per device and direction, all of the device's links of this tier together."""
    latency: Delay
    """Seconds per hop."""
    topology: Topology = "switch"
    link_bandwidth: Rate | None = None
    """byte/s per direction between one pair of neighbours, where it is less than `bandwidth` (mesh, torus)."""
    dimensions: Annotated[int, Interval(ge=0, le=16)] = 0
    """Dimensions of a torus."""
    wraps_from: Annotated[int, Interval(ge=0, le=2**20)] = 0
    """Devices along a dimension of a torus from which on its ends are joined; 0 joins them in a whole tier only."""
    nics_per_device: Annotated[float, Interval(gt=0, le=1e3)] = 1.0
    in_network_reduction: bool = False
    """The switches can reduce (NVLS, SHARP)."""
    wide_area: bool = False
    """A link between sites, which may train by themselves (`Workload.outer`); only the outermost tier can be one."""
    sites: Annotated[int, Interval(ge=0, le=2**20)] = 0
    """Equal sites that a wide-area link joins, of however many devices; 0 has sites as large as the tier inside."""
    parameters: LinkParameters | None = None
    """The tier's own collectives, over the catalogue's calibration of such links."""


class SiteLink(SpecStruct, frozen=True, kw_only=True):
    """Sites that the devices are spread over, and what joins them."""

    count: Annotated[int, Interval(ge=2, le=2**20)]
    bandwidth: Rate
    """byte/s of each site's link, shared by its devices."""
    latency: Delay = 0.0
    """Seconds from one site to the next."""


class Cluster(SpecStruct, frozen=True, kw_only=True):
    """Equal devices on ordered tiers; the last tier holds them all."""

    name: str
    device: Device
    num_devices: Devices
    devices_per_node: Devices
    tiers: tuple[Tier, ...]
    host_memory_bytes: Measure = 0.0
    """Memory of the host of one node, which offloaded states must fit; 0 is not known."""
    source: str = ""

    def __post_init__(self) -> None:
        """Check that tiers grow outwards and hold all devices."""
        if not self.tiers:
            raise wording.required_with("at least one network tier", "it").at(f"cluster {self.name}")
        sizes = [tier.size or float("inf") for tier in self.tiers]
        if sizes != sorted(sizes):
            got = [tier.size for tier in self.tiers]
            raise wording.wrong_type("the sizes of the tiers, from the innermost out,", got, "growing").at(
                f"cluster {self.name}"
            )
        around = [tier.name for tier in self.tiers[:-1] if not tier.size and not self.tiers[-1].wide_area]
        if around:
            raise wording.required_with(
                "its size", "a tier other than the outermost", fix=f"give {around[0]!r} its size"
            ).at(f"cluster {self.name}")
        if sizes[-1] < self.num_devices:
            last = self.tiers[-1]
            raise wording.too_large(
                f"its outermost tier {last.name!r}", self.num_devices, counted(last.size, "device")
            ).at(f"cluster {self.name}")

        if any(tier.wide_area for tier in (*self.tiers[:-1], *(self.tiers if len(sizes) == 1 else ()))):
            allowed = "the outermost tier, around those of a site's own network"
            raise wording.wrong_type("a wide-area tier", "an inner tier", allowed).at(f"cluster {self.name}")
        if any(tier.sites and not tier.wide_area for tier in self.tiers):
            raise wording.required_with("wide_area = true", "sites of a tier").at(f"cluster {self.name}")
        self._check_nodes()

    def _check_nodes(self) -> None:
        """Refuse tiers that split nodes, and links inside a node that reach beyond it."""
        node = self.devices_per_node
        present = self._of_site if self.tiers[-1].wide_area else self.num_devices
        for tier in self.tiers:
            where, key = f"cluster {self.name}", f"the size of tier {tier.name!r}"
            if tier.size > node and any(word in tier.name.lower() for word in INSIDE_NODES):
                fix = f"give the tier size {node}, or set devices_per_node = {tier.size}"
                allowed = f"devices_per_node {node} or less, as this link does not leave a node"
                raise wording.out_of_range(key, tier.size, allowed, fix).at(where)
            if 0 < tier.size < present and tier.size % node and node % tier.size:
                near = (tier.size // node or 1) * node
                fix = f"give the tier size {near}, or devices_per_node a divisor of {tier.size}"
                raise wording.not_divisible(key, tier.size, node, "devices_per_node", fix).at(where)

    def __hash__(self) -> int:
        """Hash what tells most clusters apart, not every figure."""
        return hash((self.name, self.num_devices, self.device.name))

    @property
    def tier_fill(self) -> tuple[int, ...]:
        """Parts of the tier inside it that fill each tier but the outermost; the innermost counts devices.

        Tiers that the number of devices is not a multiple of are filled as far as equal parts allow.
        """
        filled, result = 1, []
        for tier in self.tiers[:-1]:
            most = min(tier.size or self.num_devices, self.num_devices)
            parts = [part for part in divisors(self.num_devices // filled) if part * filled <= most]
            result.append(parts[-1])
            filled *= parts[-1]
        return tuple(result)

    @property
    def domain(self) -> int:
        """Devices that share the fastest tier."""
        return min(self.tiers[0].size or self.num_devices, self.num_devices)

    def capacity_of(self, tier_size: int) -> int:
        """Return the devices of all tiers of a size that the job may be spread over, idle ones included.

        Schedulers allocate whole nodes: nodes and sites are used in full. A tier in between, such as a rack of 72, can
        be used in part (64 of 72), as far as the outermost tier joins so many.
        """
        wide_area = self.tiers[-1].wide_area
        if tier_size <= self.devices_per_node or (wide_area and tier_size >= self._of_site):
            return self.num_devices
        return (0 if wide_area else self.tiers[-1].size) or self.num_devices * tier_size

    @property
    def num_sites(self) -> int:
        """Sites that a wide-area link joins; 0 without one.

        Raises
        ------
        SpecError
            If devices are no whole number of sites.
        """
        if not self.tiers[-1].wide_area:
            return 0
        sites, rest = divmod(self.num_devices, self._of_site)
        if rest:
            raise wording.not_divisible(
                "the number of devices", self.num_devices, self._of_site, "the devices of a site"
            ).at(f"cluster {self.name}")
        return self.tiers[-1].sites or sites

    @property
    def _of_site(self) -> int:
        """Devices of a site, as far as there are so many."""
        return min(self.tiers[-2].size or self.num_devices, self.num_devices)

    @property
    def site(self) -> Cluster:
        """One of the sites that a wide-area link joins."""
        return replace(self, num_devices=self._of_site, tiers=self.tiers[:-1])

    def over_sites(self, link: SiteLink, num_devices: int) -> Cluster:
        """Return `num_devices` devices on several such clusters, joined by a wide-area tier.

        Raises
        ------
        SpecError
            If devices do not divide, a site is larger than the network, or sites are joined already.
        """
        if self.tiers[-1].wide_area:
            raise wording.no_effect("sites", f"cluster {self.name} has a wide-area link already")
        _check_equal(self.name, (num_devices,), link.count)
        size = num_devices // link.count
        one, rate = self.sized(size), link.bandwidth / size
        outer = Tier(name=WAN, size=0, bandwidth=rate, latency=link.latency, wide_area=True, sites=link.count)
        return replace(one, num_devices=num_devices, tiers=(*_of_size(one.tiers, size), outer))

    def check_sizes(self, counts: Iterable[int]) -> None:
        """Refuse numbers of devices that cannot be on as many sites as this cluster has, by name.

        Raises
        ------
        SpecError
            If there are some.
        """
        if self.tiers[-1].sites:
            _check_equal(self.name, counts, self.tiers[-1].sites)

    def sized(self, num_devices: int) -> Cluster:
        """Return the same cluster with `num_devices` devices: on as many sites as before, where these are counted.

        Raises
        ------
        SpecError
            If the network joins fewer, or they do not divide over the sites.
        """
        wan = self.tiers[-1]
        if not wan.sites:
            return replace(self, num_devices=num_devices)
        self.check_sizes((num_devices,))
        size = num_devices // wan.sites
        wan = replace(wan, bandwidth=wan.bandwidth * (self.tiers[-2].size or size) / size)
        return replace(self, num_devices=num_devices, tiers=(*_of_size(self.tiers[:-1], size), wan))


def _check_equal(name: str, counts: Iterable[int], sites: int) -> None:
    odd = [count for count in sorted(counts) if count % sites or not count]
    if odd:
        few = ", ".join(map(str, odd[:NAMED])) + (f" and {len(odd) - NAMED} more" if len(odd) > NAMED else "")
        near = sorted({max(1, odd[0] // sites) * sites, (odd[0] // sites + 1) * sites})
        fix = f"give a multiple of {sites}, such as {' or '.join(map(str, near))}"
        terms = "the number of sites"
        raise wording.not_divisible("the number of devices", few, sites, terms, fix).at(f"cluster {name}")


def _of_size(tiers: tuple[Tier, ...], size: int) -> tuple[Tier, ...]:
    """Return the tiers of a site of so many devices: its outermost joins just these."""
    inner = (replace(tier, size=min(tier.size or size, size)) for tier in tiers[:-1])
    return (*inner, replace(tiers[-1], size=size))
