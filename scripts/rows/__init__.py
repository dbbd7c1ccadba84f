"""Conversion of tables of published runs to explicit columns."""
