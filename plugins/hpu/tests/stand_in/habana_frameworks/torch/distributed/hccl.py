"""Stands in for what registers the backend "hccl"."""
