from site_folder import site  # noqa: F401
