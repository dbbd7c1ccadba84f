"""What an hour of a device, its energy and its carbon cost: published figures, and one's own over them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from forescale.errors import UnknownNameError
from forescale.files import packaged
from forescale.limits import Measure
from forescale.positions import says_lines
from forescale.projection.result import Interval
from forescale.records import record
from forescale.struct import Struct
from forescale.syntax import load_mapping


class Figure(Struct, frozen=True, kw_only=True):
    """A number with where it is from."""

    value: Measure
    source: str
    date: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceList:
    """Prices and intensities by name."""

    currency: str = "USD"
    device_hour: Mapping[str, tuple[Figure, ...]] = field(default_factory=dict, hash=False)
    """By device, each with what was paid somewhere; the middle is expected, the ends are its range."""
    pue: Figure | None = None
    carbon_kg_per_mwh: Mapping[str, Figure] = field(default_factory=dict, hash=False)

    def merged_with(self, other: PriceList) -> PriceList:
        """Return these prices, and those of another list where these are silent."""
        return PriceList(
            currency=self.currency,
            device_hour={**other.device_hour, **self.device_hour},
            pue=self.pue or other.pue,
            carbon_kg_per_mwh={**other.carbon_kg_per_mwh, **self.carbon_kg_per_mwh},
        )

    def price(self, device: str) -> tuple[Interval, str] | None:
        """Return the price of a device and hour with its sources; None where nobody said."""
        result = self.device_hour.get(device, ())
        if not result:
            return None
        values = sorted(item.value for item in result)
        middle = (values[0] + values[-1]) / 2.0
        explicit = "; ".join(f"{item.source} ({item.date})" for item in result)
        return Interval(low=values[0], expected=middle, high=values[-1]), explicit

    def listed(self, device: str) -> str:
        """Return the price of a device and hour that is expected, and those that it is the middle of."""
        price, figures = self.price(device), self.device_hour.get(device, ())
        if price is None:
            return ""
        sources = ", ".join(f"{item.value:g} {item.source.partition(',')[0]} {item.date}" for item in figures)
        return f"{price[0].expected:.4g} ({'middle of ' if len(figures) > 1 else ''}{sources})"

    def carbon(self, place: str) -> Figure:
        """Return the intensity of a place's electricity [kg of CO2 per MWh], of its newest year where it names none.

        Raises
        ------
        UnknownNameError
            If it is not known.
        """
        plain = place.strip().lower()
        years = sorted(name for name in self.carbon_kg_per_mwh if name.rpartition("-")[0] == plain)
        name = place if place in self.carbon_kg_per_mwh else years[-1] if years else plain
        if name not in self.carbon_kg_per_mwh:
            raise UnknownNameError("carbon intensity", place, list(self.carbon_kg_per_mwh))
        return self.carbon_kg_per_mwh[name]


@cache
def published_prices() -> PriceList:
    """Return the catalogue's prices."""
    return record(PriceList, packaged("prices"), "", "prices.json")


@says_lines
def read_prices(path: Path) -> PriceList:
    """Return the prices of a file (JSON, TOML or YAML) over the catalogue's.

    Raises
    ------
    ReaderError
        If the file is none, or a figure is unknown, negative or has no source.
    """
    return record(PriceList, load_mapping(path), "", path).merged_with(published_prices())
