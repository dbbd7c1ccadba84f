"""Pictures of simulated and measured steps: terminal, SVG, one HTML page, Perfetto JSON."""

from forescale.schedule.draw.html import to_html, to_svg
from forescale.schedule.draw.perfetto import to_perfetto
from forescale.schedule.draw.timeline import Bar, Timeline, to_terminal

__all__ = ["Bar", "Timeline", "to_html", "to_perfetto", "to_svg", "to_terminal"]
