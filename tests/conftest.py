"""What all tests share: property tests try the same examples each time, and never fail for being slow."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("random", parent=settings.get_profile("steady"), derandomize=False)
settings.load_profile("steady")
