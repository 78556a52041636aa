"""The claims under test."""
