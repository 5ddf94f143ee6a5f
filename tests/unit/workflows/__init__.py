"""Tests of perdure.workflows without a server."""
