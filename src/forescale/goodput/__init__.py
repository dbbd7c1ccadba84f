"""What is left of the time where things fail: how a run is operated, closed forms, and a simulation of events.

`operations` says how often things fail and how states are saved and restored, `expected` what that costs in closed
form, for one run or for many at once, `events` simulates it, and `calendar` turns a projected step into days.
"""
