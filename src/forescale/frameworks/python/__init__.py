"""Configurations in Python read as syntax: functions followed, nothing imported or run."""
