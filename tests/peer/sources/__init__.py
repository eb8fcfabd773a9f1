"""Tests of `peer/sources`."""
