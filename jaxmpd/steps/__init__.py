"""Kinds of step: one exact global search a file."""
