from forked_ranks import fork_host, ranks  # noqa: F401
