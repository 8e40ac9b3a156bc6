"""Tests of tables, figures and the report."""
